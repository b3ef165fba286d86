"""Regular expressions of clients, with RE2: its syntax is that of Kafka's RE2/J, and no expression
keeps it busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import RequestError
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection


def full_matches(regex: str, names: Collection[str], what: str) -> frozenset[str]:
    """The names that the expression matches as a whole. Raises RequestError, which says that `what`
    is wrong."""
    import pyarrow as pa  # noqa: PLC0415  # few clients send an expression
    import pyarrow.compute as pc  # noqa: PLC0415

    listed = pa.array(sorted(names), pa.string())
    try:
        pc.match_substring_regex(listed, regex)  # in brackets, `a)(b` would be valid
        found = pc.match_substring_regex(listed, rf"\A(?:{regex})\z")
    except pa.ArrowInvalid as error:
        raise RequestError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{what} `{regex}` is not a valid regular expression: {error}.",
        ) from None
    return frozenset(listed.filter(found).to_pylist())
