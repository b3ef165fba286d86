"""Writes the manual pages in docs/commands from the commands themselves, or checks them.

python scripts/manual.py            write the pages
python scripts/manual.py --check    fail if a page is not what would be written
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from typer.main import get_command

from stratalog.cli.main import COMMANDS, app, module_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(__file__).parent.parent / "docs" / "commands"


def pages() -> dict[str, str]:
    """Every page by its name."""
    group: Any = get_command(app)
    found = {f"{name}.md": _page(name, group.get_command(None, name)) for name in COMMANDS}
    return {"README.md": _index(), **found}


def _index() -> str:
    lines = [
        "# Commands",
        "",
        "One page per command, generated from the code by `make docs`. What the commands have in "
        "common is in [the command line](../cli.md).",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`]({name}.md) | {text} |" for name, text in COMMANDS.items()),
    ]
    return "\n".join(lines) + "\n"


def _page(name: str, command: Any) -> str:
    parts = [f"# stratalog {name}", ""]
    subcommands = getattr(command, "commands", {})
    module = import_module(module_of(name))
    if len(subcommands) > 1:
        parts += [*_text(module.run.__doc__), ""]
        for sub, found in subcommands.items():
            parts += [f"## {name} {sub}", "", *_command(f"{name} {sub}", found)]
    else:
        parts += _command(name, command)
    epilog = next(iter(subcommands.values()), command).epilog or command.epilog
    parts += ["## Exit status", "", epilog.removeprefix("Exit status: ")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    yield "```"
    yield f"stratalog {name} {' '.join(_usage(command))}".rstrip()
    yield "```"
    yield ""
    yield from _text(command.help or command.callback.__doc__)
    yield ""
    for title, kind in (("argument", "argument"), ("option", "option")):
        rows = [each for each in command.params if each.param_type_name == kind and not each.hidden]
        if rows:
            yield f"| {title} | meaning |"
            yield "|---|---|"
            yield from map(_row, rows)
            yield ""


def _usage(command: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for each in command.params:
        if each.param_type_name == "argument":
            text = each.metavar or each.name.upper()
            text += "..." if each.nargs == -1 else ""
            yield text if each.required else f"[{text}]"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
        value = parameter.metavar or _choices(parameter)
        names += f" `{value}`" if value and not parameter.is_flag else ""
    text = parameter.help or ""
    is_shown = parameter.default not in (None, "", False, ()) and not callable(parameter.default)
    if is_shown and not parameter.required and parameter.param_type_name == "option":
        text += f" Default: `{_default(parameter)}`."
    return f"| {names} | {_cell(text)} |".replace("  ", " ")


def _default(parameter: Any) -> str:
    if parameter.is_flag and parameter.secondary_opts:
        return str(parameter.opts[0] if parameter.default else parameter.secondary_opts[0])
    return str(getattr(parameter.default, "value", parameter.default))


def _choices(parameter: Any) -> str:
    """The values to choose from; empty if any value will do."""
    annotation = parameter.type_descriptor.annotation
    for kind in (annotation, *get_args(annotation)):
        values = get_args(kind) if get_origin(kind) is Literal else list(_members(kind))
        if values:
            return "/".join(map(str, values))
    return ""


def _members(kind: Any) -> Iterator[str]:
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        yield from (str(each.value) for each in kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _text(help_text: str | None) -> Iterator[str]:
    """Paragraphs as they are; examples and other verbatim blocks as code."""
    for block in inspect.cleandoc(help_text or "").replace("\f", "").split("\n\n"):
        if not block.startswith("\b"):
            yield " ".join(block.split())
        else:
            title, *lines = block.removeprefix("\b").strip("\n").split("\n")
            yield f"{title.rstrip(':')}:"
            yield ""
            yield "```"
            yield inspect.cleandoc("\n".join(lines))
            yield "```"
        yield ""


def main() -> None:
    wanted = pages()
    stale = [
        name
        for name, text in wanted.items()
        if not (PAGES / name).exists() or (PAGES / name).read_text() != text
    ]
    stale += [path.name for path in PAGES.glob("*.md") if path.name not in wanted]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"not current: {', '.join(stale)}; run python scripts/manual.py")
        return
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (PAGES / name).write_text(text)
    for name in stale:
        if name not in wanted:
            (PAGES / name).unlink()


if __name__ == "__main__":
    main()
