"""`format("stratalog")`: the reader or writer of a query.

Spark creates one of these per query, in a process of its own, and pickles it. Options are parsed
where they are first needed and passed on as one frozen value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from stratalog.spark.failures import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class StratalogDataSource(DataSource):
    """Log directories of Kafka, with the columns and options of Spark's own Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    @one_line_errors
    def schema(self) -> StructType:
        """All columns. `load()` calls it if no schema is given, so wrong options fail there."""
        from stratalog.bulk.read_planning import subscribed_partitions  # noqa: PLC0415
        from stratalog.partitions.view import LogDirsView  # noqa: PLC0415
        from stratalog.spark.catalog_tables import options_of_new_table, with_table_options  # noqa: PLC0415
        from stratalog.spark.options import parse_read_options, parse_table_options  # noqa: PLC0415
        from stratalog.spark.schema import full_schema  # noqa: PLC0415

        given = options_of_new_table(self.options)
        table = None if given is None else parse_table_options(given)
        options = parse_read_options(self.options if table is None else table.reads)
        if table is None or not table.creates_topics:
            logs = LogDirsView(options.paths, options.remote)
            subscribed_partitions(logs, options)  # raises for a topic that is missing
        schema = full_schema(includes_headers=options.includes_headers)
        return schema if table is None else with_table_options(schema, table)

    @one_line_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from stratalog.spark.catalog_tables import read_options_of  # noqa: PLC0415
        from stratalog.spark.options import batch_read_options  # noqa: PLC0415
        from stratalog.spark.reader import StratalogReader  # noqa: PLC0415

        given = read_options_of(self.options, schema)
        return StratalogReader(batch_read_options(given.options), schema)

    @one_line_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from stratalog.spark.catalog_tables import read_options_of  # noqa: PLC0415
        from stratalog.spark.options import stream_read_options  # noqa: PLC0415
        from stratalog.spark.stream import StratalogStreamReader  # noqa: PLC0415

        given = read_options_of(self.options, schema)
        return StratalogStreamReader(stream_read_options(given.options), schema)

    @one_line_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stratalog.spark.catalog_tables import write_options_of  # noqa: PLC0415
        from stratalog.spark.options import parse_write_options  # noqa: PLC0415
        from stratalog.spark.writer import StratalogWriter  # noqa: PLC0415

        given = write_options_of(self.options, schema)
        options = parse_write_options(given.options)
        return StratalogWriter(options, schema, overwrite=overwrite, is_table=given.is_table)

    @one_line_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from stratalog.spark.options import stream_write_options  # noqa: PLC0415
        from stratalog.spark.writer import StratalogStreamWriter  # noqa: PLC0415

        options = stream_write_options(self.options)
        return StratalogStreamWriter(options, schema, overwrite=overwrite)
