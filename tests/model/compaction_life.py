"""The life of one compacted log, step by step, with what readers must see of it at any time.

The model is what a reader knows who was there all the time: of each key the last value that was
committed. Each round of the cleaner is compared with the readable reference, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.config import LogConfig
from stratalog.format.batch import Codec
from stratalog.format.names import FileKind
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.log.producer_state_manager import ProducerStateConfig
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.filtering import last_records
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk, SystemCalls
from tests.maintenance.cleaning import reference_pass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.filtering import BatchAction, BatchReason
    from stratalog.maintenance.cleaning.plan import CleaningPlan
    from tests.maintenance.cleaning.reference_pass import ReferenceRound

START_MS = 1_700_000_000_000
EXPIRATION_MS = 100_000
NO_PRODUCER = -1
CONFIG = LogConfig.parse(
    {
        "cleanup.policy": "compact",
        "segment.bytes": 700,
        "index.interval.bytes": 150,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 1000,
    }
)
SLOTS = {"small": 8, "large": 1000}
LOAD_FACTOR = 0.9
STARTS = 9
"""Places that a reader begins at, after each round."""


class Write(NamedTuple):
    """One batch: keys by number, None as value for a tombstone."""

    producer: int
    records: tuple[tuple[int, int | None], ...]
    codec: Codec = Codec.NONE
    is_transactional: bool = False
    step_ms: int = 1


class End(NamedTuple):
    """The producer's transaction ends, if it has one."""

    producer: int
    is_commit: bool


class Bump(NamedTuple):
    """The producer comes back with a higher epoch."""

    producer: int


class Advance(NamedTuple):
    """Time passes."""

    by_ms: int


class Roll(NamedTuple):
    """A new segment begins."""


class Reopen(NamedTuple):
    """The log is closed and opened, and forgets producers that were idle for long."""


class Rebuild(NamedTuple):
    """The log is recovered from its batches alone, without snapshots and indexes."""


class DeleteRecords(NamedTuple):
    """The log start moves into this part of the log."""

    part: float


class Clean(NamedTuple):
    """A round, with little or much memory for keys."""

    memory: str


Step = Write | End | Bump | Advance | Roll | Reopen | Rebuild | DeleteRecords | Clean


@dataclass
class _Producer:
    epoch: int = 0
    sequence: int = 0
    open_records: list[Record] | None = None
    """Of its transaction; None when it has none."""
    last_ms: int = 0
    """Timestamp of its last batch, a marker's included."""
    was_idle: bool = False
    """For so long that a log may forget its sequence, at some time since its last data."""

    def start_over(self) -> None:
        self.epoch += 1
        self.sequence = 0


class CompactionLife:
    """Give it steps. `close` ends what is open and looks at everything once more."""

    def __init__(self, root: Path, cleaners: dict[str, Cleaner], config: LogConfig = CONFIG):
        self.now_ms = START_MS
        self.rounds = 0
        self.fates: Counter[tuple[BatchAction, BatchReason]] = Counter()
        self._path = root / "orders-0"
        self._cleaners = cleaners
        self._config = config
        self._checkpoint: int | None = None
        self._producers: dict[int, _Producer] = {}
        self._committed: dict[bytes, list[Record]] = {}  # by key, in no order
        self._disk = Disk(SystemCalls(fsync=lambda _fd: None))
        self.log = self._open(LoadPoint())

    def _open(self, point: LoadPoint) -> PartitionLog:
        return open_log(
            self._path,
            self._config,
            disk=self._disk,
            now_ms=lambda: self.now_ms,
            point=point,
            producer_config=ProducerStateConfig(producer_id_expiration_ms=EXPIRATION_MS),
        )

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.take(step)
        self.close()

    def take(self, step: Step) -> None:
        match step:
            case Write():
                self.write(step)
            case End(producer, is_commit):
                self.end(producer, is_commit=is_commit)
            case Bump(producer):
                self.bump(producer)
            case Advance(by_ms):
                self.now_ms += by_ms
                self._note_idle()
            case Roll():
                self.log.roll()
            case Reopen():
                self.reopen()
            case Rebuild():
                self.rebuild()
            case DeleteRecords(part):
                start, end = self.log.log_start_offset, self.log.last_stable_offset
                self.log.delete_records(start + int(part * max(0, end - start)))
            case Clean(memory):
                self.clean(memory)

    # -- writing

    def write(self, step: Write) -> None:
        producer = self._producers.setdefault(step.producer, _Producer())
        is_transactional = step.producer != NO_PRODUCER and (
            step.is_transactional or producer.open_records is not None
        )
        records: list[Record] = []
        for key, value in step.records:
            self.now_ms += step.step_ms
            raw = None if value is None else b"%d" % value * 5
            headers = (Header("n", b"%d" % key),) if key % 3 == 0 else ()
            records.append(Record(len(records), self.now_ms, b"key %d" % key, raw, headers))
        fields = BatchFields(codec=step.codec)
        if step.producer != NO_PRODUCER:
            fields = fields._replace(
                producer_id=step.producer,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
                is_transactional=is_transactional,
            )
            producer.sequence += len(records)
            producer.last_ms, producer.was_idle = self.now_ms, False
        first = self.log.append(encode_batch(records, fields)).first_offset
        placed = [record._replace(offset=record.offset + first) for record in records]
        if is_transactional:
            producer.open_records = (producer.open_records or []) + placed
        else:
            self._commit(placed)

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker without a transaction is written, too: producers do commit nothing."""
        producer = self._producers.setdefault(producer_id, _Producer())
        if producer_id == NO_PRODUCER:
            return
        self.log.end_transaction(producer_id, producer.epoch, commit=is_commit)
        if is_commit and producer.open_records is not None:
            self._commit(producer.open_records)
        producer.open_records = None
        producer.last_ms = self.now_ms

    def bump(self, producer_id: int) -> None:
        producer = self._producers.get(producer_id)
        if producer is not None and producer.open_records is None:
            producer.start_over()

    def _commit(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            self._committed.setdefault(record.key, []).append(record)

    def _last_values(self, start: int, stable: int) -> dict[bytes | None, bytes]:
        """The order of the log decides which record is the last, not that of the commits."""
        values: dict[bytes | None, bytes] = {}
        for key, records in self._committed.items():
            seen = [record for record in records if start <= record.offset < stable]
            last = max(seen, key=lambda record: record.offset, default=None)
            if last is not None and last.value is not None:
                values[key] = last.value
        return values

    def reopen(self) -> None:
        end = self.log.log_end_offset
        self._open_again(LoadPoint(self.log.log_start_offset, end, was_clean=True))

    def rebuild(self) -> None:
        """What compaction left of a producer's last batch must tell all that matters of it."""
        self._open_again(LoadPoint(self.log.log_start_offset), lost=("*.snapshot", "*index"))

    def _open_again(self, point: LoadPoint, lost: Sequence[str] = ()) -> None:
        before, end = list(self.log.read()), self.log.log_end_offset
        stable = self.log.last_stable_offset
        self.log.close()
        for pattern in lost:
            for path in self._path.glob(pattern):
                path.unlink()
        self.log = self._open(point)
        assert (self.log.log_end_offset, self.log.last_stable_offset) == (end, stable)
        assert list(self.log.read()) == before
        self._check_producers()

    def _check_producers(self) -> None:
        """One that was idle for long may be forgotten, in part or all of it, and starts over."""
        known = self.log.producers.producers
        for producer_id, producer in self._producers.items():
            if producer_id == NO_PRODUCER:
                continue
            if producer.was_idle:
                producer.start_over()
                continue
            state = known[producer_id]
            if state.producer_epoch == producer.epoch:
                assert state.next_sequence == producer.sequence
            else:  # nothing was written since it came back with a higher one
                assert (state.producer_epoch < producer.epoch, producer.sequence) == (True, 0)

    def _note_idle(self) -> None:
        for producer in self._producers.values():
            if producer.open_records is None and self.now_ms - producer.last_ms >= EXPIRATION_MS:
                producer.was_idle = True

    # -- cleaning

    def clean(self, memory: str) -> None:
        log = self.log
        plan = plan_cleaning(cleaner_log(log, self._checkpoint), self._config, self.now_ms)
        if not plan.is_selected:
            return
        before = list(log.read())
        bounds = (log.log_start_offset, log.last_stable_offset, log.log_end_offset)
        expected = self._expected(plan, memory)
        result = self._cleaners[memory].clean(log, plan)
        log.maintenance.remove_discarded(self.now_ms, at_once=True)
        self.rounds += 1
        assert result.end_offset == expected.end_dirty_offset > plan.first_dirty_offset
        self._checkpoint = result.end_offset
        self.fates.update((e.action, e.reason) for group in expected.groups for e in group.entries)
        self._check_files(expected)
        assert bounds == (log.log_start_offset, log.last_stable_offset, log.log_end_offset)
        self._check_readers(before)

    def _expected(self, plan: CleaningPlan, memory: str) -> ReferenceRound:
        return reference_pass.clean(
            self.log,
            plan,
            self._config,
            last_records(self.log.producers.producers.values()),
            keys_max=int(SLOTS[memory] * LOAD_FACTOR),
        )

    def _check_files(self, expected: ReferenceRound) -> None:
        bases = self.log.segments.bases
        replaced = {base for group in expected.groups for base in group.bases}
        kept = {group.bases[0] for group in expected.groups}
        assert [base for base in bases if base in replaced] == sorted(kept)
        for group in expected.groups:
            segment = self.log.segments[bases.index(group.bases[0])]
            assert segment.path.read_bytes() == group.data
            index = segment.sibling(FileKind.TXN_INDEX)
            entries = index.read_bytes() if index.exists() else b""
            assert entries == _packed(group.aborted)

    def _check_readers(self, before: Sequence[Record]) -> None:
        """Nothing is new, and whoever goes on from anywhere goes forward."""
        log = self.log
        after = list(log.read())
        assert set(after) <= set(before)
        start, end = log.log_start_offset, log.log_end_offset
        for offset in {*range(start, end, max(1, (end - start) // STARTS)), start, end}:
            assert list(log.read(offset)) == [r for r in after if r.offset >= offset]
            if offset < end:
                found = log.locate(offset)
                assert found is None or found.record.offset >= offset
            self._check_last_values(offset)
        times = [record.timestamp for record in after]
        for timestamp in times[:: max(1, len(times) // STARTS)]:
            hit = log.find_time(timestamp)
            assert hit is not None
            assert hit.timestamp >= timestamp

    def _check_last_values(self, start: int) -> None:
        """What a reader from `start` on ends up with: a key without a value is as good as gone."""
        stable = self.log.last_stable_offset
        if start > stable:
            return
        seen = {r.key: r.value for r in self.log.read(start, isolation=_COMMITTED)}
        found = {key: value for key, value in seen.items() if value is not None}
        assert found == self._last_values(start, stable)

    def close(self) -> None:
        """End what is open, clean once more, and look at everything."""
        for producer_id, producer in self._producers.items():
            if producer.open_records is not None:
                self.end(producer_id, is_commit=False)
        self.clean("large")
        self._check_last_values(self.log.log_start_offset)
        self.reopen()
        self._check_last_values(self.log.log_start_offset)
        self.log.close()


_COMMITTED = IsolationLevel.READ_COMMITTED


def _packed(aborted: Sequence[AbortedTxn]) -> bytes:
    return b"".join(txn.pack() for txn in aborted)


def new_cleaners() -> dict[str, Cleaner]:
    """They are used again and again, as a thread of a service does."""
    return {name: Cleaner(24 * slots) for name, slots in SLOTS.items()}
