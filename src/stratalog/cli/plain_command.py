"""How a command shows its help, and what is wrong with its command line: plainly, with the names of
its arguments and not their types."""

from __future__ import annotations

import re
from typing import Any, Final

import typer
from typer.core import TyperCommand

_TYPE: Final = re.compile(r" <[^<>]*>$")
_NOISE: Final = "Value error, "
"""Where Typer tells the kind of an exception to those who mistyped a word."""


class PlainCommand(TyperCommand):
    """`TARGET`, where Typer has `TARGET <str>`, and `{TARGET}` in the line of usage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_NOISE)
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
