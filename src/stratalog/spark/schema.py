"""The columns of Spark's Kafka connector, and which of them a query asks for.

The Python Data Source API prunes no columns. A schema given by the user does: what it leaves out is
not decoded. Its columns may come in any order, with the connector's types.
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

from stratalog.config.definitions import unknown_name
from stratalog.errors import ConfigError

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
    """What is read when the user names no columns."""
    names = [name for name in COLUMNS if includes_headers or name != HEADERS]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuse a column that no record has, or another type than it has."""
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise unknown_name(field.name, "column", COLUMNS)
        # By name: whether nulls are allowed makes no other type.
        if field.dataType.simpleString() != expected.simpleString():
            raise ConfigError(
                field.name,
                f"column {field.name} is {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it so and cast it",
            )
