"""Root files of a log directory: each fault in them, found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import NotALogDirError
from stratalog.format.names import RootFile
from stratalog.log_dir import LogDir
from stratalog.maintenance.verify.directory import verify_directory, verify_partition
from stratalog.maintenance.verify.findings import Fault, Severity
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.maintenance.verify.findings import Finding

RECOVERY = RootFile.RECOVERY_POINTS.value
START = RootFile.LOG_START_OFFSETS.value
WATERMARK = RootFile.HIGH_WATERMARKS.value
CLEANER = RootFile.CLEANER_OFFSETS.value


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of 1500 records."""
    return GoldenCase("multiseg").copy_to(tmp_path)


def found(root: Path, fault: Fault) -> list[Finding]:
    return [finding for finding in verify_directory(root).findings if finding.code == fault.code]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "fault", "severity"),
    [
        (RECOVERY, "0\n1\nmultiseg 0 1501\n", Fault.CHECKPOINT_PAST_END, Severity.ERROR),
        (WATERMARK, "0\n1\nmultiseg 0 1501\n", Fault.CHECKPOINT_PAST_END, Severity.WARNING),
        (START, "0\n1\nmultiseg 0 1501\n", Fault.LOG_START_PAST_END, Severity.ERROR),
        (CLEANER, "0\n1\nmultiseg 0 1501\n", Fault.CHECKPOINT_STALE, Severity.NOTE),
        (RECOVERY, "0\n1\nother 0 7\n", Fault.CHECKPOINT_UNKNOWN_PARTITION, Severity.NOTE),
        (RECOVERY, "0\n1\nmultiseg 0 -7\n", Fault.BAD_CHECKPOINT, Severity.WARNING),
        (RECOVERY, "0\n2\nmultiseg 0 7\n", Fault.BAD_CHECKPOINT, Severity.WARNING),
        (START, "1\n0\n", Fault.BAD_CHECKPOINT, Severity.WARNING),
        ("meta.properties", "version=abc\n", Fault.BAD_METADATA, Severity.ERROR),
    ],
)
def test_a_fault_in_a_root_file(
    root: Path, name: str, content: str, fault: Fault, severity: Severity
) -> None:
    (root / name).write_text(content)
    (finding,) = found(root, fault)
    assert finding.path == str(root / name)
    assert finding.severity is severity


def test_a_directory_that_stops_a_broker(root: Path) -> None:
    (root / "lost+found").mkdir()
    (finding,) = found(root, Fault.BAD_NAME)
    assert finding.path == str(root / "lost+found")


def test_a_partition_on_its_way_out(root: Path) -> None:
    (root / f"gone-0.{'a' * 32}-delete").mkdir()
    assert len(found(root, Fault.MOVED_DIRECTORY)) == 1


def test_a_partition_without_a_segment(root: Path) -> None:
    (root / "empty-0").mkdir()
    (finding,) = found(root, Fault.NO_SEGMENT)
    assert finding.severity is Severity.WARNING


def test_good_checkpoints_are_not_mentioned(root: Path) -> None:
    for name in (RECOVERY, WATERMARK):
        (root / name).write_text("0\n1\nmultiseg 0 1500\n")
    assert verify_directory(root).at_least(Severity.WARNING) == ()


def test_a_torn_tail_is_an_error_after_a_clean_stop(root: Path) -> None:
    log = root / "multiseg-0" / "00000000000000001485.log"
    log.write_bytes(log.read_bytes()[:-5])
    assert found(root, Fault.TORN_TAIL)
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    assert found(root, Fault.TRUNCATED_SEALED_LOG)


def _shorten_time_index(partition: Path, base_offset: int) -> None:
    """As if the process had been killed before the last entry was written."""
    index = partition / f"{base_offset:020d}.timeindex"
    index.write_bytes(index.read_bytes()[:-12])


@pytest.mark.parametrize(
    ("base_offset", "recovery_point", "severity"),
    [
        (1485, 1500, Severity.WARNING),
        (1485, None, Severity.WARNING),
        (453, 453, Severity.WARNING),
        (453, 601, Severity.WARNING),
        (453, None, Severity.WARNING),
        (453, 602, Severity.ERROR),
        (453, 1500, Severity.ERROR),
    ],
)
def test_an_index_that_recovery_will_rebuild_is_a_warning(
    root: Path, base_offset: int, recovery_point: int | None, severity: Severity
) -> None:
    """Recovery begins with the segment of the recovery point."""
    if recovery_point is not None:
        (root / RECOVERY).write_text(f"0\n1\nmultiseg 0 {recovery_point}\n")
    _shorten_time_index(root / "multiseg-0", base_offset)
    (finding,) = found(root, Fault.INDEX_SHORT)
    assert finding.severity is severity
    assert ("the index is rebuilt" in finding.advice) == (severity is Severity.WARNING)
    with LogDir.open(root, create=False, background=False) as logs:
        logs.partition("multiseg", 0)
    assert bool(found(root, Fault.INDEX_SHORT)) == (severity is Severity.ERROR)


def test_a_short_index_is_an_error_where_no_recovery_comes(root: Path) -> None:
    _shorten_time_index(root / "multiseg-0", 1485)
    (lone,) = verify_partition(root / "multiseg-0").at_least(Severity.WARNING)
    assert (lone.code, lone.severity) == (Fault.INDEX_SHORT.code, Severity.ERROR)
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (finding,) = found(root, Fault.INDEX_SHORT)
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize("left", [b"", None])
def test_an_abort_that_is_not_yet_in_the_index_after_a_kill(
    tmp_path: Path, left: bytes | None
) -> None:
    """The marker is written before the entry; the file is created in between."""
    root = GoldenCase("txn").copy_to(tmp_path)
    last = max(root.glob("txn-0/*.txnindex"))
    for name in root.glob("txn-0/*"):
        if name.name[:20] > last.name[:20] and name.suffix != ".snapshot":
            name.unlink()
    entries = last.read_bytes()
    last.unlink()
    if left is not None:
        last.write_bytes(left)
    findings = verify_directory(root).at_least(Severity.WARNING)
    assert {(each.code, each.severity) for each in findings} >= {
        (Fault.TXN_INDEX_MISSING_ENTRY.code, Severity.WARNING)
    }
    assert not [each for each in findings if each.severity is Severity.ERROR]
    (advice,) = {each.advice for each in findings if "txn-index" in each.code}
    assert "until the log is recovered after this unclean shutdown" in advice
    with LogDir.open(root, create=False, background=False) as logs:
        logs.partition("txn", 0)
    assert last.read_bytes() == entries


def test_a_corrupt_index_stays_an_error_after_a_kill(root: Path) -> None:
    """A kill cannot have left it, and readers are led astray until the log is opened."""
    index = root / "multiseg-0" / "00000000000000001485.timeindex"
    data = bytearray(index.read_bytes())
    data[3] ^= 1
    index.write_bytes(data)
    assert verify_directory(root).has_errors


def test_the_cleaner_checkpoint_explains_gaps(root: Path) -> None:
    partition = root / "multiseg-0"
    for path in partition.glob("00000000000000000453.*"):
        path.unlink()
    (gap,) = found(root, Fault.OFFSET_GAP)
    assert gap.severity is Severity.WARNING
    (root / CLEANER).write_text("0\n1\nmultiseg 0 602\n")
    (gap,) = found(root, Fault.OFFSET_GAP)
    assert gap.severity is Severity.NOTE


def test_no_log_directory(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError, match="not a log directory"):
        verify_directory(tmp_path)
    with pytest.raises(NotALogDirError, match="no such directory"):
        verify_directory(tmp_path / "nowhere")
