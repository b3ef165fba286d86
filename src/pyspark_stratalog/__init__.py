"""Where Spark looks for `format("stratalog")`: it imports packages named `pyspark_*` by itself."""

from __future__ import annotations

from stratalog.spark.source import StratalogDataSource as DefaultSource

__all__ = ["DefaultSource"]
