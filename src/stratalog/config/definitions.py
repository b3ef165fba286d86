"""How a setting is declared: name, kind, default, the broker's names for it, and one sentence.

A config class is a frozen dataclass whose fields are declared with `setting`, each with its
sentence below it. The class body is the table: parsing, checks, error messages, the broker's
descriptions and docs/configuration.md all read it through `Definitions`. The field's name is
Kafka's name with `_` for `.`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stratalog.config.values import Kind

T = TypeVar("T")

_DEFINITION = "stratalog.definition"
_SHOWN_CHARACTERS = 100


class Synonym(NamedTuple):
    """A broker's name for a setting, and its kind and the length of its unit where they differ."""

    name: str
    kind: Kind[Any] | None = None
    ms: int = 1


@dataclass(frozen=True)
class Definition:
    """One setting."""

    config_class: type[Any]
    field: str
    kind: Kind[Any]
    default: object
    synonyms: tuple[Synonym, ...] = ()
    """A broker's names for it, the strongest first."""
    is_carried: bool = False
    """Validated and kept for a broker; nothing in this package uses it."""
    later_minimum: int | None = None
    """The minimum of Kafka after 4.0, if it is larger."""

    @property
    def name(self) -> str:
        """Kafka's name."""
        return self.field.replace("_", ".")

    @property
    def doc(self) -> str:
        """What it means, in one sentence; empty if the source of Stratalog is not there."""
        sentences = _sentences(self.config_class)  # type: ignore[arg-type]  # classes have a hash
        return sentences.get(self.field, "")

    def parse(self, raw: object) -> Any:
        """The value of `raw`."""
        return _parse_as(self.kind, self.name, raw)

    def choose(self, properties: Mapping[str, object]) -> Any:
        """The value in a broker's `properties`: that of the first synonym that is present, or None.

        The other synonyms are validated as well.
        """
        chosen = None
        for synonym in self.synonyms:
            if synonym.name in properties:
                raw = properties[synonym.name]
                value = _parse_as(synonym.kind or self.kind, synonym.name, raw)
                if synonym.ms != 1 and value > 0:
                    value *= synonym.ms
                chosen = value if chosen is None else chosen
        return chosen


def _parse_as(kind: Kind[T], name: str, raw: object) -> T:
    try:
        return kind.parse(raw)
    except ValueError as error:
        allowed = f" ({kind.allowed})" if kind.allowed else ""
        reason = f"{_shortened(repr(raw))} {error}; allowed: {kind.type_name}{allowed}"
        raise ConfigError(name, reason, value=raw) from None


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


@cache
def _sentences(config_class: type[Any]) -> dict[str, str]:
    """The docstring below each field. Python does not keep them, so the source is read."""
    try:
        source = ast.parse(inspect.getsource(config_class)).body
    except (OSError, SyntaxError):  # removed, or just being replaced
        return {}
    found = {}
    for definition in source:
        for statement, below in pairwise(getattr(definition, "body", [])):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                    found[field] = " ".join(text.split())
    return found


class _Declared(NamedTuple):
    kind: Kind[Any]
    synonyms: tuple[Synonym, ...]
    is_carried: bool
    later_minimum: int | None


def setting(
    kind: Kind[T],
    default: T,
    *synonyms: str | Synonym,
    is_carried: bool = False,
    later_minimum: int | None = None,
) -> T:
    """A field of a config class. To a type checker it is its default value.

    `synonyms` are a broker's names for it, the strongest first."""
    all_synonyms = tuple(Synonym(each) if isinstance(each, str) else each for each in synonyms)
    declared = _Declared(kind, all_synonyms, is_carried, later_minimum)
    return dataclasses.field(default=default, metadata={_DEFINITION: declared})


class Definitions(dict[str, Definition]):
    """Every setting of a config class by Kafka's name, in the order of declaration."""

    @classmethod
    def of(cls, config_class: type[Any]) -> Self:
        """The settings that the fields of a class declare."""
        found = cls()
        for field in dataclasses.fields(config_class):
            if _DEFINITION in field.metadata:
                declared: _Declared = field.metadata[_DEFINITION]
                definition = Definition(
                    config_class, field.name, declared.kind, field.default, *declared[1:]
                )
                found[definition.name] = definition
        return found

    def validate(self, config: object) -> None:
        """Parse and check every setting of a config under construction that is not the default.

        Directories are opened with a config per topic, which has few of its own.
        """
        for definition in self.values():
            raw = getattr(config, definition.field)
            if raw is not definition.default:
                object.__setattr__(config, definition.field, definition.parse(raw))

    def choose(self, properties: Mapping[str, object]) -> dict[str, Any]:
        """The values in a broker's `properties`, by field name."""
        values = {each.field: each.choose(properties) for each in self.values()}
        return {field: value for field, value in values.items() if value is not None}


def unknown_name(name: str, what: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name, with similar ones."""
    shown = _shortened(name)
    close = similar_names(shown, known)
    hint = f"; did you mean {_alternatives(close)}?" if close else ""
    return ConfigError(shown, f"unknown {what}{hint}", suggestions=close)


def _alternatives(names: Sequence[str]) -> str:
    """`'a', 'b' or 'c'`."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def similar_names(name: str, known: Iterable[str], similarity: float = 0.6) -> tuple[str, ...]:
    """Up to three of the `known` names, the most similar first. Upper and lower case are the
    same."""
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), list(spelled), n=3, cutoff=similarity)
    return tuple(spelled[each] for each in close)
