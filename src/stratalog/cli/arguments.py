"""How commands read their command lines: options that several commands share, and plain help."""

from __future__ import annotations

import functools
import inspect
import re
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

from stratalog.errors import ConfigError, LogDirLockedError
from stratalog.format.quantities import SIZE_HELP, InvalidQuantityError, parse_size
from stratalog.format.times import (
    TIME_HELP,
    InvalidTimeError,
    current_time_ms,
    parse_duration,
    parse_time,
)
from stratalog.storage.remote_path import RemotePath, location, set_default_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# -- forms that several commands have


def local_path(text: str) -> Path:
    """For what is written. `Path` would turn a URI into a directory named `s3:`."""
    path = location(text)
    if isinstance(path, RemotePath):
        raise typer.BadParameter(
            f"{path} is not on a disk; logs in a store can be read, not changed"
        )
    return path


def argument(metavar: str, text: str, *, parser: Callable[[str], Any] | None = None) -> Any:
    """An argument, for `Annotated`."""
    return typer.Argument(metavar=metavar, help=text, parser=parser, show_default=False)


def flag(name: str, text: str, *, short: str | None = None) -> Any:
    """An option without a value, for `Annotated`."""
    return typer.Option(*_names(name, short), help=text)


def option(
    name: str,
    metavar: str,
    text: str,
    *,
    short: str | None = None,
    least: int | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """An option with a value, for `Annotated`. A number may not be below `least`."""
    names = _names(name, short)
    return typer.Option(*names, metavar=metavar, help=text, min=least, parser=parser)


def repeatable(
    name: str,
    metavar: str,
    text: str,
    *,
    short: str | None = None,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """An option that may be given several times, for `Annotated`."""
    return option(name, metavar, f"{text} Repeatable.", short=short, parser=parser)


def topics_option(text: str) -> Any:
    """`--topic TOPIC[:PARTITION]`, for `Annotated`."""
    return repeatable("--topic", "TOPIC[:PARTITION]", text, short="-t")


def config_option(text: str) -> Any:
    """`--config NAME=VALUE`, for `Annotated`."""
    return repeatable("--config", "NAME=VALUE", text, short="-c")


def partitions_option(text: str, *, show_default: bool = True) -> Any:
    """`--partitions N`, for `Annotated`."""
    return typer.Option(
        "--partitions", "-p", min=1, metavar="N", help=text, show_default=show_default
    )


def time_option(name: str, text: str, *, default: str | None = None) -> Any:
    """An option with a time, for `Annotated`. The text ends with the words "this time"; the help
    then says how a time is written."""
    more = "" if default is None else f" Default: {default}."
    return option(name, "TIME", f"{text}: {TIME_HELP}.{more}")


def _names(name: str, short: str | None) -> list[str]:
    return [name] if short is None else [name, short]


def _log_dir_option(text: str, parser: Callable[[str], Path]) -> Any:
    return repeatable("--log-dir", "DIR", text, short="-d", parser=parser)


# -- what to work on

TargetArgument = Annotated[
    list[str],
    argument(
        "TARGET",
        "Topics or partitions (TOPIC, TOPIC:PARTITION), with their log directory before them, in "
        "--log-dir, or as a path (DIR/TOPIC). Also partition directories and .log files.",
    ),
]
WhereArgument = Annotated[
    list[str] | None,
    argument(
        "WHERE",
        "Log directories (default: the current directory), topics or partitions in them "
        "(TOPIC, TOPIC:PARTITION), or partition directories.",
    ),
]
DirectoryArgument = Annotated[Path, argument("DIR", "A log directory.", parser=local_path)]
TopicsArgument = Annotated[
    list[str] | None, argument("TOPIC[:PARTITION]", "Only these topics or partitions.")
]
LogDirOption = Annotated[
    list[Path] | None,
    _log_dir_option("A log directory with the topics, or its URI.", location),
]
LocalLogDirOption = Annotated[
    list[Path] | None, _log_dir_option("A log directory, on a local disk.", local_path)
]
"""For commands that write: logs in stores can only be read."""


def _use_storage_options(given: list[str] | None) -> list[str] | None:
    """Every location of this command gets them. Errors do not show a value: it may be a secret."""
    if any(not text.partition("=")[0].strip() or "=" not in text for text in given or []):
        raise typer.BadParameter("--storage-option: not in the form KEY=VALUE")
    set_default_options(key_values("--storage-option", given or []))
    return given


StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option for the object store of s3://, gs://, abfss:// and other URIs, such as "
        "s3.endpoint=http://localhost:9000. Repeatable.",
        callback=_use_storage_options,
        is_eager=True,
        show_default=False,
    ),
]

RemoteOption = Annotated[
    str | None,
    option(
        "--remote",
        "URI",
        "The store of tiered topics: a URI with bucket and prefix, or a directory. Logs then "
        "include the segments that brokers have moved there.",
    ),
]
RemoteLayoutOption = Annotated[
    Literal["aiven", "local"] | None,
    typer.Option(
        "--remote-layout",
        help="Layout of the --remote store: that of Aiven's plugin, or of Kafka's "
        "LocalTieredStorage. Default: detected.",
        show_default=False,
    ),
]
RemoteKeyOption = Annotated[
    list[str] | None,
    repeatable(
        "--remote-key",
        "[ID=]FILE",
        "PEM file with the private key of encrypted remote segments; ID names its key pair.",
    ),
]


def _use_remote(remote: str | None, layout: str | None, keys: Sequence[str] | None) -> None:
    """Let every log directory of this command have this store of tiered topics."""
    from stratalog.partitions.view import set_default_tiered_store  # noqa: PLC0415 - heavy

    if remote is None:
        if layout or keys:
            raise typer.BadParameter("--remote-layout and --remote-key require --remote")
        set_default_tiered_store(None)
        return
    from stratalog.storage.tiered_store import TieredStore  # noqa: PLC0415

    set_default_tiered_store(TieredStore.found_at(location(remote), layout, keys or ()))


def with_groups(run: Callable[..., None]) -> Callable[..., None]:
    """Let a parameter whose type is a NamedTuple stand for a group of options: its fields.

    On the command line they are where the parameter is.
    """
    signature = inspect.signature(run, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if hasattr(each.annotation, "_field_defaults")
    }

    @functools.wraps(run)
    def run_with_groups(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group._fields))
        run(**given)

    parameters: list[inspect.Parameter] = []
    for name, each in signature.parameters.items():
        parameters += _fields_of(groups[name]) if name in groups else [each]
    return _with_parameters(run_with_groups, signature, parameters)


def _fields_of(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    defaults = {**dict.fromkeys(group._fields, inspect.Parameter.empty), **group._field_defaults}
    return [_keyword(name, kinds[name], defaults[name]) for name in group._fields]


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=default, annotation=kind)


def _with_parameters(
    run: Callable[..., None], signature: inspect.Signature, parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """The function as Typer sees it: with these parameters, all passed by name."""
    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]  # Typer reads it
    return run


def reads_stores(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of stores, and have the logs that it opens use them.

    They follow `--log-dir`. The function gets `remote` only if it has such a parameter.
    """
    signature = inspect.signature(run, eval_str=True)
    knows_remote = "remote" in signature.parameters

    @functools.wraps(run)
    def run_with_stores(**given: Any) -> None:
        given.pop("storage_option")  # its callback has used it
        remote = given["remote"] if knows_remote else given.pop("remote")
        _use_remote(remote, given.pop("remote_layout"), given.pop("remote_key"))
        run(**given)

    parameters = [each for name, each in signature.parameters.items() if name != "remote"]
    at = [each.name for each in parameters].index("log_dir") + 1
    parameters[at:at] = [_keyword(name, kind, None) for name, kind in _STORE_OPTIONS.items()]
    return _with_parameters(run_with_stores, signature, parameters)


_STORE_OPTIONS: Final = {
    "storage_option": StorageOption,
    "remote": RemoteOption,
    "remote_layout": RemoteLayoutOption,
    "remote_key": RemoteKeyOption,
}


# -- where in a log

OffsetOption = Annotated[
    str | None,
    option(
        "--offset",
        "OFFSET",
        "An offset, earliest, latest, or -N for N offsets before the end of the log.",
        short="-o",
    ),
]
TimeOption = Annotated[
    str | None,
    time_option("--time", "Find the first record at or after this time"),
]
# -- how to print

FormatName = Literal["utf-8", "hex", "base64", "json", "int32", "int64"]
KeyFormatOption = Annotated[FormatName, typer.Option(help="Format of printed keys.")]
ValueFormatOption = Annotated[
    FormatName, typer.Option(help="Format of printed values and header values.")
]
JsonOption = Annotated[bool, flag("--json", "Print JSON, one object per line.")]

# -- corruption

SkipCorruptOption = Annotated[
    bool,
    flag(
        "--skip-corrupt",
        "Skip corrupt batches, list them on standard error, and exit with status 1.",
    ),
]

# -- planning

DryRunOption = Annotated[
    bool, flag("--dry-run", "Show what would be done. Takes no lock and writes nothing.")
]
NowOption = Annotated[
    str | None,
    time_option("--now", "Plan as if it were this time", default="the current time"),
]


def now_option(modes: str) -> Any:
    """`--now TIME` of a command that only plans in these modes, for `Annotated`."""
    text = f"With {modes}, plan as if it were this time"
    return time_option("--now", text, default="the current time")


DefaultsOption = Annotated[
    bool, flag("--defaults", "If the broker's limits are unknown, apply Kafka's defaults.")
]

# -- settings

ConfigOption = Annotated[
    list[str] | None,
    config_option(
        "Set a Kafka topic or broker setting for this run only, such as retention.ms=7d or "
        "retention.bytes=10GiB."
    ),
]
CreateInBrokerDirOption = Annotated[
    bool,
    flag(
        "--create-in-broker-dir",
        "Create partitions even if this is the directory of a Kafka broker. When the broker "
        "starts, it adds -stray to the names of partitions that its cluster does not have.",
    ),
]
ServerPropertiesOption = Annotated[
    Path | None,
    option(
        "--server-properties",
        "FILE",
        "The broker's server.properties file: broker settings, defaults for topics, and "
        "metadata.log.dir.",
    ),
]
MetadataLogDirOption = Annotated[
    Path | None,
    option(
        "--metadata-log-dir",
        "DIR",
        "The directory that contains the cluster's metadata (__cluster_metadata-0), if it is not "
        "one of the log directories.",
    ),
]


class SettingsFiles(NamedTuple):
    """Where the settings of a Kafka cluster are."""

    server_properties: ServerPropertiesOption = None
    metadata_log_dir: MetadataLogDirOption = None


def key_values(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Parse the `KEY=VALUE` values of a repeatable flag."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{flag}: {text!r} is not in the form KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}
_FORMS: Final = {
    unit: f"{'milliseconds' if unit == 'ms' else unit}, or a duration such as 90s, 1h30m or 7d"
    for unit in _UNIT_MS
} | dict.fromkeys(("bytes", "size"), SIZE_HELP)
"""What a setting takes on the command line, by the last word of its name."""


def setting_values(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Parse Kafka settings. Times may be durations (`retention.ms=7d`), amounts of bytes may have a
    unit (`retention.bytes=10GiB`, `512M`)."""
    return {name: _plain(flag, name, text) for name, text in key_values(flag, given).items()}


def _plain(flag: str, name: str, text: str) -> str:
    """The number that Kafka expects for a setting of this name."""
    unit = re.split(r"[.]", name)[-1]
    duration_ms = parse_duration(text)
    if duration_ms is not None and unit in _UNIT_MS:
        amount, rest = divmod(duration_ms, _UNIT_MS[unit])
        if rest:
            raise typer.BadParameter(f"{flag}: {name}={text} is not a whole number of {unit}")
        return str(amount)
    if unit not in _FORMS or _INTEGER.fullmatch(text):
        return text
    with suppress(InvalidQuantityError):
        if unit not in _UNIT_MS:
            return str(parse_size(text))
    raise ConfigError(name, f"{text!r} is not valid; use {_FORMS[unit]}", value=text)


def time_of(text: str | None, flag: str) -> int | None:
    """The time given with `flag`, in milliseconds."""
    if text is None:
        return None
    try:
        return parse_time(text, now_ms=current_time_ms())
    except InvalidTimeError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def now_or(text: str | None, flag: str) -> int:
    """The time given with `flag`, or else the current time."""
    given = time_of(text, flag)
    return current_time_ms() if given is None else given


def key_bytes(text: str, key_format: str) -> bytes:
    """The bytes of a key that was given with `--key`, written in this format."""
    try:
        if key_format == "hex":
            return bytes.fromhex(text)
        if key_format == "base64":
            return b64decode(text, validate=True)
        if key_format in {"int32", "int64"}:
            size_bytes = 4 if key_format == "int32" else 8
            return int(text).to_bytes(size_bytes, signed=True)
    except (ValueError, OverflowError) as error:
        reason = f"{text!r} is not {key_format}: {error}"
        raise typer.BadParameter(reason, param_hint="--key") from None
    return text.encode("utf-8", "surrogateescape")


# -- errors


def locked_text(error: LogDirLockedError, *, has_dry_run: bool = True) -> str:
    """What holds the lock, and what to do."""
    return f"{error.what}; stop that process first{', or use --dry-run' if has_dry_run else ''}"


# -- help

_TYPE: Final = re.compile(r" <[^<>]*>$")
_PREFIX: Final = "Value error, "
"""Typer puts this before messages about mistyped arguments."""


class PlainCommand(TyperCommand):
    """Shows arguments as `TARGET`, where Typer has `TARGET <str>` and `{TARGET}`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PREFIX)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Say what to do about a lock: a command that has --dry-run works without it."""
        try:
            return super().invoke(ctx)
        except LogDirLockedError as error:
            has_dry_run = any("--dry-run" in each.opts for each in self.params)
            error.args = (locked_text(error, has_dry_run=has_dry_run),)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            parameters = [each for each in self.get_params(ctx) if each.param_type_name == kind]
            rows = list(filter(None, (each.get_help_record(ctx) for each in parameters)))
            if kind == "argument":
                rows = [(_TYPE.sub("", name), text) for name, text in rows]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
