"""Arguments and options that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stratalog.cli.when import TIME_HELP

if TYPE_CHECKING:
    from collections.abc import Sequence

ShownFormat = Literal["utf-8", "hex", "base64", "json", "int32", "int64"]

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="TOPIC or TOPIC:PARTITION below --log-dir (DIR/TOPIC does too), a partition "
        "directory, or a .log file.",
        show_default=False,
    ),
]
SearchedDirsOption = Annotated[
    list[Path] | None,
    typer.Option("--log-dir", "-d", metavar="DIR", help="Where topics are looked for. Repeatable."),
]
LogDirOption = Annotated[
    list[Path] | None,
    typer.Option("--log-dir", "-d", metavar="DIR", help="A log directory. Repeatable."),
]
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
        "--time", metavar="TIME", help=f"The first record at or after a time: {TIME_HELP}."
    ),
]
KeyFormatOption = Annotated[ShownFormat, typer.Option(help="How to show the key.")]
ValueFormatOption = Annotated[ShownFormat, typer.Option(help="How to show values.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting by Kafka's name, of the topics or of the broker, for this run only. "
        "Repeatable.",
    ),
]
ServerPropertiesOption = Annotated[
    Path | None,
    typer.Option(
        "--server-properties",
        metavar="FILE",
        help="The broker's server.properties: its defaults for topics, and metadata.log.dir.",
    ),
]
MetadataLogDirOption = Annotated[
    Path | None,
    typer.Option(
        "--metadata-log-dir",
        metavar="DIR",
        help="Where the node keeps the cluster's metadata, if not in a log directory given.",
    ),
]


def check_conf(conf: Sequence[str] | None, master: str | None) -> None:
    """Settings of a Spark that does not run would be passed over in silence."""
    if conf and master is None:
        raise typer.BadParameter("--conf goes with --master only")
