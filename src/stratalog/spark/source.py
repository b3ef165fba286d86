"""`format("stratalog")`: which reader or writer serves a query. Nothing else lives here.

Spark makes one of these per query, in a process of its own, and ships it pickled. Options are
parsed where they are first needed and travel on as one frozen value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from stratalog.spark.failures import told_in_one_line

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

    @told_in_one_line
    def schema(self) -> StructType:
        """All columns. Called by `load()` when no schema is given, so bad options end there."""
        from stratalog.spark.options import ReadOptions  # noqa: PLC0415
        from stratalog.spark.schema import full_schema  # noqa: PLC0415
        from stratalog.spark.topics import check_topics  # noqa: PLC0415

        options = ReadOptions.parse(self.options)
        check_topics(options)
        return full_schema(includes_headers=options.includes_headers)

    @told_in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        from stratalog.spark.options import ReadOptions  # noqa: PLC0415
        from stratalog.spark.reader import StratalogReader  # noqa: PLC0415

        return StratalogReader(ReadOptions.parse(self.options).for_batch(), schema)

    @told_in_one_line
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from stratalog.spark.options import ReadOptions  # noqa: PLC0415
        from stratalog.spark.stream import StratalogStreamReader  # noqa: PLC0415

        return StratalogStreamReader(ReadOptions.parse(self.options).for_stream(), schema)

    @told_in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stratalog.spark.write_options import WriteOptions  # noqa: PLC0415
        from stratalog.spark.writer import StratalogWriter  # noqa: PLC0415

        return StratalogWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    @told_in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from stratalog.spark.stream_writer import StratalogStreamWriter  # noqa: PLC0415
        from stratalog.spark.write_options import WriteOptions  # noqa: PLC0415

        options = WriteOptions.parse(self.options).for_stream()
        return StratalogStreamWriter(options, schema, overwrite=overwrite)
