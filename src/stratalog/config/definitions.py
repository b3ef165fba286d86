"""How a setting is declared: name, kind, default, one sentence, and the broker's names for it.

A config class is a frozen dataclass whose fields are made by `setting`. The class body is the
table: parsing, checks, error messages and docs/configuration.md all read it through
`definitions_of`. The field's name is Kafka's name with `_` for `.`.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stratalog.config.values import Kind

T = TypeVar("T")

_DEFINITION = "stratalog.definition"


class Synonym(NamedTuple):
    """A broker's name for a topic's setting. `ms` is the length of its unit where that differs."""

    name: str
    kind: Kind[Any]
    ms: int = 1

    def topic_value(self, value: object) -> object:
        """What `value` of this synonym is worth as the topic's setting."""
        return value if self.ms == 1 else cast("int", value) * self.ms


@dataclass(frozen=True)
class Definition:
    """One setting."""

    field: str
    kind: Kind[Any]
    default: object
    doc: str
    synonyms: tuple[Synonym, ...] = ()
    is_carried: bool = False
    """Kept and handed back, but nothing here acts on it."""
    kafka_minimum: int | None = None
    """What a Kafka 4.0 broker asks for, where less is accepted here."""

    @property
    def name(self) -> str:
        """Kafka's name."""
        return self.field.replace("_", ".")

    def parse(self, raw: object, *, name: str | None = None) -> Any:
        """The value of `raw`. The error speaks of `name`, which may be a synonym's."""
        return parse_as(self.kind, name or self.name, raw)


def parse_as(kind: Kind[T], name: str, raw: object) -> T:
    """The value of `raw` as a setting called `name`; ConfigError says what would be allowed."""
    try:
        return kind.parse(raw)
    except ValueError as error:
        allowed = f" ({kind.allowed})" if kind.allowed else ""
        reason = f"{raw!r} {error}; allowed: {kind.type_name}{allowed}"
        raise ConfigError(name, reason, value=raw) from None


class _Declared(NamedTuple):
    kind: Kind[Any]
    doc: str
    synonyms: tuple[Synonym, ...]
    is_carried: bool
    kafka_minimum: int | None


def setting(
    kind: Kind[T],
    default: T,
    doc: str,
    *synonyms: Synonym,
    is_carried: bool = False,
    kafka_minimum: int | None = None,
) -> T:
    """A field of a config class. To a type checker it is its default value."""
    declared = _Declared(kind, doc, synonyms, is_carried, kafka_minimum)
    return dataclasses.field(default=default, metadata={_DEFINITION: declared})


def definitions_of(config_class: type[Any]) -> Mapping[str, Definition]:
    """Every setting of a config class by Kafka's name, in the order of declaration."""
    found = {}
    for field in dataclasses.fields(config_class):
        if _DEFINITION in field.metadata:
            declared: _Declared = field.metadata[_DEFINITION]
            definition = Definition(field.name, declared.kind, field.default, *declared[1:])
            found[definition.name] = definition
    return found


def settle_values(config: object, definitions: Mapping[str, Definition]) -> None:
    """Check every setting of a config under construction and store it as its proper value."""
    for definition in definitions.values():
        value = definition.parse(getattr(config, definition.field))
        object.__setattr__(config, definition.field, value)


def unknown_name(name: str, what: str, known: Iterable[str]) -> ConfigError:
    """The error for a name nobody knows, with the likeliest ones that were meant."""
    close = difflib.get_close_matches(name[:200], list(known), n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ConfigError(name, f"there is no such {what}{hint}", suggestions=tuple(close))
