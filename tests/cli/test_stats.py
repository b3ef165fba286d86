"""`stratalog stats` as its users run it."""

from __future__ import annotations

import pytest

from stratalog.errors import ConfigError
from tests.cli.command import inside, stratalog
from tests.golden.cases import GOLDEN_DIR

COMPACT_TXN = GOLDEN_DIR / "compact-txn"


def test_a_table_of_partitions() -> None:
    lines = inside("stats", COMPACT_TXN, GOLDEN_DIR / "multiseg").lines
    assert lines[0].split()[:5] == ["TOPIC", "PARTITION", "RECORDS", "KEYS", "SUPERSEDED"]
    assert lines[1].split()[:5] == ["compact-txn", "0", "17", "5", "70.6%"]
    assert lines[2].split()[:5] == ["multiseg", "0", "1,500", "1,500", "0.0%"]
    assert lines[3].startswith("1,517 records, ")


def test_histograms_and_what_if() -> None:
    args = ("--histograms", "--what-if", "retention.ms=1")
    lines = inside("stats", GOLDEN_DIR / "multiseg", *args).lines
    assert (
        "multiseg:0: retention.ms=1 would free 144.1 KiB now, with cleanup.policy=delete (assumed)"
        in lines
    )
    assert "   up to 64 B  ######################################## 750" in lines
    assert "  2023-11-14T22:00  ######################################## 1,500" in lines


def test_json() -> None:
    partition, summary = inside("stats", "multiseg:0", "-d", GOLDEN_DIR / "multiseg", "--json").rows
    assert partition["kind"] == "partition"
    assert partition["records"] == partition["keys"] == 1500
    assert partition["hours"] == [
        {"startMs": 1699999200000, "records": 1500, "payloadBytes": 96750}
    ]
    assert set(partition["codecs"]) == {"snappy", "lz4", "zstd", "gzip"}
    assert summary["records"] == 1500
    assert summary["sizeBytes"] == 147_513


@pytest.mark.slow
def test_what_is_wrong_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"retention\.day"):
        inside("stats", COMPACT_TXN, "--what-if", "retention.day=1")
    assert stratalog("stats", COMPACT_TXN, "--what-if", "retention.ms").status == 2
