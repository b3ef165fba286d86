"""How a command shows its help: plainly, with the names of its arguments and not their types."""

from __future__ import annotations

import re
from typing import Any, Final

from typer.core import TyperCommand

_TYPE: Final = re.compile(r" <[^<>]*>$")


class PlainCommand(TyperCommand):
    """`TARGET`, where Typer has `TARGET <str>`, and `{TARGET}` in the line of usage."""

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
