"""Entry point and command group. A command's module is imported only when that command runs.

To add a command `x-y`, write `cli/x_y.py` with a function `run` whose parameters Typer understands
and whose docstring is the help text, and list it in `COMMANDS`. A module may define `FAILS_WHEN`,
which completes the sentence "Exit status 1 if …"; `SUBCOMMANDS`, functions like `run` by their
names, and then the docstring of `run` is the help text of the group; and `Command`, the class of
the command, if Typer's own does not suffice. Import heavy modules inside functions.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from stratalog import __version__
from stratalog.cli.output import (
    exit_on_closed_pipe,
    print_warnings,
    replace_closed_streams,
    report_compilation,
    report_error,
    use_utf_8,
)
from stratalog.errors import ConfigError, CorruptError, JobError, StratalogError, command_line

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, str]] = {
    "ls": "List topics, partitions and segments of log directories.",
    "read": "Print records, starting at an offset or time; follow a growing log.",
    "find": "Find the file, position and record of an offset or time.",
    "explain": "Show how Kafka looks up an offset or time, step by step.",
    "dump": "Print log segments, indexes and snapshots as kafka-dump-log does.",
    "stats": "Count records and keys, measure sizes of topics; estimate savings.",
    "tune": "Recommend topic settings; simulate others on a log's own batches.",
    "report": "Write an HTML page with charts and tables about log directories.",
    "verify": "Check every CRC, record, index entry, snapshot and checkpoint.",
    "diff": "Compare two copies of a partition or log directory.",
    "recover": "Recover logs after an unclean shutdown; show what is truncated.",
    "reindex": "Rebuild missing or wrong indexes from the logs.",
    "repair": "Remove corrupt bytes, restore from copies; can be undone.",
    "retain": "Delete expired segments as a broker does; explain what is kept.",
    "compact": "Compact topics by key; explain what is eligible, and why.",
    "maintain": "Run retention and compaction continuously, or once.",
    "serve": "Serve log directories to Kafka clients, as a broker does.",
    "topic": "Create, alter, delete and describe topics.",
    "ingest": "Write JSON lines, CSV, Parquet or text files into topics.",
    "export": "Write topics as Parquet or JSON lines.",
    "backup": "Copy log directories into an object store, incrementally.",
    "restore": "Restore log directories from a backup, completely or up to a time.",
    "compile-kernels": "Compile the inner loops ahead of time, so that no command waits.",
}
_FAILS_WHEN: Final = "anything could not be found, read or done"
_EPILOG: Final = (
    "Exit status: 0 on success; 1 if {fails_when}; 2 if the command line or a setting is invalid. "
    "If the output pipe is closed, the command exits silently on SIGPIPE."
)
_GROUP_EPILOG: Final = (
    "'stratalog COMMAND --help' lists all options, with examples. With --json, every command "
    "prints one JSON object per line: names are in camelCase, times in milliseconds, and null "
    "means unknown."
)


class LazyGroup(TyperGroup):
    """Knows the names and one-line help of all commands; loads only the one that runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # for "did you mean" suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@cache
def command_of(name: str) -> Any:
    """The command, from its module."""
    from stratalog.cli.arguments import PlainCommand  # noqa: PLC0415 - not for the group's help

    module = import_module(module_of(name))
    epilog = _EPILOG.format(fails_when=getattr(module, "FAILS_WHEN", _FAILS_WHEN))
    found = new_typer(add_completion=False, no_args_is_help=True, epilog=epilog)
    subcommands = getattr(module, "SUBCOMMANDS", {})
    if subcommands:
        found.callback(help=module.run.__doc__)(module.run)
    cls = getattr(module, "Command", PlainCommand)
    for command, run in (subcommands or {name: module.run}).items():
        found.command(name=command, cls=cls, epilog=epilog)(run)
    return get_command(found)


def module_of(command: str) -> str:
    """The name of the module of a command."""
    return f"stratalog.cli.{command.replace('-', '_')}"


def new_typer(**settings: Any) -> typer.Typer:
    """Plain help and tracebacks: formatted ones would import rich, which is slow."""
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
    """Read, write, check and maintain Apache Kafka log directories without a broker."""
    print_warnings()
    report_compilation()


def _advice(error: StratalogError) -> str:
    """For a log that cannot be read, the command that shows what is wrong, and what to do."""
    found = error.error if isinstance(error, JobError) else error
    path = found.path if isinstance(found, CorruptError) else None
    if path is None or path.suffix != ".log" or "://" in str(path) or "stratalog " in str(error):
        return ""
    return f"; for details run {command_line('verify', path.parent)}"


def main() -> None:
    """Run the command line and exit."""
    replace_closed_streams()
    exit_on_closed_pipe()
    use_utf_8()
    try:
        app(prog_name="stratalog")
    except ConfigError as error:
        report_error(str(error))
        sys.exit(2)
    except StratalogError as error:
        report_error(f"{error}{_advice(error)}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report_error(f"{where}{error.strerror or error}")
    sys.exit(1)
