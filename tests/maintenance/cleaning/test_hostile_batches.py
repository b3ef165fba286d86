"""Batches whose CRC is valid and whose records are nonsense, at the end of readable memory.

Compiled code must refuse them as the readable one does, or do what that does. It may be more
patient with what compaction does not look into: headers, and bytes left over within a record.
Reading a byte too many ends the process.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptError, CorruptRecordError
from stratalog.format import varint
from stratalog.format.batch import HEADER_BYTES, BatchHeader, check_crc, next_entry
from stratalog.format.batch_table import scan_batches
from stratalog.format.kernels import scan as survey
from stratalog.format.kernels.memory import PAYLOAD
from stratalog.format.log_entry import records_of
from stratalog.format.record import BatchFields, Record, encode_batch, seal_batch
from stratalog.maintenance.cleaning import offset_map, rewriting
from stratalog.maintenance.cleaning.filtering import (
    CleanedTransactions,
    CleaningRules,
    filter_batch,
)
from stratalog.maintenance.cleaning.offset_map import OffsetMap
from stratalog.maintenance.cleaning.rewriting import Rewriter
from stratalog.maintenance.cleaning.sources import BatchRun
from tests.effort import scaled
from tests.format.decoding import guarded
from tests.maintenance.cleaning.dirty_logs import NOW_MS, keys, timestamps, values
from tests.maintenance.cleaning.mapping_batches import put_batches

EXAMPLES = scaled(150)
KEY = b"12345678"


class Mutation(NamedTuple):
    """Bytes of the records that are replaced by others, more or fewer."""

    at: float
    removed: int
    added: bytes


mutations = st.lists(
    st.builds(
        Mutation,
        at=st.floats(0, 1),
        removed=st.sampled_from([0, 1, 1, 2, 9]),
        added=st.one_of(
            st.binary(max_size=2),
            st.sampled_from([b"\xff" * 5, b"\x80" * 9 + b"\x01", b"\x81\x00", b"\x00"]),
        ),
    ),
    min_size=1,
    max_size=3,
)
plain_records = st.lists(
    st.builds(Record, offset=st.just(0), timestamp=timestamps, key=keys, value=values),
    min_size=1,
    max_size=5,
).map(lambda run: [record._replace(offset=n) for n, record in enumerate(run)])


def mutated(raw: bytes, changes: list[Mutation], more_records: int) -> bytes:
    payload = bytearray(raw[HEADER_BYTES:])
    for change in changes:
        at = int(change.at * len(payload))
        payload[at : at + change.removed] = change.added
    header = BatchHeader.unpack(raw)
    count = max(0, header.record_count + more_records)
    return seal_batch(header._replace(record_count=count), bytes(payload))


def run_of(raw: bytes) -> BatchRun | None:
    """As a reader would lay it out; None if a look at the headers is enough to refuse it."""
    buf = guarded(raw)
    rows = scan_batches(buf).rows
    payloads = np.empty(len(rows), PAYLOAD)
    memory = pa.py_buffer(buf)
    found = np.zeros(survey.SLOTS, np.int64)
    good = survey.survey(memory.address, memory.size, rows, payloads, found, True)
    if good < len(rows):
        return None
    return BatchRun(Path("x.log"), buf, 0, rows, payloads)  # type: ignore[arg-type]


def rules_of(found: OffsetMap, bound: int) -> CleaningRules:
    return CleaningRules(
        newest_offset_of=found.get,
        map_latest_offset=found.latest_offset,
        bound=bound,
        now_ms=NOW_MS,
        delete_retention_ms=1000,
        legacy_horizon_ms=0,
        producers={},
    )


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    records=plain_records,
    changes=mutations,
    more_records=st.sampled_from([0, 0, 0, 1, -1, 40]),
    newest=st.integers(-1, 6),
    with_marks=st.booleans(),
    out_bytes=st.sampled_from([1, 300]),
)
def test_nonsense_is_refused_or_treated_alike(  # generated
    records: list[Record],
    changes: list[Mutation],
    more_records: int,
    newest: int,
    with_marks: bool,
    out_bytes: int,
) -> None:
    raw = mutated(encode_batch(records, BatchFields(base_offset=0)), changes, more_records)
    run = run_of(raw)
    if run is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "OUT_BYTES", out_bytes)
        if not with_marks:
            patch.setattr(offset_map, "MARKS_BYTES_MAX", -1)
        found = OffsetMap(24 * 64)
        is_refused = check_mapping(found, run, raw)
        if is_refused:
            found.clear(0)
        if newest >= 0 and newest > found.latest_offset:
            found.put(KEY, newest)
        check_rewriting(found, run, raw)


def check_mapping(found: OffsetMap, run: BatchRun, raw: bytes) -> bool:
    """Whether the batch is refused."""
    assert run.payloads is not None
    bad = put_batches(found, run.rows, run.payloads, np.ones(1, np.bool_))
    records = readable(raw)
    if bad is not None:
        assert bad == 0
        assert records is None
        return True
    if records is None:
        return False  # the first pass looks at keys only
    expected = {r.key: r.offset for r in records if r.key is not None and r.offset >= 0}
    rising = all(a.offset < b.offset for a, b in itertools.pairwise(records))
    if rising:
        assert {key: found.get(key) for key in expected} == expected
        assert found.entries == len(expected)
    return False


def readable(raw: bytes) -> list[Record] | None:
    entry = next_entry(raw, 0)
    assert entry is not None
    try:
        return list(records_of(raw, entry))
    except CorruptError:
        return None


def check_rewriting(found: OffsetMap, run: BatchRun, raw: bytes) -> None:
    entry = next_entry(raw, 0)
    assert entry is not None
    rules = rules_of(found, bound=1)
    try:
        expected = filter_batch(raw, entry, rules, CleanedTransactions(), 0)
    except (CorruptError, ValueError):  # the latter: offsets that no batch can hold
        expected = None
    try:
        parts = [bytes(part.compressed().data) for part in Rewriter(found, rules).rewrite(run, 0)]
    except CorruptError:
        assert readable(raw) is None
        return
    out = b"".join(parts)
    if out:
        check_crc(out, 0, BatchHeader.unpack(out))
    if expected is None or (out == expected.data):
        return
    # Numbers that were written longer than needed stay so here.
    assert readable(out) == readable(expected.data)
    plain = [
        BatchHeader.unpack(data)._replace(crc=0, batch_length=0) for data in (out, expected.data)
    ]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("size_bytes", [*range(41), 255, 256, 4096])
def test_keys_near_the_end_of_memory(size_bytes: int) -> None:
    """Two bytes follow a key at least: hashing takes eight at a time where it may."""
    key = (bytes(range(1, 256)) * 17)[:size_bytes]
    run = run_of(encode_batch([Record(0, 5, key, b"")], BatchFields()))
    assert run is not None
    assert run.payloads is not None
    found = OffsetMap(24 * 64)
    assert put_batches(found, run.rows, run.payloads, np.ones(1, np.bool_)) is None
    assert found.get(key) == 0
    assert found.get(key + b"\0") == found.get(key[1:] + b"x") == -1
    assert found.entries == 1


def test_what_is_wrong_is_told_with_its_place() -> None:
    """Of a batch whose records do not fill it."""
    good = encode_batch([Record(0, 5, b"k", b"v")], BatchFields())
    bad = mutated(good, [Mutation(1.0, 0, b"tail")], 0)
    run = run_of(bad)
    assert run is not None
    found = OffsetMap(24 * 64)
    found.skip_to(1)
    with pytest.raises(CorruptRecordError, match="4 bytes left after the last record") as caught:
        list(Rewriter(found, rules_of(found, 1)).rewrite(run._replace(start=700), 0))
    assert (caught.value.path, caught.value.position) == (Path("x.log"), 700)


@pytest.mark.parametrize("declared_bytes", [11, 12, 60, 5_000, 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("field", ["key", "value"])
def test_a_field_that_is_longer_than_its_record(field: str, declared_bytes: int) -> None:
    """Eight bytes follow its length, and the end of memory."""
    body = bytearray(3)  # attributes and both deltas
    if field == "value":
        varint.write_int(body, 1)
        body += b"k"
    varint.write_int(body, declared_bytes)
    body += b"12345678"
    payload = bytearray()
    varint.write_int(payload, len(body))
    header = BatchHeader.unpack(encode_batch([Record(0, 5, b"k", b"v")], BatchFields()))
    run = run_of(seal_batch(header, bytes(payload + body)))
    assert run is not None
    assert run.payloads is not None
    found = OffsetMap(24 * 64)
    bad = put_batches(found, run.rows, run.payloads, np.ones(1, np.bool_))
    assert bad == (0 if field == "key" else None)
    found.skip_to(1)
    with pytest.raises(CorruptRecordError, match="exceeds its record"):
        list(Rewriter(found, rules_of(found, 1)).rewrite(run, 0))
