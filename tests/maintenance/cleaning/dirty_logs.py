"""Generated segments full of what cleaning has to judge.

Few keys, so that records supersede each other; tombstones, null keys, headers; every codec and
timestamp type; times at the ends of an int64; delete horizons about to pass; holes in offsets;
transactions that commit, abort or go on; emptied batches; messages of the old formats.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from stratalog.format.batch import BatchHeader, Codec, TimestampType
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from stratalog.format.txn_index import AbortedTxn
from stratalog.maintenance.cleaning.filtering import LastRecord
from tests.strategies import LEGACY_CODECS, LONG_MAX, LONG_MIN, headers

NOW_MS = 1_700_000_000_000
PRODUCER_IDS = (1, 2, 3)

keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"12345678", b"123456789", b"x" * 200])
values = st.sampled_from([None, None, b"", b"v", b"v" * 57, b"w" * 300])
timestamps = st.one_of(
    st.integers(NOW_MS - 100_000, NOW_MS + 100),
    st.sampled_from([LONG_MIN, LONG_MIN + 1, -2, -1, 0, LONG_MAX - 1, LONG_MAX]),
)
horizons = st.none() | st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 1, LONG_MIN, LONG_MAX, -1])
gaps = st.sampled_from([1, 1, 1, 2, 70, 9000])


class DirtySegment(NamedTuple):
    """A sealed segment, and what else is known of its log."""

    batches: tuple[bytes, ...]
    base_offset: int
    end_offset: int
    """Where the next segment begins."""
    ends: tuple[int, ...]
    """The offset after each batch."""
    aborted: tuple[AbortedTxn, ...]
    producers: dict[int, LastRecord]

    @property
    def raw(self) -> bytes:
        return b"".join(self.batches)


class _Maker:
    """Puts a segment together, batch by batch."""

    def __init__(self, draw: st.DrawFn, base_offset: int) -> None:
        self.draw = draw
        self.offset = base_offset
        self.batches: list[bytes] = []
        self.ends: list[int] = []
        self.open: dict[int, int] = {}  # first offsets of transactions
        self.aborted: list[AbortedTxn] = []
        self.data_ends: dict[int, int] = {}

    def add(self, raw: bytes, last_offset: int) -> None:
        self.batches.append(raw)
        self.ends.append(last_offset + 1)
        self.offset = last_offset + self.draw(gaps)

    def records(self, count_max: int, *, with_headers: bool = True) -> list[Record]:
        offset, run = self.offset, []
        for _ in range(self.draw(st.integers(1, count_max))):
            extra = self.draw(headers) if with_headers and self.draw(st.booleans()) else ()
            run.append(
                Record(
                    offset, self.draw(timestamps), self.draw(keys), self.draw(values), headers=extra
                )
            )
            offset += self.draw(gaps)
        return run

    def data(self) -> None:
        draw = self.draw
        producer_id = draw(st.sampled_from([-1, -1, *PRODUCER_IDS]))
        is_transactional = producer_id >= 0 and draw(st.booleans())
        base_offset = self.offset
        self.offset += draw(st.sampled_from([0, 0, 3]))
        records = self.records(6)
        is_append_time = draw(st.booleans())
        last_offset = records[-1].offset + draw(st.sampled_from([0, 0, 4]))
        fields = BatchFields(
            codec=draw(st.sampled_from(list(Codec))),
            timestamp_type=TimestampType(is_append_time),
            is_transactional=is_transactional,
            delete_horizon_ms=draw(horizons),
            partition_leader_epoch=draw(st.integers(-1, 5)),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 4,
            base_sequence=-1 if producer_id < 0 else draw(st.sampled_from([0, (1 << 31) - 1])),
            base_offset=base_offset,
            last_offset=last_offset,
            max_timestamp=draw(timestamps) if is_append_time else None,
        )
        raw = encode_batch(records, fields)
        if draw(st.sampled_from(range(8))) == 3:
            raw = encode_empty_batch(BatchHeader.unpack(raw))
        if producer_id >= 0:
            self.data_ends[producer_id] = last_offset
        if is_transactional:
            self.open.setdefault(producer_id, base_offset)
        self.add(raw, last_offset)

    def marker(self) -> None:
        draw, offset = self.draw, self.offset
        producer_id = draw(st.sampled_from(PRODUCER_IDS))
        kind = draw(st.sampled_from([ControlType.COMMIT, ControlType.ABORT]))
        raw = encode_end_marker(
            EndMarker(kind, 0),
            offset=offset,
            timestamp=draw(timestamps),
            producer_id=producer_id,
            producer_epoch=4,
            partition_leader_epoch=0,
        )
        header = BatchHeader.unpack(raw)
        fate = draw(st.sampled_from(["fresh", "fresh", "horizon", "empty"]))
        if fate == "empty":
            raw = encode_empty_batch(header)
        elif fate == "horizon":
            raw = self.with_horizon(raw, kind, header)
        first = self.open.pop(producer_id, None)
        if first is not None and kind is ControlType.ABORT:
            self.aborted.append(AbortedTxn(0, producer_id, first, offset, offset + 1))
        self.add(raw, offset)

    def with_horizon(self, raw: bytes, kind: ControlType, header: BatchHeader) -> bytes:
        horizon = self.draw(st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 1]))
        key, value = b"\0\0\0" + bytes([kind]), bytes(6)
        assert key in raw
        record = Record(header.base_offset, header.base_timestamp, key, value)
        fields = BatchFields(
            is_transactional=True,
            is_control=True,
            producer_id=header.producer_id,
            producer_epoch=4,
            delete_horizon_ms=horizon,
        )
        return encode_batch([record], fields)

    def legacy(self) -> None:
        magic = self.draw(st.integers(0, 1))
        stamp = TimestampType.CREATE_TIME if magic else TimestampType.NO_TIMESTAMP
        records = [
            record._replace(timestamp=record.timestamp if magic else -1, timestamp_type=stamp)
            for record in self.records(4, with_headers=False)
        ]
        codec = self.draw(st.sampled_from(LEGACY_CODECS))
        if codec is not Codec.NONE:
            self.add(encode_legacy(records, magic, codec=codec), records[-1].offset)
            return
        for record in records:
            self.add(encode_legacy([record], magic), record.offset)


@st.composite
def dirty_segments(
    draw: st.DrawFn, *, with_legacy: bool = True, count_max: int = 7
) -> DirtySegment:
    base_offset = draw(st.sampled_from([0, 7, LONG_MAX - (1 << 33)]))
    maker = _Maker(draw, base_offset)
    steps = ["data"] * 5 + ["marker"] * 2 + (["legacy"] if with_legacy else [])
    for _ in range(draw(st.integers(1, count_max))):
        getattr(maker, draw(st.sampled_from(steps)))()
    for producer_id, first in maker.open.items():  # its marker lies in a later segment
        if draw(st.booleans()):
            maker.aborted.append(
                AbortedTxn(0, producer_id, first, maker.offset + 50, maker.offset + 51)
            )
    producers = {
        producer_id: LastRecord(draw(st.sampled_from([last, last, -1])), draw(st.integers(3, 5)))
        for producer_id, last in maker.data_ends.items()
        if draw(st.booleans())
    }
    return DirtySegment(
        tuple(maker.batches),
        base_offset,
        maker.offset,
        tuple(maker.ends),
        tuple(sorted(maker.aborted, key=lambda txn: txn.last_offset)),
        producers,
    )
