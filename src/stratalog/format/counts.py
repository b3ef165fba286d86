"""Counts of several things as one named tuple, added up field by field."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

C = TypeVar("C", bound=NamedTuple)


def added(first: C, *others: C) -> C:
    """The sum of counts of the same type."""
    return first._make(map(sum, zip(first, *others, strict=True)))
