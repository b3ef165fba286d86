"""How commands read their command lines: options that several commands share, and plain help."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand

from stratalog.format.times import TIME_HELP, InvalidTimeError, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- what to work on

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A topic or partition in --log-dir (TOPIC, TOPIC:PARTITION) or with its path "
        "(DIR/TOPIC), a partition directory, or a .log file.",
        show_default=False,
    ),
]
WhereArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHERE",
        help="Log directories (default: the current directory), topics or partitions in them "
        "(TOPIC, TOPIC:PARTITION), or partition directories.",
        show_default=False,
    ),
]
DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A log directory.", show_default=False)
]
TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC[:PARTITION]",
        help="Only these topics or partitions.",
        show_default=False,
    ),
]
LogDirOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-dir",
        "-d",
        metavar="DIR",
        help="A log directory in which to look for topics. Repeatable.",
    ),
]

# -- where in a log

OffsetOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        help="An offset, -N for N offsets before the end, earliest or latest.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--time", metavar="TIME", help=f"Find the first record at or after this time: {TIME_HELP}."
    ),
]
# -- how to print

FormatName = Literal["utf-8", "hex", "base64", "json", "int32", "int64"]
KeyFormatOption = Annotated[FormatName, typer.Option(help="Format of printed keys.")]
ValueFormatOption = Annotated[
    FormatName, typer.Option(help="Format of printed values and header values.")
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, one object per line."),
]

# -- planning

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done; take no lock, never write.")
]
NowOption = Annotated[
    str | None,
    typer.Option(
        "--now", metavar="TIME", help=f"Plan as if it were this time (dry runs only): {TIME_HELP}."
    ),
]
DefaultsOption = Annotated[
    bool,
    typer.Option("--defaults", help="Apply Kafka's default limits if the broker's are unknown."),
]

# -- settings

ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="Set a Kafka topic or broker setting for this run only. Repeatable.",
    ),
]
CreateInBrokerDirOption = Annotated[
    bool,
    typer.Option(
        "--create-in-broker-dir",
        help="Create partitions even in the directory of a Kafka broker. At startup the broker "
        "renames partitions that its cluster does not have to -stray.",
    ),
]
ServerPropertiesOption = Annotated[
    Path | None,
    typer.Option(
        "--server-properties",
        metavar="FILE",
        help="The broker's server.properties, for its topic defaults and metadata.log.dir.",
    ),
]
MetadataLogDirOption = Annotated[
    Path | None,
    typer.Option(
        "--metadata-log-dir",
        metavar="DIR",
        help="The directory with the cluster's metadata (__cluster_metadata-0), if it is not in "
        "one of the log directories.",
    ),
]


def key_values(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Parse the `KEY=VALUE` values of a repeatable flag."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{flag}: {text!r} is not in the form KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def time_of(text: str | None, flag: str) -> int | None:
    """The time given with `flag`, in milliseconds."""
    if text is None:
        return None
    try:
        return parse_time(text, now_ms=now_ms())
    except InvalidTimeError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def now_ms() -> int:
    """The current time, in milliseconds."""
    return time.time_ns() // 1_000_000


def now_or(text: str | None, flag: str) -> int:
    """The time given with `flag`, or else the current time."""
    given = time_of(text, flag)
    return now_ms() if given is None else given


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
