"""A real log on a disk that forgets, the model beside it, and batches for both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.maintenance.recovery import LoadPoint, open_log
from tests.disks import FaultyDisk, SimulatedDisk
from tests.model.log_model import LogModel, ModelBatch, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

START_MS = 1_700_000_000_000
SMALL = LogConfig(
    segment_bytes=1000, segment_index_bytes=240, index_interval_bytes=150, segment_ms=60_000
)
PREALLOCATED = replace(SMALL, preallocate=True)
PRODUCER_IDS = (101, 102)


class Draft(NamedTuple):
    """A batch to be."""

    producer_id: int = -1
    record_count: int = 1
    value_bytes: int = 10
    is_transactional: bool = False
    step_ms: int = 7
    """From the clock to the first record's timestamp; records are a millisecond apart."""


class DrivenLog:
    """One partition, and what is known of it."""

    def __init__(self, root: Path, config: LogConfig = SMALL) -> None:
        self.path = root / "t-0"
        self.sim = SimulatedDisk(root)
        self.faulty = FaultyDisk(self.sim.calls)
        self.config = config
        self.now_ms = START_MS
        self.model = LogModel()
        self.durable = 0  # this many batches of the model survive whatever happens
        self.point = LoadPoint()
        self.serial = 0
        self.deleted_below = 0  # segments below are gone, but not what producers did in them
        self.known_from = 0  # the log start once was there, so what lies below may be forgotten
        self.log = self._open()

    def _open(self) -> PartitionLog:
        return open_log(
            self.path,
            self.config,
            disk=self.faulty.disk,
            now_ms=lambda: self.now_ms,
            point=self.point,
        )

    # -- batches

    @contextmanager
    def _writing(self, batches: Sequence[ModelBatch]) -> Iterator[None]:
        """Those that the log fails to write may be there all the same once the power is back."""
        try:
            yield
        finally:
            for batch in batches:
                self.model.append(batch)

    def _append_as_leader(self, batch: ModelBatch) -> None:
        moved = batch.moved_to(self.model.end, self.log.leader_epoch)
        with self._writing([moved]):
            info = self.log.append(self._raw(batch, base_offset=0))
        assert not info.is_duplicate
        assert (info.first_offset, info.last_offset) == (moved.first_offset, moved.last_offset)

    def _in_a_row(self, drafts: Sequence[Draft], gap: int) -> list[ModelBatch]:
        """Without producers: whose sequences would hang on what comes before in the same call."""
        batches: list[ModelBatch] = []
        for draft in drafts:
            batch = self._batch(draft._replace(producer_id=-1))
            end = batches[-1].next_offset if batches else self.model.end
            batches.append(batch.moved_to(end + gap, self.log.leader_epoch))
        return batches

    def _batch(self, draft: Draft) -> ModelBatch:
        """At offset 0, for now."""
        self.now_ms += 10
        first_ms = self.now_ms + draft.step_ms
        self.serial += 1
        text = b"%d." % self.serial
        records = tuple(
            Record(n, first_ms + n, b"k%d" % n, (text * draft.value_bytes)[: draft.value_bytes])
            for n in range(draft.record_count)
        )
        sent = Sent()
        if draft.producer_id >= 0:
            sent = self._sent_by(draft)
        timestamps = tuple(record.timestamp for record in records)
        return ModelBatch(0, draft.record_count - 1, -1, records, sent, timestamps=timestamps)

    def _sent_by(self, draft: Draft) -> Sent:
        """A producer in a transaction sends nothing else, or it would be refused."""
        producer = self.model.producers().get(draft.producer_id)
        epoch = 0 if producer is None else producer.producer_epoch
        in_txn = producer is not None and producer.open_txn_first_offset >= 0
        return Sent(
            draft.producer_id,
            epoch,
            self._next_sequence(draft.producer_id),
            draft.is_transactional or in_txn,
        )

    def _next_sequence(self, producer_id: int) -> int:
        """As the log counts, which may have forgotten a producer below its start."""
        known = self.log.producers.producers.get(producer_id)
        return 0 if known is None else known.next_sequence

    def _newest(self, producer_id: int) -> ModelBatch | None:
        """The newest batch of a producer whose epoch is not over."""
        producer = self.model.producers().get(producer_id)
        known = self.log.producers.producers.get(producer_id)
        if producer is None or known is None or not known.batches:
            return None
        found = [b for b in self.model.batches if b.last_offset == producer.last_offset]
        return found[0] if found and known.batches[-1].last_offset == producer.last_offset else None

    def raw(self, draft: Draft) -> bytes:
        """A batch as a producer sends it."""
        return self._raw(self._batch(draft), base_offset=0)

    def _raw(self, batch: ModelBatch, base_offset: int | None = None) -> bytes:
        if base_offset is not None:
            batch = batch.moved_to(base_offset, -1)
        sent = batch.sent
        fields = BatchFields(
            is_transactional=sent.is_transactional,
            producer_id=sent.producer_id,
            producer_epoch=sent.producer_epoch,
            base_sequence=sent.base_sequence,
            partition_leader_epoch=batch.leader_epoch,
        )
        return encode_batch(batch.records, fields)

    def _first_base(self) -> int:
        return self.log.maintenance.segments[0].base_offset
