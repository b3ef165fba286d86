"""Paths in stores, and the settings of stores."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from stratalog.errors import ConfigError, UnsupportedError
from stratalog.storage.log_file import list_directory
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store_options import (
    ENVIRONMENT,
    StoreKey,
    attempts_of,
    azure_arguments,
    gcs_arguments,
    is_storage_option,
    layered,
    merged_options,
    redacted,
    s3_arguments,
)


def test_a_uri_is_a_path_that_joins_compares_and_pickles() -> None:
    path = location("s3://bucket/logs/", {"s3.region": "here"})
    child = path / "orders-0" / "00000000000000000000.log"
    assert isinstance(child, RemotePath)
    assert str(child) == "s3://bucket/logs/orders-0/00000000000000000000.log"
    assert (child.name, child.suffix, child.parent.name) == (child.name, ".log", "orders-0")
    assert child.key == "bucket/logs/orders-0/00000000000000000000.log"
    assert child.with_name("x") == path / "orders-0/x"
    assert sorted([child, path]) == [path, child]
    assert pickle.loads(pickle.dumps(child)) == child
    assert child.absolute() == child.resolve() == child
    assert len({child, path / "orders-0" / child.name}) == 1
    assert path != Path("s3://bucket/logs")


def test_it_never_becomes_a_local_name() -> None:
    path = location("s3://bucket/logs", {})
    for use in (os.fspath, Path, os.listdir):
        with pytest.raises(UnsupportedError, match="s3://bucket/logs"):
            use(path)


def test_keys_of_other_file_systems() -> None:
    for uri, key in {
        "hdfs://name:8020/kafka/logs": "/kafka/logs",
        "abfss://box@account.dfs.core.windows.net/logs": "box/logs",
        "gs://bucket/logs": "bucket/logs",
        "memory://a/b": "a/b",
    }.items():
        found = location(uri, {})
        assert isinstance(found, RemotePath)
        assert (found.key, str(found)) == (key, uri)


def test_settings_of_hadoop_with_overrides_for_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    options = {
        "spark.hadoop.fs.s3a.access.key": "one",
        "fs.s3a.secret.key": "two",
        "fs.s3a.endpoint": "http://minio:9000/",
        "fs.s3a.bucket.logs.access.key": "three",
        "fs.s3a.bucket.other.access.key": "four",
        "fs.s3a.connection.timeout": "5s",
        "fs.s3a.fast.upload": "true",
    }
    assert s3_arguments(options, "logs") == {
        "access_key": "three",
        "secret_key": "two",
        "endpoint_override": "minio:9000",
        "scheme": "http",
        "region": "us-east-1",
        "request_timeout": 5.0,
    }
    anonymous = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    assert s3_arguments({"fs.s3a.aws.credentials.provider": anonymous}, "b") == {"anonymous": True}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other")
    assert s3_arguments({}, "b")["endpoint_override"] == "other"


def test_a_scheme_without_a_file_system_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^nosuch: neither pyarrow nor fsspec has a file system"):
        list_directory(location("nosuch://bucket/logs", {}))


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 's3\.endpoint'"):
        s3_arguments({"s3.endpint": "x"}, "b")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("connection.ssl.enabled", "ture", "not true or false: 'ture'"),
        ("path.style.access", "maybe", "not true or false: 'maybe'"),
        ("anonymous", "on", "not true or false: 'on'"),
        ("connection.timeout", "soon", "not a time"),
    ],
)
def test_a_wrong_value_is_an_error(name: str, value: str, reason: str) -> None:
    for prefix in ("s3.", "fs.s3a."):
        options = {"s3.endpoint": "https://e", prefix + name: value}
        with pytest.raises(ConfigError, match=f"s3.{name}: {reason}"):
            s3_arguments(options, "b")


def test_attempts() -> None:
    assert attempts_of({"fs.s3a.attempts.maximum": "7"}, "b", 3) == 7
    assert attempts_of({}, "b", 3) == 3
    with pytest.raises(ConfigError, match=r"s3\.attempts\.maximum: not a number of attempts"):
        attempts_of({"s3.attempts.maximum": "many"}, "b", 3)


def test_flags() -> None:
    at = {"s3.endpoint": "https://e"}
    for text in ("true", " True ", "1", "yes", ""):
        assert s3_arguments({**at, "s3.connection.ssl.enabled": text}, "b")["scheme"] == "https"
        assert "force_virtual_addressing" not in s3_arguments(
            {**at, "s3.path.style.access": text}, "b"
        )
    for text in ("false", "FALSE", "0", "no"):
        assert s3_arguments({**at, "s3.connection.ssl.enabled": text}, "b")["scheme"] == "http"
        assert s3_arguments({**at, "s3.path.style.access": text}, "b")["force_virtual_addressing"]
        assert "anonymous" not in s3_arguments({**at, "s3.anonymous": text}, "b")
    with pytest.raises(ConfigError, match=r"gs\.anonymous: not true or false: 'perhaps'"):
        gcs_arguments({"gs.anonymous": "perhaps"})
    assert not gcs_arguments({"gs.anonymous": ""})["anonymous"]  # as if it were not given


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, '{"s3.region": "env", "s3.endpoint": "e"}')
    assert merged_options({"s3.region": "given"}) == {"s3.region": "given", "s3.endpoint": "e"}
    monkeypatch.setenv(ENVIRONMENT, "no json")
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        merged_options({})


NAMES = ("s3.secret.key", "fs.s3a.secret.key", "spark.hadoop.fs.s3a.secret.key")
OF_BUCKET = "fs.s3a.bucket.my.logs.secret.key"


@pytest.mark.parametrize("lower", [*NAMES, OF_BUCKET])
@pytest.mark.parametrize("higher", NAMES)
def test_a_higher_source_overrides_whatever_the_spelling(lower: str, higher: str) -> None:
    found = layered({lower: "lower", "s3.region": "here"}, {higher: "higher"})
    assert s3_arguments(found, "my.logs")["secret_key"] == "higher"
    assert found["s3.region"] == "here"


def test_options_of_a_bucket_override_others_of_their_source() -> None:
    found = layered({NAMES[0]: "session"}, {NAMES[2]: "query", OF_BUCKET: "of the bucket"})
    assert s3_arguments(found, "my.logs")["secret_key"] == "of the bucket"
    assert s3_arguments(found, "other")["secret_key"] == "query"
    found = layered({NAMES[2]: "session"}, {OF_BUCKET: "of the bucket"})
    assert s3_arguments(found, "my.logs")["secret_key"] == "of the bucket"
    assert s3_arguments(found, "other")["secret_key"] == "session"


def test_a_session_token_belongs_to_its_key() -> None:
    lower = {"fs.s3a.session.token": "old", "fs.s3a.access.key": "old", "s3.region": "here"}
    found = layered(lower, {"s3.access.key": "new", "s3.secret.key": "new"})
    assert found == {"s3.region": "here", "s3.access.key": "new", "s3.secret.key": "new"}


def test_credentials_of_a_uri_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, '{"spark.hadoop.fs.s3a.secret.key": "environment"}')
    path = location("s3://mine:uri@b/x", {"spark.hadoop.fs.s3a.access.key": "session"})
    assert isinstance(path, RemotePath)
    assert dict(path._key.options) == {"s3.access.key": "mine", "s3.secret.key": "uri"}


def test_two_values_in_one_source_are_an_error() -> None:
    with pytest.raises(ConfigError) as raised:
        location("s3://b/x", {"s3.secret.key": "first-one", "fs.s3a.secret.key": "second-one"})
    assert "s3.secret.key" in str(raised.value)
    assert "fs.s3a.secret.key" in str(raised.value)
    assert "-one" not in repr(vars(raised.value))
    location("s3://b/x", {"s3.secret.key": "same", "fs.s3a.secret.key": "same"})


def test_options_of_an_azure_account() -> None:
    hadoop = "spark.hadoop.fs.azure.account.key.logs.dfs.core.windows.net"
    where = "box@logs.dfs.core.windows.net"
    found = layered({hadoop: "session"}, {"azure.account.key": "query"})
    assert azure_arguments(found, where)[1]["account_key"] == "query"
    found = layered({"azure.account.key": "session"}, {hadoop: "query"})
    assert azure_arguments(found, where)[1]["account_key"] == "query"
    assert "account_key" not in azure_arguments({hadoop: "x"}, "box@log.dfs.core.windows.net")[1]


@pytest.mark.parametrize("name", ["s3.connection.timeout", "s3.proxy.port"])
def test_a_wrong_value_is_not_shown(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as raised:
        s3_arguments({name: "se-cret", "s3.proxy.host": "proxy"}, "b")
    assert "se-cret" not in repr(vars(raised.value))


def test_secrets_are_not_shown() -> None:
    path = location("s3://key-id:my-secret@bucket/logs", {"fs.s3a.session.token": "my-token"})
    assert isinstance(path, RemotePath)
    shown = f"{path} {path!r} {StoreKey('s3', 'b', (('s3.secret.key', 'my-secret'),))!r}"
    assert "my-secret" not in shown
    assert "my-token" not in shown
    key = StoreKey("s3", "b", (("s3.secret.key", "my-secret"), ("s3.region", "here")))
    assert redacted("signed with my-secret in here", key) == "signed with *** in here"


def test_which_options_are_those_of_stores() -> None:
    assert is_storage_option("spark.hadoop.fs.s3a.endpoint")
    assert is_storage_option("S3.Endpoint")
    assert not is_storage_option("subscribe")
    assert not is_storage_option("kafka.s3.endpoint")


def test_without_hadoop_the_error_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(ConfigError, match="libhdfs") as refused:
        list_directory(location("hdfs://127.0.0.1:1/kafka"))
    assert "\n" not in str(refused.value)


def test_google_is_not_asked_for_a_quarter_of_an_hour() -> None:
    assert gcs_arguments({})["retry_time_limit"].total_seconds() <= 15
