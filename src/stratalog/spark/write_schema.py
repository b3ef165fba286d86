"""Which columns a write takes, in the words of Spark's Kafka connector.

Columns of other names are not written, as with the connector. Beyond it, a `timestamp` column is
taken; without one a record gets the time at which it is staged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.errors import WriteSchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """Raise unless rows of this schema can be written, all to `topic` if that is given."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_topic_column(topic, is_present="topic" in types)
    if "value" not in types:
        raise WriteSchemaError("Required attribute 'value' not found")
    for name, allowed in _TYPES.items():
        kind = types.get(name, allowed[0])
        if kind not in allowed:
            raise WriteSchemaError(
                f"{name} attribute unsupported type {kind}. {name} must be a(n) "
                f"{' or '.join(allowed)}"
            )


def check_topic_column(topic: str | None, *, is_present: bool) -> None:
    """Raise unless rows say where they go, or `topic` does."""
    if topic is None and not is_present:
        raise WriteSchemaError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option (--topic) for setting a topic."
        )
