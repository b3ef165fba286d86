"""The code that the pages about Spark show runs, block by block, on a log of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.bulk.target import NewTopics, Target
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "spark.md": "splits read",
    "spark-writing.md": "",
    "spark-sql.md": "1001",
    "migrating-from-the-kafka-connector.md": "|00000xx",
}
"""And a part of what their code prints."""


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(
    spark: SparkSession, tmp_path: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    (root / "multiseg-0").rename(root / "orders-0")
    Target((root,), NewTopics(1)).find("totals")
    blocks = re.findall(r"^```python\n(.+?)^```", (DOCS / page).read_text(), re.S | re.M)
    stream = spark.readStream.format("stratalog").option("subscribe", "orders").load(str(root))
    names: dict[str, Any] = {
        "spark": spark,
        "path": str(root),
        "df": spark.sql("SELECT 'alice' AS customer, 2 AS apples"),
        "stream": stream.select("key", "value"),
    }
    try:
        for block in blocks:
            code = block.replace("/var/lib/kafka/data", str(root))
            code = code.replace("/data/checkpoints", str(tmp_path / "checkpoints"))
            exec(compile(code, page, "exec"), names)
    finally:
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        for table in spark.catalog.listTables():
            spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")
    assert PAGES[page] in capsys.readouterr().out
