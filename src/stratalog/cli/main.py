"""Entry point and command group. A command's module is imported only when that command runs.

To add a command `x`: write `cli/x.py` with a function `run` whose parameters Typer understands and
whose docstring is the help text, and list it in `COMMANDS`. `FAILS_WHEN`, if the module has it, is
when the exit status is 1. Heavy imports belong inside functions.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from stratalog import __version__
from stratalog.cli.output import (
    die_of_closed_pipes,
    report_error,
    stand_in_for_closed_streams,
    use_utf_8,
    warn_of_truncations,
)
from stratalog.cli.plain_command import PlainCommand
from stratalog.errors import ConfigError, StratalogError

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, str]] = {
    "ls": "List topics, partitions and segments of log directories.",
    "read": "Print records from an offset or a time on, and follow a growing log.",
    "find": "Find where an offset or a time lies: file, position, record.",
    "explain": "Show every step of a look-up by offset or time.",
    "dump": "Print what Kafka's dump tool prints of any file, or JSON.",
    "stats": "Count keys, dead records, sizes and times of topics.",
    "verify": "Check every CRC, record, index entry, snapshot and checkpoint.",
    "recover": "Recover logs after an unclean stop, or show what that would truncate.",
    "reindex": "Build the indexes of logs again.",
    "retain": "Delete old segments as a broker would, or explain what keeps each.",
    "compact": "Compact topics by key; or say what is due and why, or what keeps a key.",
    "maintain": "Retain and compact a log directory from now on, or once.",
    "ingest": "Write files of JSON lines, CSV, Parquet or text into topics.",
    "export": "Write topics as Parquet or lines of JSON.",
}
_FAILS_WHEN: Final = "something could not be found, read or done"
_EPILOG: Final = (
    "Exit status: 0 when all went well; 1 when {fails_when}; 2 when the command line or a setting "
    "is wrong. A closed pipe ends the command quietly, by SIGPIPE as in other Unix tools."
)
_GROUP_EPILOG: Final = (
    "'stratalog COMMAND --help' has all options, and examples. Commands that look at things have "
    "--json: an object a line, names in camelCase, times in milliseconds, unknown is null."
)


class LazyGroup(TyperGroup):
    """Knows its commands by name and one line of help, and loads the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # what suggestions are made from

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"stratalog.cli.{cmd_name}")
        single = new_typer(add_completion=False)
        cls = getattr(module, "Command", PlainCommand)
        epilog = _EPILOG.format(fails_when=getattr(module, "FAILS_WHEN", _FAILS_WHEN))
        single.command(name=cmd_name, cls=cls, epilog=epilog)(module.run)
        return get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def new_typer(**settings: Any) -> typer.Typer:
    """Plain help text, and no tracebacks dressed up: both would cost the import of rich."""
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


app = new_typer(
    cls=LazyGroup,
    no_args_is_help=True,
    epilog=f"{_GROUP_EPILOG}\n\n{_EPILOG.format(fails_when=_FAILS_WHEN)}",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"stratalog {__version__}")
        raise typer.Exit


@app.callback()
def _stratalog(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            is_eager=True,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Read, write, check and maintain Apache Kafka's log directories, without a broker."""
    warn_of_truncations()


def main() -> None:
    """Run the command line and exit."""
    stand_in_for_closed_streams()
    die_of_closed_pipes()
    use_utf_8()
    try:
        app(prog_name="stratalog")
    except ConfigError as error:
        report_error(str(error))
        sys.exit(2)
    except StratalogError as error:
        report_error(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report_error(f"{where}{error.strerror or error}")
    sys.exit(1)
