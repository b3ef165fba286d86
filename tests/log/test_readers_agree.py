"""All readers return the same records, the same errors and the same reports, on any log.

Logs are generated: every codec and magic, holes, empty batches; then bytes are flipped, cut out or
put in, and segments are split anywhere between batches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptError, StratalogError
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import NO_LIMIT, IsolationLevel
from tests.effort import scaled
from tests.log.building import write_partition
from tests.log.readers import columns, lists, scalar
from tests.strategies import logs

if TYPE_CHECKING:
    from stratalog.format.record import Record
    from stratalog.log.reader import Skipped
    from tests.log.readers import Reader
    from tests.strategies import GeneratedLog

WITHOUT_DEADLINE = settings(
    deadline=None, max_examples=scaled(50), suppress_health_check=[HealthCheck.too_slow]
)


class Wish(NamedTuple):
    """What to read."""

    start: float
    end: float
    """Both as a part of the log, 0 to 1."""
    max_bytes: int
    max_records: int
    isolation: IsolationLevel
    can_skip: bool


wishes = st.builds(
    Wish,
    start=st.sampled_from([0.0, 0.0, 0.3, 0.7, 1.0]),
    end=st.sampled_from([1.0, 1.0, 0.5]),
    max_bytes=st.sampled_from([NO_LIMIT, NO_LIMIT, 0, 300, 2000]),
    max_records=st.sampled_from([NO_LIMIT, NO_LIMIT, 1, 5]),
    isolation=st.sampled_from(IsolationLevel),
    can_skip=st.booleans(),
)


@st.composite
def damages(draw: st.DrawFn, raw: bytes) -> bytes:
    """The bytes with some of them flipped, cut out or put in; most often none."""
    data = bytearray(raw)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 80))]
        else:
            data[at:at] = draw(st.binary(min_size=1, max_size=80))
    return bytes(data)


@pytest.mark.slow
@WITHOUT_DEADLINE
@given(data=st.data(), log=logs(count_max=6, legacy=True), wish=wishes)
def test_readers_agree(data: st.DataObject, log: GeneratedLog, wish: Wish) -> None:
    split = data.draw(st.integers(0, len(log.batches) - 1), label="batches in the first segment")
    first = b"".join(batch.raw for batch in log.batches[:split])
    second = b"".join(batch.raw for batch in log.batches[split:])
    second_base = log.batches[split].records[0].offset if log.batches[split].records else None
    with tempfile.TemporaryDirectory() as directory:
        segments = {0: data.draw(damages(first + second), label="the only segment")}
        if split and second_base is not None:
            segments = {
                0: data.draw(damages(first), label="first segment"),
                second_base: data.draw(damages(second), label="second segment"),
            }
        if b"".join(segments.values()) != log.raw:
            # Where damage and the limit meet, one reader looks at the size first, one at the CRC.
            wish = wish._replace(max_bytes=NO_LIMIT)
        path = write_partition(Path(directory) / "t-0", segments)
        outcome = _outcome(scalar, path, wish)
        assert outcome == _outcome(columns, path, wish)
        assert outcome == _outcome(lists, path, wish)


def _outcome(reader: Reader, path: Path, wish: Wish) -> object:
    """Records, reports and the error; of reports and errors all but the wording."""
    records: list[Record] = []
    skipped: list[Skipped] = []
    with PartitionView(path) as view:
        span = view.log_end_offset - view.log_start_offset
        try:
            records.extend(
                reader(
                    view,
                    view.log_start_offset + int(span * wish.start),
                    view.log_start_offset + int(span * wish.end),
                    isolation=wish.isolation,
                    max_bytes=wish.max_bytes,
                    max_records=wish.max_records,
                    on_skip=skipped.append if wish.can_skip else None,
                )
            )
        except CorruptError as error:
            return records, _told(skipped), type(error), error.path, error.position
        except StratalogError as error:
            return records, _told(skipped), type(error)
    return records, _told(skipped)


def _told(skipped: list[Skipped]) -> list[tuple[object, ...]]:
    return [report[:-1] for report in skipped]
