"""Settings of stores: from the names that Spark, Hadoop and AWS users know to what pyarrow takes.

An option is a name and a text. S3 options may be written `s3.endpoint`, `fs.s3a.endpoint` or
`spark.hadoop.fs.s3a.endpoint`; `fs.s3a.bucket.BUCKET.endpoint` overrides it for one bucket. What is
not given comes from the environment (`AWS_…`), then from the default chain of the store's library.

Sources of options have an order of precedence, whatever the spelling of a name: `layered` merges
them. An option of a higher source also overrides one for a single bucket in a lower source.

Values may be secrets: nothing here or above prints them. `redacted` removes them from texts of
libraries.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENVIRONMENT: Final = "STRATALOG_STORAGE_OPTIONS"
"""A JSON object with options, for every command and program."""
_HADOOP_S3: Final = re.compile(r"(?:spark\.hadoop\.)?fs\.s3[an]?\.", re.IGNORECASE)
_HADOOP_AZURE: Final = re.compile(r"(?:spark\.hadoop\.)?fs\.azure\.", re.IGNORECASE)
_S3_NAMES: Final = {
    "access.key": "access_key",
    "access.key.id": "access_key",
    "secret.key": "secret_key",
    "secret.access.key": "secret_key",
    "session.token": "session_token",
    "endpoint": "endpoint",
    "region": "region",
    "endpoint.region": "region",
    "connection.ssl.enabled": "is_tls",
    "path.style.access": "is_path_style",
    "anonymous": "is_anonymous",
    "aws.credentials.provider": "provider",
    "assumed.role.arn": "role_arn",
    "assumed.role.session.name": "session_name",
    "connection.timeout": "request_timeout",
    "connection.establish.timeout": "connect_timeout",
    "attempts.maximum": "attempts",
    "proxy.host": "proxy_host",
    "proxy.port": "proxy_port",
    "proxy.username": "proxy_username",
    "proxy.password": "proxy_password",
}
_SPELLINGS: Final = "|".join(name.replace(".", "[.-]") for name in _S3_NAMES)
_BUCKET_OPTION: Final = re.compile(rf"bucket\.(.+?)\.({_SPELLINGS})", re.IGNORECASE)
"""The name of a bucket may have dots: the longest known name at the end counts."""
_AZURE_KEY: Final = re.compile(r"account\.key\.([^.]+)(?:\..*)?", re.IGNORECASE)
_SECRETS: Final = re.compile(r"(?i)secret|password|token|access.?key|account.?key|sas")
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000}


class StoreKey(NamedTuple):
    """One store with its settings: what a file system is created from, once in each process."""

    scheme: str
    authority: str
    """Bucket, container or host."""
    options: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.options)
        return f"StoreKey({self.scheme}://{self.authority}, options: {names or 'none'})"


class _Setting(NamedTuple):
    """What an option sets, in any of its spellings."""

    field: str
    scope: str | None = None
    """The bucket or account that it is for; None: all of them."""


def layered(*sources: Mapping[str, str]) -> dict[str, str]:
    """The options of several sources, in rising order of precedence. Raises ConfigError if one
    source has two values for the same setting."""
    found: dict[str, str] = {}
    for source in sources:
        given = _settings_of(source)
        kept = {
            name: value
            for name, value in found.items()
            if not _is_overridden(_setting(name), given)
        }
        found = {**kept, **source}
    return found


def _settings_of(source: Mapping[str, str]) -> dict[_Setting, str]:
    names: dict[_Setting, str] = {}
    for name, value in source.items():
        other = names.setdefault(_setting(name), name)
        if source[other] != value:
            raise ConfigError(name, f"has another value than {other!r}, which is the same setting")
    return names


def _is_overridden(setting: _Setting, given: Mapping[_Setting, str]) -> bool:
    if setting in given or _Setting(setting.field) in given:
        return True
    # A session token belongs to its key.
    is_token = setting.field == "session_token"
    return is_token and any(each.field == "access_key" for each in given)


def _setting(name: str) -> _Setting:
    azure = _HADOOP_AZURE.match(name)
    if azure is not None:
        key = _AZURE_KEY.fullmatch(name[azure.end() :])
        return _Setting("azure.account.key", key[1]) if key is not None else _Setting(name)
    suffix, _ = _s3_suffix(name)
    if suffix is None:
        is_exact = name.lower().startswith("fsspec.")
        return _Setting(name if is_exact else name.lower())
    of_bucket = _BUCKET_OPTION.fullmatch(suffix)
    bucket, text = (of_bucket[1], of_bucket[2]) if of_bucket is not None else (None, suffix)
    known = _s3_field(text)
    return _Setting(known, bucket) if known is not None else _Setting(name)


def _s3_field(suffix: str) -> str | None:
    return _S3_NAMES.get(suffix.replace("-", ".").lower())


def merged_options(
    given: Mapping[str, str] | None, credentials: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of the environment, overridden by those given, and by `credentials` of a URI."""
    return layered(_from_environment(), given or {}, credentials or {})


def _from_environment() -> dict[str, str]:
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise ConfigError(ENVIRONMENT, f"not a JSON object of options: {error}") from None
    return {str(name): str(value) for name, value in found.items()}


def is_storage_option(name: str) -> bool:
    """Whether an option, in any case, is one of a store."""
    prefixes = ("s3.", "gs.", "azure.", "hdfs.", "fsspec.")
    is_hadoop = _HADOOP_S3.match(name) or _HADOOP_AZURE.match(name)
    return bool(is_hadoop) or name.lower().startswith(prefixes)


def redacted(text: str, key: StoreKey) -> str:
    """The text without the secrets among the options."""
    for name, value in key.options:
        if len(value) > 3 and _SECRETS.search(name):
            text = text.replace(value, "***")
    return text


def split_uri(uri: str) -> tuple[str, str, str, dict[str, str]]:
    """Scheme, authority and path of a URI, and the S3 credentials that were part of it."""
    scheme, rest = uri.split("://", 1)
    authority, slash, path = rest.partition("/")
    credentials = {}
    user, at, host = authority.rpartition("@")
    if at and scheme.lower() in S3_SCHEMES:
        from urllib.parse import unquote  # noqa: PLC0415

        key, _, secret = user.partition(":")
        credentials = {"s3.access.key": unquote(key), "s3.secret.key": unquote(secret)}
        authority = host
    return scheme.lower(), authority, slash + path, credentials


S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})


# -- the file systems


def s3_settings(options: Mapping[str, str], bucket: str) -> dict[str, str]:
    """The S3 options by their field names. Raises ConfigError for one that is not known."""
    found: dict[str, str] = {}
    of_bucket: dict[str, str] = {}
    for name, value in options.items():
        suffix, is_hadoop = _s3_suffix(name)
        if suffix is None:
            continue
        into = found
        if suffix.startswith("bucket."):
            if not suffix.startswith(f"bucket.{bucket}."):
                continue
            suffix, into = suffix[len(f"bucket.{bucket}.") :], of_bucket
        known = _s3_field(suffix)
        if known is not None:
            into[known] = value
        elif not is_hadoop:  # Hadoop has hundreds, most of them for its own client
            raise _unknown_option(name, [f"s3.{each}" for each in _S3_NAMES])
    return {**found, **of_bucket}


def _s3_suffix(name: str) -> tuple[str | None, bool]:
    hadoop = _HADOOP_S3.match(name)
    if hadoop is not None:
        return name[hadoop.end() :], True
    return (name[3:], False) if name.lower().startswith("s3.") else (None, False)


def s3_arguments(options: Mapping[str, str], bucket: str) -> dict[str, Any]:
    """The arguments of `pyarrow.fs.S3FileSystem`."""
    given = s3_settings(options, bucket)
    arguments: dict[str, Any] = {
        name: given[name]
        for name in ("access_key", "secret_key", "session_token", "role_arn", "session_name")
        if given.get(name)
    }
    _add_endpoint(arguments, given)
    if _s3_flag(given, "is_anonymous") or "Anonymous" in given.get("provider", ""):
        arguments["anonymous"] = True
    for name in ("request_timeout", "connect_timeout"):
        if given.get(name):
            arguments[name] = _seconds(_s3_name(name), given[name])
    if given.get("proxy_host"):
        arguments["proxy_options"] = {
            "scheme": "http",
            "host": given["proxy_host"],
            "port": _port(given.get("proxy_port", "80")),
            "username": given.get("proxy_username", ""),
            "password": given.get("proxy_password", ""),
        }
    return arguments


def _add_endpoint(arguments: dict[str, Any], given: Mapping[str, str]) -> None:
    environment = os.environ
    endpoint = given.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        arguments["endpoint_override"] = host.rstrip("/")
        if scheme:
            arguments["scheme"] = scheme.lower()
        if _s3_flag(given, "is_path_style") is False:
            arguments["force_virtual_addressing"] = True
    if _s3_flag(given, "is_tls") is False:
        arguments["scheme"] = "http"
    region = given.get("region") or environment.get("AWS_REGION")
    region = region or environment.get("AWS_DEFAULT_REGION")
    # Without a region, pyarrow requests that of the bucket, which other servers may not support.
    if region or endpoint:
        arguments["region"] = region or "us-east-1"


def attempts_of(options: Mapping[str, str], bucket: str, default: int) -> int:
    """How often a request is tried."""
    text = s3_settings(options, bucket).get("attempts", "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\d{1,9}", text):
        raise ConfigError(_s3_name("attempts"), f"not a number of attempts: {text!r}")
    return max(1, int(text))


def azure_arguments(options: Mapping[str, str], authority: str) -> tuple[str, dict[str, Any]]:
    """The container, and the arguments of `pyarrow.fs.AzureFileSystem`."""
    container, _, host = authority.rpartition("@")
    account = host.partition(".")[0]
    arguments: dict[str, Any] = {"account_name": account}
    own = {
        "azure.account.key": "account_key",
        "azure.sas.token": "sas_token",
        "azure.client.id": "client_id",
        "azure.client.secret": "client_secret",
        "azure.tenant.id": "tenant_id",
        "azure.blob.storage.authority": "blob_storage_authority",
        "azure.dfs.storage.authority": "dfs_storage_authority",
        "azure.blob.storage.scheme": "blob_storage_scheme",
        "azure.dfs.storage.scheme": "dfs_storage_scheme",
    }
    of_account = {}
    for name, value in options.items():
        if _setting(name) == ("azure.account.key", account):
            of_account["account_key"] = value
        elif name.lower() in own:
            arguments[own[name.lower()]] = value
        elif name.lower().startswith("azure."):
            raise _unknown_option(name, own)
    return container, arguments | of_account


def gcs_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `pyarrow.fs.GcsFileSystem`."""
    # The library tries again for a quarter of an hour, and a Store does so after that.
    arguments: dict[str, Any] = {"retry_time_limit": timedelta(seconds=15)}
    known = ("gs.access.token", "gs.anonymous", "gs.endpoint", "gs.project.id")
    for name, value in options.items():
        if not name.lower().startswith("gs."):
            continue
        if name.lower() not in known:
            raise _unknown_option(name, known)
        suffix = name.lower()[3:]
        if suffix == "endpoint":
            scheme, _, host = value.rpartition("://")
            arguments |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
        elif suffix == "anonymous":
            arguments["anonymous"] = bool(value.strip()) and _flag(name, value)
        elif suffix == "project.id":
            arguments["project_id"] = value
        else:
            arguments["access_token"] = value
            arguments["credential_token_expiration"] = datetime.now(UTC) + timedelta(hours=1)
    return arguments


def fsspec_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of an fsspec file system: `fsspec.NAME`, where the value may be JSON."""
    arguments: dict[str, Any] = {}
    for name, value in options.items():
        if name.lower().startswith("fsspec."):
            try:
                arguments[name[len("fsspec.") :]] = json.loads(value)
            except ValueError:
                arguments[name[len("fsspec.") :]] = value
    return arguments


def _s3_name(field: str) -> str:
    """The option that sets a field, as Stratalog writes it."""
    return next(f"s3.{name}" for name, each in _S3_NAMES.items() if each == field)


def _s3_flag(given: Mapping[str, str], field: str) -> bool | None:
    """None if the option is not given, or empty."""
    text = given.get(field, "").strip()
    return _flag(_s3_name(field), text) if text else None


def _flag(name: str, text: str) -> bool:
    """Parse a boolean strictly: a typing error must not turn off TLS."""
    word = text.strip().lower()
    if word not in _FLAGS:
        raise ConfigError(name, f"not true or false: {text!r}")
    return _FLAGS[word]


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text.strip()):
        raise ConfigError("s3.proxy.port", "not a port number")
    return int(text)


def _seconds(name: str, text: str) -> float:
    """Hadoop's times: milliseconds, or with a unit."""
    found = re.fullmatch(r"(\d{1,9})(ms|s|m)?", text.strip().lower())
    if found is None:
        raise ConfigError(name, "not a time such as 5000 or 5s")
    return int(found[1]) * _UNIT_MS[found[2] or ""] / 1000


def _unknown_option(name: str, known: Iterable[str]) -> ConfigError:
    from stratalog.config.definitions import unknown_name  # noqa: PLC0415 - with all settings

    return unknown_name(name, "storage option", known)
