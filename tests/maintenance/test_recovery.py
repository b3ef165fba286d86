"""Opening a log: what is read, what is believed, and what is done about what a crash left."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.config import LogConfig
from stratalog.errors import FlushedCorruptionError, InvalidNameError, StorageError
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.producer_state_manager import ProducerStateConfig
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from stratalog.storage.log_file import LocalFile
from tests.log.building import log_name, plain_records, plain_segment, write_partition
from tests.model.index_checks import check_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=960, index_interval_bytes=200)
UNCLEAN = LoadPoint()
CLEAN = LoadPoint(was_clean=True)


def opened(
    path: Path, point: LoadPoint = UNCLEAN, config: LogConfig = CONFIG, now_ms: int = NOW_MS
) -> PartitionLog:
    return open_log(path, config, disk=Disk(), now_ms=lambda: now_ms, point=point)


def batch_at(offset: int, *, count: int = 1, fields: BatchFields = BatchFields()) -> bytes:  # noqa: B008
    return encode_batch(plain_records(offset, count), fields)


def fill(path: Path, records: int, config: LogConfig = CONFIG) -> Path:
    """A log of single-record batches, closed cleanly. The last producer's batch is idempotent."""
    with opened(path, CLEAN, config) as log:
        for offset in range(records - 1):
            log.append_as_follower(batch_at(offset))
        producer = BatchFields(producer_id=5, producer_epoch=0, base_sequence=0)
        log.append_as_follower(batch_at(records - 1, fields=producer))
    return path


def bases_of(path: Path) -> list[int]:
    return sorted(int(log.stem) for log in path.glob("*.log"))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# -- what is read


class Reads:
    """Files opened and bytes read from logs while it is on. Audit hooks stay for ever, so there is
    one for all tests."""

    def __init__(self) -> None:
        self.is_on = False
        self.opened: list[str] = []
        self.log_bytes = 0
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_on and event == "open" and isinstance(args[0], (str, os.PathLike)):
            self.opened.append(os.fspath(args[0]).rpartition("/")[2])


READS = Reads()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    read = LocalFile.read

    def counted(self: LocalFile, position: int, size_bytes: int) -> bytes:
        data = read(self, position, size_bytes)
        READS.log_bytes += len(data) if READS.is_on else 0
        return data

    monkeypatch.setattr(LocalFile, "read", counted)
    READS.opened, READS.log_bytes = [], 0
    yield READS
    READS.is_on = False


def test_after_a_clean_stop_only_names_and_the_last_segment_are_read(
    tmp_path: Path, reads: Reads
) -> None:
    big = replace(CONFIG, segment_bytes=200_000, segment_index_bytes=48_000)
    path = fill(tmp_path / "t-0", 5_000, big)
    bases = bases_of(path)
    assert len(bases) > 2
    reads.is_on = True
    log = opened(path, CLEAN, big)
    reads.is_on = False
    last = log_name(bases[-1], "")
    others = {name for name in reads.opened if not name.startswith(last)}
    assert others <= {"t-0", log_name(5_000, ".snapshot"), "leader-epoch-checkpoint"}
    last_bytes = (path / log_name(bases[-1])).stat().st_size
    assert last_bytes <= reads.log_bytes < last_bytes + 20_000  # once, and some headers
    assert log.log_end_offset == 5_000
    assert log.recovery_point == 5_000
    log.close()


def test_after_an_unclean_stop_only_what_the_recovery_point_requires_is_read(
    tmp_path: Path, reads: Reads
) -> None:
    path = fill(tmp_path / "t-0", 100)
    bases = bases_of(path)
    reads.is_on = True
    log = opened(path, LoadPoint(recovery_point=bases[-2] + 3))
    reads.is_on = False
    logs = {name for name in reads.opened if name.endswith(".log")}
    assert logs == {log_name(base) for base in bases[-2:]}
    assert log.recovery_point == bases[-2] + 3
    assert [record.offset for record in log.read()] == list(range(100))
    log.close()


def test_opening_and_closing_what_is_clean_changes_nothing(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    before = contents(path)
    opened(path, CLEAN).close()
    assert contents(path) == before


def test_recovering_what_is_good_changes_nothing(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    before = contents(path)
    opened(path).close()
    after = contents(path)
    assert {name: after[name] for name in before} == before
    assert all(name.endswith(".snapshot") for name in after.keys() - before.keys())


# -- what is there, and what is not


def test_a_new_partition(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 0, 0)
        assert str(log.topic_partition) == "t-0"
        assert log.leader_epoch == 0
    names = sorted(file.name for file in (tmp_path / "t-0").iterdir())
    segment = [log_name(0, suffix) for suffix in (".index", ".log", ".timeindex")]
    assert names == [*segment, "leader-epoch-checkpoint"]


def test_a_new_partition_that_starts_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0", LoadPoint(log_start_offset=70)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (70, 70)
        assert log.append(batch_at(0)).first_offset == 70


def test_not_a_partition(tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError):
        opened(tmp_path / "no partition")
    with pytest.raises(InvalidNameError):
        opened(tmp_path / "t-0.0123456789abcdef0123456789abcdef-unknown")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_is_built_again(tmp_path: Path, suffix: str) -> None:
    """Even after a clean stop, and in whichever segment."""
    path = fill(tmp_path / "t-0", 100)
    before = contents(path)
    for base in (bases_of(path)[1], bases_of(path)[-1]):
        (path / log_name(base, suffix)).unlink()
    opened(path, CLEAN).close()
    after = contents(path)
    assert {name: after[name] for name in before if name.endswith("index")} == {
        name: before[name] for name in before if name.endswith("index")
    }


def test_indexes_without_a_log_are_removed(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 20)
    for suffix in (".index", ".timeindex", ".txnindex"):
        (path / log_name(15, suffix)).write_bytes(bytes(48))
    opened(path, CLEAN).close()
    assert not list(path.glob("*00015.*"))


def test_a_damaged_transaction_index_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    in_txn = BatchFields(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    with opened(path, CLEAN) as log:
        log.append(batch_at(0, fields=in_txn))
        log.end_transaction(5, 0, commit=False)
    index = path / log_name(0, ".txnindex")
    good = index.read_bytes()
    assert len(good) == 34
    index.write_bytes(b"\x00\x07" + good[2:])
    with opened(path, CLEAN) as log:
        assert [txn.last_offset for txn in log.aborted_transactions()] == [1]
    assert index.read_bytes() == good


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 20)
    others = {"notes.txt": b"mine", ".hidden": b"", "00000000000000000003.staged": b"?"}
    for name, data in others.items():
        (path / name).write_bytes(data)
    opened(path).close()
    after = contents(path)
    assert {name: after[name] for name in others} == others


CORRUPT_EPOCHS = [b"not a checkpoint", b"0\n5\n1 1\n", bytes(10), b"7\n1\n0 0\n"]


@pytest.mark.parametrize("corrupt", CORRUPT_EPOCHS)
@pytest.mark.parametrize("point", [CLEAN, UNCLEAN], ids=["clean", "unclean"])
def test_corrupt_epochs_are_rebuilt_from_all_segments(
    tmp_path: Path, point: LoadPoint, corrupt: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t-0"
    with opened(path, CLEAN) as log:
        for epoch in (2, 5, 6):
            log.become_leader(epoch)
            for _ in range(30):
                log.append(batch_at(0))
    good = (path / "leader-epoch-checkpoint").read_bytes()
    assert good == b"0\n3\n2 0\n5 30\n6 60\n"
    assert len(bases_of(path)) > 3
    (path / "leader-epoch-checkpoint").write_bytes(corrupt)
    with opened(path, point) as log:
        assert (path / "leader-epoch-checkpoint").read_bytes() == good
        assert log.leader_epoch == 6
        log.append(batch_at(0))
    assert (path / "leader-epoch-checkpoint").read_bytes() == good
    [warning] = [text for text in caplog.messages if "leader-epoch-checkpoint" in text]
    assert "epoch 2 from offset 0, epoch 5 from offset 30, epoch 6 from offset 60" in warning


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        b"",
        b"0\n1\n0 57859\n",
        b"0\n1\n2 0\n",
        b"0\n1\n9 0\n",
        b"0\n1\n6 5000\n",
        b"0\n3\n5 0\n2 30\n6 60\n",
        b"0\n3\n2 30\n5 30\n6 60\n",
    ],
)
@pytest.mark.parametrize("is_rolled", [False, True])
def test_epochs_that_the_batches_contradict_are_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: bytes | None, is_rolled: bool
) -> None:
    """The next append must neither hide the earlier epochs nor have a lower one."""
    path = tmp_path / "t-0"
    with opened(path, CLEAN) as log:
        for epoch in (2, 5, 6):
            log.become_leader(epoch)
            for _ in range(30):
                log.append(batch_at(0))
        if is_rolled:
            log.roll()
    file = path / "leader-epoch-checkpoint"
    good = file.read_bytes()
    file.unlink()
    if wrong is not None:
        file.write_bytes(wrong)
    with opened(path, CLEAN) as log:
        assert file.read_bytes() == good
        assert log.leader_epoch == 6
    [warning] = [text for text in caplog.messages if "leader-epoch-checkpoint" in text]
    assert "epoch 2 from offset 0, epoch 5 from offset 30, epoch 6 from offset 60" in warning


def test_rebuilt_epochs_begin_with_the_log_start(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with opened(path, CLEAN) as log:
        for epoch in (2, 5):
            log.become_leader(epoch)
            for _ in range(10):
                log.append(batch_at(0))
        log.delete_records(5)
    good = (path / "leader-epoch-checkpoint").read_bytes()
    (path / "leader-epoch-checkpoint").write_bytes(b"?")
    with opened(path, LoadPoint(log_start_offset=5, was_clean=True)) as log:
        assert [tuple(entry) for entry in log.epochs.entries] == [(2, 5), (5, 10)]
    assert (path / "leader-epoch-checkpoint").read_bytes() == good


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", log_name(20, ".snapshot")])
def test_a_side_file_that_may_not_be_read_is_no_corrupt_one(tmp_path: Path, name: str) -> None:
    """A directory in its place raises an OSError for root, too."""
    path = fill(tmp_path / "t-0", 20)
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(StorageError, match=rf"{name}: cannot read"):
        opened(path, CLEAN)
    assert (path / name).is_dir()


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", b"0\n5\n1 1\n", bytes(10)])
def test_unreadable_epochs_are_told_by_the_log(tmp_path: Path, damage: bytes) -> None:
    path = fill(tmp_path / "t-0", 20)
    (path / "leader-epoch-checkpoint").write_bytes(damage)
    with opened(path) as log:
        assert log.epochs.entries == ()  # followers were given batches without an epoch
    with opened(path, CLEAN) as log:
        log.become_leader(3)
        log.append(batch_at(0))
    (path / "leader-epoch-checkpoint").write_bytes(damage)
    with opened(path) as log:
        assert [tuple(entry) for entry in log.epochs.entries] == [(3, 20)]
        assert log.leader_epoch == 3


def test_epochs_never_fall(tmp_path: Path) -> None:
    """A leader that wrote nothing, or whose records are all deleted, is not known from the log."""
    path = tmp_path / "t-0"
    with opened(path, CLEAN) as log:
        log.become_leader(7)
        log.append(batch_at(0))
        log.delete_records(1)
    for _ in range(3):
        with opened(path, LoadPoint(log_start_offset=1, was_clean=True)) as log:
            assert log.leader_epoch == 7
    with opened(path, LoadPoint(log_start_offset=1, was_clean=True)) as log:
        log.become_leader(9)
    with opened(path, LoadPoint(log_start_offset=1, was_clean=True)) as log:
        assert log.leader_epoch == 9


# -- damage


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    good = plain_segment(0, 5)
    path = write_partition(tmp_path / "t-0", {0: good + batch_at(10)[:50]})
    with opened(path) as log:
        assert log.log_end_offset == 10
        assert (path / log_name(0)).read_bytes() == good
        assert log.append(batch_at(0)).first_offset == 10


def test_a_torn_tail_is_cut_although_the_stop_was_clean(tmp_path: Path) -> None:
    """Whoever copied the directory cut it short: there is nothing to append to otherwise."""
    path = fill(tmp_path / "t-0", 100)
    log_path = path / log_name(bases_of(path)[-1])
    log_path.write_bytes(log_path.read_bytes()[:-5])
    with opened(path, CLEAN) as log:
        assert log.log_end_offset == 99
        assert log.append(batch_at(0)).first_offset == 99
        assert [record.offset for record in log.read()] == list(range(100))
    check_indexes(path, is_closed=True)


def test_segments_after_damage_go(tmp_path: Path) -> None:
    """They would leave a hole."""
    path = fill(tmp_path / "t-0", 100)
    bases = bases_of(path)
    log_path = path / log_name(bases[1])
    raw = bytearray(log_path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    log_path.write_bytes(raw)
    with opened(path) as log:
        end = log.log_end_offset
        assert bases[1] < end < bases[2]
        assert [record.offset for record in log.read()] == list(range(end))
        assert log.recovery_point == 0
    assert bases_of(path) == bases[:2]
    assert {int(file.stem) for file in path.glob("*.snapshot")} == {bases[1], end}


def test_damage_below_the_recovery_point_is_not_looked_for(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    bases = bases_of(path)
    log_path = path / log_name(bases[1])
    raw = bytearray(log_path.read_bytes())
    raw[70] ^= 0xFF
    log_path.write_bytes(raw)
    with opened(path, LoadPoint(recovery_point=bases[-1])) as log:
        assert log.log_end_offset == 100
    assert bases_of(path) == bases


def test_an_end_below_the_log_start_leaves_an_empty_log(tmp_path: Path) -> None:
    """Everything that is left was deleted before the crash."""
    path = fill(tmp_path / "t-0", 20)
    with opened(path, LoadPoint(log_start_offset=50)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (50, 50)
        assert list(log.read()) == []
        assert log.epochs.entries == ()
    assert bases_of(path) == [50]
    assert not list(path.glob("*.snapshot"))


def test_a_log_of_nothing_but_damage(tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {0: b"\xff" * 300, 40: plain_segment(40, 2)})
    with opened(path) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert bases_of(path) == [0]


# -- producers


def test_producers_come_from_the_newest_good_snapshot(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    newest = path / log_name(100, ".snapshot")
    good = newest.read_bytes()
    newest.write_bytes(good[:-1])
    with opened(path, CLEAN) as log:
        assert list(log.producers.producers) == [5]
    assert decode_snapshot(newest.read_bytes()) == decode_snapshot(good)


def test_without_any_snapshot_after_a_clean_stop_there_were_no_producers(tmp_path: Path) -> None:
    """Brokers before 0.11 knew none; Kafka does not look for them either."""
    path = fill(tmp_path / "t-0", 100)
    for file in path.glob("*.snapshot"):
        file.unlink()
    with opened(path, CLEAN) as log:
        assert log.producers.is_empty
    assert [int(f.stem) for f in sorted(path.glob("*.snapshot"))] == [*bases_of(path)[-2:], 100]


def test_stray_snapshots_go(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    data = (path / log_name(100, ".snapshot")).read_bytes()
    kept = {int(file.stem) for file in path.glob("*.snapshot")}
    for offset in (1, 2, 55, 200):
        (path / log_name(offset, ".snapshot")).write_bytes(data)
    opened(path, CLEAN).close()
    assert {int(file.stem) for file in path.glob("*.snapshot")} == kept


def test_expired_producers_are_not_restored(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 100)
    config = ProducerStateConfig(producer_id_expiration_ms=1000)
    later = NOW_MS + 5_000
    with open_log(
        path, CONFIG, disk=Disk(), now_ms=lambda: later, point=CLEAN, producer_config=config
    ) as log:
        assert log.producers.is_empty


def test_a_transaction_that_begins_below_the_log_start_inside_a_batch(tmp_path: Path) -> None:
    """A reload begins with the batch that holds the log start, as Kafka's does."""
    path = tmp_path / "t-0"
    in_txn = BatchFields(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    with opened(path, CLEAN) as log:
        log.append(batch_at(0, count=4, fields=in_txn))
        log.append(batch_at(0))
    with opened(path, LoadPoint(log_start_offset=2)) as log:
        assert log.last_stable_offset == 2
        assert log.producers.producers[5].open_txn_first_offset == 0
        assert [record.offset for record in log.read()] == [2, 3, 4]


def test_records_keep_their_producers_after_recovery(tmp_path: Path) -> None:
    path = fill(tmp_path / "t-0", 20)
    with opened(path) as log:
        again = encode_batch(
            [Record(0, NOW_MS, b"k", b"v")],
            BatchFields(producer_id=5, producer_epoch=0, base_sequence=0),
        )
        info = log.append(again)
        assert info.is_duplicate
        assert info.first_offset == 19


# -- what is told


def test_what_is_cut_off_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t-0"
    write_partition(path, {base: plain_segment(base, 2) for base in (0, 4, 8)})
    damaged = path / log_name(4)
    raw = bytearray(damaged.read_bytes())
    raw[-1] ^= 1
    damaged.write_bytes(raw)
    with caplog.at_level("WARNING"):
        open_log(path, LogConfig(), disk=Disk(), now_ms=lambda: 0).close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{damaged}: truncated at byte {damaged.stat().st_size}, offset 6: ")
    assert warning.endswith(
        "1 later segment deleted; lost with them: 4 readable records in 2 batches, up to offset 11"
    )


# -- corruption in what was closed cleanly


def flip(path: Path, position: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return bytes(data)


def clean_at(end: int) -> LoadPoint:
    return LoadPoint(recovery_point=end, was_clean=True)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_corrupt_batch_in_the_last_segment_of_a_clean_log_is_refused(
    tmp_path: Path, part: float
) -> None:
    path = fill(tmp_path / "t-0", 100, replace(CONFIG, segment_bytes=100_000))
    assert bases_of(path) == [0]
    log_path = path / log_name(0)
    position = int(log_path.stat().st_size * part)
    flip(log_path, position + 30)
    before = contents(path)
    for _ in range(2):
        with pytest.raises(FlushedCorruptionError, match="closed cleanly at offset 100") as error:
            opened(path, clean_at(100))
        assert error.value.path == log_path
        assert 0 <= position + 30 - error.value.position < 200
        assert contents(path) == before


def test_a_corrupt_batch_in_an_earlier_segment_is_met_where_an_index_is_missing(
    tmp_path: Path,
) -> None:
    """Without that, only `verify` and readers find it: opening does not read earlier segments."""
    path = fill(tmp_path / "t-0", 100)
    first = path / log_name(0)
    flip(first, first.stat().st_size // 2)
    opened(path, clean_at(100)).close()
    first.with_suffix(".index").unlink()
    before = contents(path)
    with pytest.raises(FlushedCorruptionError, match="closed cleanly") as error:
        opened(path, clean_at(100))
    assert error.value.path == first
    assert contents(path) == before
