"""The columns of a read and of a write: those of Spark's Kafka connector.

The Python Data Source API does not prune columns. A schema given by the user does: columns that it
leaves out are not decoded. Its columns may come in any order, with the connector's types.

A write ignores columns with other names, as the connector does. Unlike the connector it takes a
`timestamp` column; a record without one gets the time at which it is staged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.bulk.target import check_topic_column
from stratalog.config.definitions import unknown_name
from stratalog.errors import ConfigError, WriteSchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADERS: Final = "headers"

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}
"""In the connector's order; `headers` only on request."""


def full_schema(*, includes_headers: bool) -> StructType:
    """The schema of a read if the user specifies none."""
    names = [name for name in COLUMNS if includes_headers or name != HEADERS]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Raise ConfigError for a column that records do not have, or that has another type."""
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise unknown_name(field.name, "column", COLUMNS)
        # By name: a column may be declared as nullable or not.
        if field.dataType.simpleString() != expected.simpleString():
            raise ConfigError(
                field.name,
                f"column {field.name} has the type {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it with its type, then cast it",
            )


_HEADERS: Final = "array<struct<key:string,value:binary>>"
_WRITE_TYPES: Final = {
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
    for name, allowed in _WRITE_TYPES.items():
        kind = types.get(name, allowed[0])
        if kind not in allowed:
            raise WriteSchemaError(
                f"{name} attribute unsupported type {kind}. {name} must be a(n) "
                f"{' or '.join(allowed)}"
            )
