"""The segments of a tiered topic, local and remote ones side by side, and unused objects.

Operators pay for every object in the store. Some are not part of any log: copies of a leader that
lost an election, copies that were never finished, objects that no metadata names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from stratalog.errors import CorruptError, SegmentGoneError, StratalogError
from stratalog.log.remote_segments import FINISHED, STARTED, TopicIdPartition
from stratalog.log.tiered_view import RemoteSegmentView, TieredView
from stratalog.maintenance.verify.findings import (
    NO_POSITION,
    Finding,
    Severity,
    VerifyCounts,
    VerifyReport,
)
from stratalog.storage.tiered_store import SIDE_FILES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log.remote_segments import RemoteLog, RemoteSegmentInfo
    from stratalog.partitions.tiered import RemoteTier
    from stratalog.partitions.view import LogDirsView

Role: TypeAlias = Literal[
    "local", "remote", "both", "unreachable", "incomplete", "deleted", "orphan"
]
"""`remote` and `both` are part of the log, `both` also on the disk. `unreachable` is complete, but
no leader epoch of the log leads there; an `orphan` is in the store and in no metadata."""

REQUIRED: Final = {
    "local": (".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"),
    "aiven": (".log", ".indexes", ".rsm-manifest"),
}


class TierEntry(NamedTuple):
    """A segment, on the disk, in the store, or on both."""

    topic_partition: TopicPartition
    topic_id: str
    role: Role
    base_offset: int
    last_offset: int | None
    """None: unknown."""
    size_bytes: int
    """Of the log; 0: unknown."""
    stored_bytes: int
    """Of all objects in the store."""
    segment_id: str
    leader_epochs: tuple[int, ...]
    max_timestamp_ms: int


def tier_entries(logs: LogDirsView, wanted: Collection[TopicPartition]) -> Iterator[TierEntry]:
    """Segments by partition and offset."""
    assert logs.tier is not None
    for at in sorted(wanted):
        found = [*_local_entries(logs, at), *_remote_entries(logs, logs.tier, at)]
        yield from sorted(found, key=lambda each: (each.base_offset, each.role, each.segment_id))


def _local_entries(logs: LogDirsView, at: TopicPartition) -> Iterator[TierEntry]:
    view = logs.partition(*at)
    segments = view.listing.segments
    for slot, segment in enumerate(segments):
        is_last = slot + 1 == len(segments)
        end = segment.end.next_offset if is_last else segments[slot + 1].base_offset
        yield TierEntry(
            at, "", "local", segment.base_offset, end - 1, segment.size_bytes, 0, "", (), -1
        )


def _remote_entries(logs: LogDirsView, tier: RemoteTier, at: TopicPartition) -> Iterator[TierEntry]:
    view = logs.partition(*at)
    used: set[str] = set()
    local_start = None
    if isinstance(view, TieredView):
        local_start = view.local_start_offset
        served = view.remote.served(view.lineage, view.log_start_offset)
        used = {each.segment.segment_id for each in served}
    for place, directory in _places(tier, at):
        log = tier.log_of(place)
        objects = tier.store.objects(directory)
        for name, suffixes in sorted(objects.items()):
            info = None if log is None else log.segments.get(name[21:])
            stored_bytes = sum(suffixes.values())
            yield _remote_entry(at, place, name, info, (stored_bytes, used, local_start))
        yield from _lost_entries(at, place, log, objects)


def _places(tier: RemoteTier, at: TopicPartition) -> list[tuple[TopicIdPartition, Path]]:
    return [
        (TopicIdPartition(each.topic, each.topic_id, each.partition), each.path)
        for each in tier.stored.get(at, ())
    ]


def _remote_entry(
    at: TopicPartition,
    place: TopicIdPartition,
    name: str,
    info: RemoteSegmentInfo | None,
    facts: tuple[int, set[str], int | None],
) -> TierEntry:
    stored_bytes, used, local_start = facts
    base, segment_id = int(name[:20]), name[21:]
    if info is None:
        return TierEntry(
            at, place.topic_id, "orphan", base, None, 0, stored_bytes, segment_id, (), -1
        )
    role: Role = "deleted"
    if info.state == STARTED:
        role = "incomplete"
    elif info.state == FINISHED and segment_id not in used:
        role = "unreachable"
    elif info.state == FINISHED:
        is_local = local_start is not None and info.end_offset >= local_start
        role = "both" if is_local else "remote"
    return _entry(at, place, info, role, stored_bytes)


def _entry(
    at: TopicPartition,
    place: TopicIdPartition,
    info: RemoteSegmentInfo,
    role: Role,
    stored_bytes: int,
) -> TierEntry:
    return TierEntry(
        at,
        place.topic_id,
        role,
        info.start_offset,
        info.end_offset,
        info.size_bytes,
        stored_bytes,
        info.segment_id,
        tuple(epoch for epoch, _ in info.epochs),
        info.max_timestamp_ms,
    )


def _lost_entries(
    at: TopicPartition, place: TopicIdPartition, log: RemoteLog | None, objects: Collection[str]
) -> Iterator[TierEntry]:
    """Segments that the metadata calls complete, and of which the store has nothing."""
    for info in () if log is None else log.live:
        if info.name not in objects:
            yield _entry(at, place, info, "remote", 0)


# -- verification


def verify_tier(logs: LogDirsView, wanted: Collection[TopicPartition]) -> VerifyReport:
    """Read every remote segment of these logs, and look for objects that are missing."""
    return VerifyReport.sum(_verify_partition(logs, at) for at in sorted(wanted))


def _verify_partition(logs: LogDirsView, at: TopicPartition) -> VerifyReport:
    assert logs.tier is not None
    try:
        view = logs.partition(*at)
    except StratalogError as error:
        finding = _finding(str(logs.tier.store.root), f"{at}: {error}", "remote-unreadable")
        return VerifyReport((finding,), VerifyCounts(partitions=1))
    found: list[Finding] = []
    counts = VerifyCounts(partitions=1)
    if isinstance(view, TieredView):
        for slot, segment in enumerate(view.segments):
            if isinstance(segment, RemoteSegmentView):
                report = _verify_segment(view, slot, segment)
                found += report.findings
                counts = counts.plus(report.counts)
    for each in _remote_entries(logs, logs.tier, at):
        if each.role in {"unreachable", "incomplete", "orphan"}:
            found.append(_unused(logs.tier, each))
    return VerifyReport(tuple(found), counts)


def _verify_segment(view: TieredView, slot: int, segment: RemoteSegmentView) -> VerifyReport:
    check = _RemoteSegmentCheck(segment, view.segments.bases[slot])
    try:
        check.objects()
        check.batches()
        check.side_files()
    except CorruptError as error:
        check.report(error.reason, "remote-corrupt", error.position)
    except SegmentGoneError:
        pass  # the missing object is reported
    except StratalogError as error:
        check.report(str(error), "remote-unreadable")
    return VerifyReport(tuple(check.findings), check.counts)


class _RemoteSegmentCheck:
    """Everything about one remote segment, as far as it is part of the log."""

    def __init__(self, segment: RemoteSegmentView, first_offset: int) -> None:
        self._segment = segment
        self._expected = first_offset
        self.findings: list[Finding] = []
        self.counts = VerifyCounts(segments=1, files=1, size_bytes=segment.size_bytes)

    def report(self, what: str, code: str, position: int = NO_POSITION) -> None:
        self.findings.append(_finding(str(self._segment.path), what, code, position))

    def objects(self) -> None:
        path, store = self._segment.path, self._segment.stored.store
        name = path.name.removesuffix(".log")
        there = store.objects(path.parent).get(name, {})
        for suffix in REQUIRED[store.layout]:
            if suffix not in there:
                missing = str(path.with_name(name + suffix))
                what, code = "missing in the store", "remote-object-missing"
                self.findings.append(_finding(missing, what, code))

    def batches(self) -> None:
        for batch in self._segment.batches(0, self._segment.size_bytes):
            header = batch.header
            count = VerifyCounts(batches=1, records=max(0, header.record_count or 0))
            self.counts = self.counts.plus(count)
            if header.next_offset <= self._expected:
                continue
            if header.base_offset is not None and header.base_offset > self._expected:
                what = f"offsets {self._expected} to {header.base_offset - 1} are missing"
                self.report(what, "remote-gap", batch.position)
            self._expected = header.next_offset
        end = self._segment.end.next_offset
        if self._expected != end:
            what = f"ends at offset {self._expected - 1}, expected {end - 1}"
            self.report(what, "remote-short")

    def side_files(self) -> None:
        """They can be read, and decrypted."""
        for kind in SIDE_FILES:
            self._segment.stored.side_file(kind)


def _finding(path: str, what: str, code: str, position: int = NO_POSITION) -> Finding:
    advice = "restore the object from a copy of the store, or the partition from a replica"
    return Finding(Severity.ERROR, code, path, position, what, advice)


def _unused(tier: RemoteTier, entry: TierEntry) -> Finding:
    directory = tier.store.directory(
        entry.topic_partition.topic, entry.topic_id, entry.topic_partition.partition
    )
    path = f"{directory}/{entry.base_offset:020d}-{entry.segment_id}"
    reasons = {
        "unreachable": "complete, but of no leader epoch of the log",
        "incomplete": "a copy that was never finished",
        "orphan": "in the store, but in no metadata",
    }
    what = f"{reasons[entry.role]}; {entry.stored_bytes} bytes"
    advice = (
        "nothing to do: readers never see it, and the broker deletes it with the segments around it"
    )
    return Finding(Severity.NOTE, f"remote-{entry.role}", path, NO_POSITION, what, advice)
