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
        from stratalog.bulk.planning import subscribed  # noqa: PLC0415
        from stratalog.partitions.view import LogDirsView  # noqa: PLC0415
        from stratalog.spark.options import parse_read_options  # noqa: PLC0415
        from stratalog.spark.schema import full_schema  # noqa: PLC0415

        options = parse_read_options(self.options)
        subscribed(LogDirsView(options.paths), options)  # raises for a topic that is missing
        return full_schema(includes_headers=options.includes_headers)

    @one_line_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from stratalog.spark.options import batch_read_options  # noqa: PLC0415
        from stratalog.spark.reader import StratalogReader  # noqa: PLC0415

        return StratalogReader(batch_read_options(self.options), schema)

    @one_line_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from stratalog.spark.options import stream_read_options  # noqa: PLC0415
        from stratalog.spark.stream import StratalogStreamReader  # noqa: PLC0415

        return StratalogStreamReader(stream_read_options(self.options), schema)

    @one_line_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stratalog.spark.options import parse_write_options  # noqa: PLC0415
        from stratalog.spark.writer import StratalogWriter  # noqa: PLC0415

        return StratalogWriter(parse_write_options(self.options), schema, overwrite=overwrite)

    @one_line_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from stratalog.spark.options import stream_write_options  # noqa: PLC0415
        from stratalog.spark.writer import StratalogStreamWriter  # noqa: PLC0415

        options = stream_write_options(self.options)
        return StratalogStreamWriter(options, schema, overwrite=overwrite)
