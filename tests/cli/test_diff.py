"""Two copies of a log: the differences that are planted are the differences that are found."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.maintenance.diff import compare_partitions
from tests.cli.command import inside, stratalog
from tests.golden.cases import GOLDEN_DIR, GoldenCase
from tests.log.damaging import flip

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GoldenCase("multiseg").partition_dir
MIDDLE = f"{453:020d}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(MULTISEG, tmp_path / "multiseg-0")


def _log(path: Path, *batches: bytes) -> Path:
    path.mkdir(parents=True)
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))
    return path


def _batch(offsets: range, epoch: int = 0, value: bytes = b"v", **fields: object) -> bytes:
    records = [Record(offset, 1000, b"k", value) for offset in offsets]
    return encode_batch(records, BatchFields(partition_leader_epoch=epoch, **fields))  # type: ignore[arg-type]


def test_the_same(copy: Path) -> None:
    result = inside("diff", MULTISEG, copy)
    assert (result.lines, result.status) == (["1 partition: no difference"], 0)


def test_a_shorter_copy(copy: Path) -> None:
    for path in copy.glob(f"{1485:020d}.*"):
        path.unlink()
    result = inside("diff", copy, MULTISEG)
    assert result.status == 1
    assert "  log end offset: 1485 in A, 1500 in B" in result.lines
    assert any(
        line.startswith("  offsets 1485 to 1499: ") and line.endswith("only in B")
        for line in result.lines
    )
    assert f"  {1485:020d}.log: only in B" in result.lines


def test_corruption(copy: Path) -> None:
    flip(copy / f"{MIDDLE}.log", 5000, 0)
    found = compare_partitions(MULTISEG, copy)
    (corrupt,) = found.corrupt[1]
    (batches,) = found.batches
    assert (batches.first_offset, batches.next_offset) == (
        corrupt.first_offset,
        corrupt.next_offset,
    )
    assert batches.batches == (1, 0)
    assert not found.has_same_records


@pytest.mark.parametrize("at", [6, 14], ids=["base offset", "leader epoch"])
def test_what_no_crc_covers(copy: Path, at: int) -> None:
    data = bytearray((copy / f"{MIDDLE}.log").read_bytes())
    batch = 12 + int.from_bytes(data[8:12])  # the second batch
    flip(copy / f"{MIDDLE}.log", batch + at, 4)
    result = inside("diff", MULTISEG, copy, "--records")
    assert result.status == 1
    assert (
        f"  corrupt in B: {MIDDLE}.log at byte {batch}: its base offset or leader epoch is wrong"
        in result.lines
    )


def test_a_partition_without_segments(tmp_path: Path, copy: Path) -> None:
    empty = tmp_path / "empty" / "multiseg-0"
    empty.mkdir(parents=True)
    (empty / "partition.metadata").write_bytes((copy / "partition.metadata").read_bytes())
    for root in (empty.parent, copy.parent):
        (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
        shutil.copytree(copy, root / "multiseg-1")
    result = inside("diff", empty.parent, copy.parent, "--json")
    assert result.status == 1
    assert [row["name"] for row in result.rows[:-1]] == ["multiseg-1"]
    assert result.rows[-1] == {"kind": "summary", "partitions": 2, "differing": 0, "failed": 1}
    assert "multiseg-0: " in result.stderr
    assert "no segment" in result.stderr


def test_many_differences_are_counted_quickly(tmp_path: Path) -> None:
    count = 10_000
    same, other = _batch(range(1)), _batch(range(1), value=b"w")

    def log(path: Path, odd: bytes) -> Path:
        parts = [n.to_bytes(8) + (odd if n % 2 else same)[8:] for n in range(count)]
        return _log(path, *parts)

    found = compare_partitions(log(tmp_path / "a-0", same), log(tmp_path / "b-0", other))
    assert len(found.batches) == count // 2
    assert found.record_count == count // 2


def test_indexes_and_snapshots(copy: Path) -> None:
    flip(copy / f"{MIDDLE}.index", 20, 0)
    (copy / f"{MIDDLE}.snapshot").unlink()
    with (copy / f"{1485:020d}.timeindex").open("ab") as index:
        index.write(bytes(1200))  # preallocated
    found = compare_partitions(MULTISEG, copy)
    assert [file.name for file in found.files] == [f"{MIDDLE}.index", f"{MIDDLE}.snapshot"]
    assert found.files[1].what == "only in A"
    assert found.has_same_records
    assert inside("diff", MULTISEG, copy).status == 1
    assert inside("diff", MULTISEG, copy, "--records").status == 0


def test_other_batches_with_the_same_records(tmp_path: Path) -> None:
    a = _log(tmp_path / "a" / "t-0", _batch(range(4)), _batch(range(4, 8)))
    b = _log(tmp_path / "b" / "t-0", _batch(range(8)))
    found = compare_partitions(a, b)
    assert [tuple(each) for each in found.batches] == [(0, 8, (2, 1))]
    assert found.has_same_records
    assert not found.is_same


def test_records_and_epochs(tmp_path: Path) -> None:
    first = _batch(range(4))
    a = _log(
        tmp_path / "a" / "t-0", first, _batch(range(4, 8), epoch=1), _batch(range(8, 9), epoch=1)
    )
    b = _log(tmp_path / "b" / "t-0", first, _batch(range(4, 9), epoch=2, value=b"w"))
    (a / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 4\n")
    (b / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n2 4\n")
    result = inside("diff", a, b)
    assert result.lines[1:] == [
        "  leader epochs diverge at offset 4: 1 in A, 2 in B",
        "  offsets 4 to 8: different batches (2 in A, 1 in B)",
        *(f"  record {offset}: different value" for offset in range(4, 9)),
        "  leader-epoch-checkpoint: epoch 1 starts at 4 in A, is missing in B",
        "1 partition: 1 with differences",
    ]
    kinds = [row["kind"] for row in inside("diff", a, b, "--json").rows]
    assert kinds == ["partition", "divergence", "batches", *["record"] * 5, "file", "summary"]


def test_headers_and_missing_records(tmp_path: Path) -> None:
    records = [Record(0, 1, b"k", b"v", (Header("h", b"1"),)), Record(1, 1, b"k", b"v")]
    a = _log(tmp_path / "a" / "t-0", encode_batch(records))
    b = _log(tmp_path / "b" / "t-0", encode_batch([records[0]._replace(headers=(), timestamp=2)]))
    found = compare_partitions(a, b)
    assert [tuple(each) for each in found.records] == [
        (0, "different timestamp, headers"), (1, "only in A"),
    ]  # fmt: skip


def test_log_directories(tmp_path: Path) -> None:
    a = GoldenCase("multiseg").copy_to(tmp_path / "a")
    b = GoldenCase("multiseg").copy_to(tmp_path / "b")
    shutil.copytree(a / "multiseg-0", a / "other-0")
    result = inside("diff", a, b)
    assert result.lines == ["other-0: not in B", "2 partitions: 1 with differences"]
    assert inside("diff", f"{a}/multiseg", f"{b}/multiseg").status == 0


@pytest.mark.slow
def test_before_and_after_recovery() -> None:
    for name in ("u-torn", "u-badcrc"):
        case = GOLDEN_DIR / name
        assert stratalog("diff", case / "before", case / "after").status == 1
    missing = stratalog("diff", GOLDEN_DIR / "none", GOLDEN_DIR / "multiseg")
    assert (missing.status, os.linesep in missing.stderr) == (1, True)
