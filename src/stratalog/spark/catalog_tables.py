"""Tables of Spark's catalog: where their options are kept, and what may be inserted.

Spark 4.3 passes the options of a table to a Python source when the table is created, and not when
it is read or written. What it passes each time are the columns of the table, with their metadata:
the options are kept there.

For `INSERT` Spark gives the columns of the query the metadata of the table's columns, unless the
query has all columns of the table already. `INSERT INTO copy SELECT * FROM orders` therefore comes
with the options of `orders`, and nothing shows that it was meant for `copy`. So rows that have an
offset are refused where the options come from a table: only rows of a log have one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from stratalog.errors import WriteSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from stratalog.spark.options import TableOptions

_OPTION: Final = "option."
_METADATA: Final = "stratalog.options"


def options_of_new_table(properties: Mapping[str, str]) -> dict[str, str] | None:
    """The options of `CREATE TABLE`; None if these properties are the options of a query.

    Spark passes everything that it knows of a table: its options (once with a prefix), its
    location, provider and owner, and what `TBLPROPERTIES` sets.
    """
    if "provider" not in properties:
        return None
    options = {
        name.removeprefix(_OPTION): value
        for name, value in properties.items()
        if name.startswith(_OPTION)
    }
    if "location" in properties:
        options["path"] = properties["location"]
    return options


def with_table_options(schema: StructType, options: TableOptions) -> StructType:
    """The columns of a table that is created with these options."""
    metadata = {_METADATA: json.dumps(options._asdict(), sort_keys=True)}
    return StructType([StructField(each.name, each.dataType, True, metadata) for each in schema])


@dataclass(frozen=True)
class QueryOptions:
    """The options of a query, and whether they are those of a table."""

    options: Mapping[str, str]
    is_table: bool = False


def read_options_of(given: Mapping[str, str], schema: StructType) -> QueryOptions:
    """The options of the table with this schema, if no path is given. The given options override
    them."""
    stored = None if "path" in given else _stored(schema)
    if stored is None:
        return QueryOptions(given)
    return QueryOptions({**stored["reads"], **given}, is_table=True)


def write_options_of(given: Mapping[str, str], schema: StructType) -> QueryOptions:
    """The options of the table with this schema, if no options are given at all."""
    stored = None if given else _stored(schema)
    if stored is None:
        return QueryOptions(given)
    return QueryOptions(stored["writes"], is_table=True)


def _stored(schema: StructType) -> dict[str, dict[str, str]] | None:
    """The options that all columns have."""
    found = {field.metadata.get(_METADATA) for field in schema}
    text = found.pop() if len(found) == 1 else None
    stored: dict[str, dict[str, str]] | None = None if text is None else json.loads(text)
    return stored


def check_inserted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows. Raises WriteSchemaError for one that has an offset."""
    for batch in batches:
        offsets = batch.column("offset")
        if offsets.null_count < len(offsets):
            raise WriteSchemaError(
                "rows with an offset cannot be inserted into a table. Name the columns: "
                "INSERT INTO table (key, value) SELECT key, value FROM ..."
            )
        yield batch
