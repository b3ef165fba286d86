"""The segments of a tiered topic, local and remote ones side by side, and unused objects.

Operators pay for every object in the store. Some are not part of any log: copies of a leader that
lost an election, copies that were never finished, objects that no metadata names. Where the
metadata is not at hand it is unknown what an object is, and nothing is called unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from stratalog.errors import CorruptError, SegmentGoneError, StratalogError, TieredLogError
from stratalog.format.aiven_manifest import MANIFEST_SUFFIX
from stratalog.format.counts import added
from stratalog.log.partition_view import PartitionView
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

    from stratalog.format.names import TopicPartition
    from stratalog.log.remote_segments import RemoteLog, RemoteSegmentInfo
    from stratalog.partitions.tiered import RemoteTier
    from stratalog.partitions.view import LogDirsView

Role: TypeAlias = Literal[
    "local", "remote", "both", "unreachable", "incomplete", "deleted", "orphan", "unknown"
]
"""`remote` and `both` are part of the log, `both` also on the disk. `unreachable` is complete, but
no leader epoch of the log leads there; of a `deleted` one the deletion has begun; an `orphan` is in
the store and in no metadata. It is `unknown` what a segment is if the metadata of its partition, or
a part of the log, is missing."""

_AFTER_ERROR: Final = "then verify the remote part again"
"""Advice for errors that say what to do."""

REQUIRED: Final = {
    "local": (".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"),
    "aiven": (".log", ".indexes", MANIFEST_SUFFIX),
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
    max_timestamp_ms: int | None
    """None: unknown."""
    reason: str = ""
    """Why its role is unknown; of a local segment, why the remote part of its log is."""


class _KnownLog(NamedTuple):
    """What is known of the log of a partition."""

    used: frozenset[str]
    """Ids of the segments that are part of it."""
    local_start: int | None
    problem: str
    """Why it cannot be read; empty if it can."""


def tier_entries(logs: LogDirsView, wanted: Collection[TopicPartition]) -> Iterator[TierEntry]:
    """Segments by partition and offset."""
    assert logs.tier is not None
    for tp in sorted(wanted):
        found = [*_local_entries(logs, tp), *_remote_entries(logs, logs.tier, tp)]
        yield from sorted(found, key=lambda each: (each.base_offset, each.role, each.segment_id))


def _opened(logs: LogDirsView, tp: TopicPartition) -> tuple[PartitionView | None, str]:
    """The log, or as much of it as is on the disk, and why it is not all of it."""
    try:
        return logs.partition(*tp), ""
    except TieredLogError as error:
        problem = str(error)
    try:
        return PartitionView(logs.path_of(*tp)), problem
    except StratalogError:
        return None, problem


def _local_entries(logs: LogDirsView, tp: TopicPartition) -> Iterator[TierEntry]:
    view, problem = _opened(logs, tp)
    segments = () if view is None else view.listing.segments
    for slot, segment in enumerate(segments):
        is_last = slot + 1 == len(segments)
        end = segment.end.next_offset if is_last else segments[slot + 1].base_offset
        place = (segment.base_offset, end - 1, segment.size_bytes)
        yield TierEntry(tp, "", "local", *place, 0, "", (), None, problem)


def _known(logs: LogDirsView, tp: TopicPartition) -> _KnownLog:
    view, problem = _opened(logs, tp)
    if not isinstance(view, TieredView):
        return _KnownLog(frozenset(), None, problem)
    served = view.remote.served(view.lineage, view.log_start_offset)
    used = frozenset(each.segment.segment_id for each in served)
    return _KnownLog(used, view.local_start_offset, problem)


def _remote_entries(logs: LogDirsView, tier: RemoteTier, tp: TopicPartition) -> Iterator[TierEntry]:
    known = _known(logs, tp)
    for place in tier.places(tp):
        log = tier.log_of(place)
        objects = tier.store.objects(tier.store.directory(*place))
        of_place = known._replace(problem=known.problem or tier.unknown_reason(place))
        for name, suffixes in sorted(objects.items()):
            info = None if log is None else log.segments.get(name[21:])
            stored_bytes = sum(suffixes.values())
            yield _remote_entry(tp, place, (name, stored_bytes), info, of_place)
        yield from _lost_entries(tp, place, log, objects)


def _remote_entry(
    tp: TopicPartition,
    place: TopicIdPartition,
    stored: tuple[str, int],
    info: RemoteSegmentInfo | None,
    known: _KnownLog,
) -> TierEntry:
    name, stored_bytes = stored
    role = _role(info, known)
    reason = known.problem if role == "unknown" else ""
    if info is not None:
        return _entry(tp, place, info, role, stored_bytes, reason)
    base, segment_id = int(name[:20]), name[21:]
    return TierEntry(
        tp, place.topic_id, role, base, None, 0, stored_bytes, segment_id, (), None, reason
    )


def _role(info: RemoteSegmentInfo | None, known: _KnownLog) -> Role:
    if info is None:
        return "unknown" if known.problem else "orphan"
    if info.state != FINISHED:
        return "incomplete" if info.state == STARTED else "deleted"
    if known.problem:
        return "unknown"
    if info.segment_id not in known.used:
        return "unreachable"
    is_local = known.local_start is not None and info.end_offset >= known.local_start
    return "both" if is_local else "remote"


def _entry(
    tp: TopicPartition,
    place: TopicIdPartition,
    info: RemoteSegmentInfo,
    role: Role,
    stored_bytes: int,
    reason: str = "",
) -> TierEntry:
    return TierEntry(
        tp,
        place.topic_id,
        role,
        info.start_offset,
        info.end_offset,
        info.size_bytes,
        stored_bytes,
        info.segment_id,
        tuple(epoch for epoch, _ in info.epochs),
        info.max_timestamp_ms if info.max_timestamp_ms >= 0 else None,
        reason,
    )


def _lost_entries(
    tp: TopicPartition, place: TopicIdPartition, log: RemoteLog | None, objects: Collection[str]
) -> Iterator[TierEntry]:
    """Segments that the metadata calls complete, and of which the store has nothing."""
    for info in () if log is None else log.live:
        if info.name not in objects:
            yield _entry(tp, place, info, "remote", 0)


# -- verification


def verify_tier(logs: LogDirsView, wanted: Collection[TopicPartition]) -> VerifyReport:
    """Read every remote segment of these logs, and look for objects that are missing."""
    return VerifyReport.sum(_verify_partition(logs, tp) for tp in sorted(wanted))


def _verify_partition(logs: LogDirsView, tp: TopicPartition) -> VerifyReport:
    assert logs.tier is not None
    try:
        view = logs.partition(*tp)
    except StratalogError as error:
        text = str(error).removeprefix(f"{tp}: ")
        finding = _finding(str(logs.tier.store.root), f"{tp}: {text}", "remote-unreadable")
        if isinstance(error, TieredLogError):
            finding = finding._replace(advice=_AFTER_ERROR)
        return VerifyReport((finding,), VerifyCounts(partitions=1))
    found: list[Finding] = []
    counts = VerifyCounts(partitions=1)
    if isinstance(view, TieredView):
        for slot, segment in enumerate(view.segments):
            if isinstance(segment, RemoteSegmentView):
                report = _verify_segment(view, slot, segment)
                found += report.findings
                counts = added(counts, report.counts)
    for each in _remote_entries(logs, logs.tier, tp):
        if each.role in {"unreachable", "incomplete", "orphan"}:
            found.append(_unused(logs.tier, each))
        elif each.role == "unknown":
            found.append(_unknown(logs.tier, each))
    return VerifyReport(tuple(found), counts)


def _verify_segment(view: TieredView, slot: int, segment: RemoteSegmentView) -> VerifyReport:
    check = _RemoteSegmentCheck(segment, view.segments.bases[slot])
    try:
        check.objects()
        check.batches()
        check.side_files()
    except CorruptError as error:
        check.report(error.reason, "remote-corrupt", error.position)
    except SegmentGoneError as error:
        if not check.findings:  # else the missing object is reported
            check.report(str(error), "remote-unreadable")
    except TieredLogError as error:
        check.report_unread(error)
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

    def report_unread(self, error: TieredLogError) -> None:
        """Report that the segment cannot be read, because the key is wrong or an object is
        missing."""
        path, text = str(self._segment.path), str(error)
        finding = _finding(path, text.removeprefix(f"{path}: "), "remote-unreadable")
        is_of_log = finding.what != text
        self.findings.append(finding._replace(advice=_AFTER_ERROR) if is_of_log else finding)

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
            self.counts = added(self.counts, count)
            if header.next_offset <= self._expected:
                continue
            if header.base_offset is not None and header.base_offset > self._expected:
                what = f"offsets {self._expected} to {header.base_offset - 1} are missing"
                self.report(what, "remote-gap", batch.position)
            self._expected = header.next_offset
        self._segment.check_unchanged()
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


def _path_of(tier: RemoteTier, entry: TierEntry) -> str:
    tp = entry.topic_partition
    directory = tier.store.directory(tp.topic, entry.topic_id, tp.partition)
    return f"{directory}/{entry.base_offset:020d}-{entry.segment_id}"


def _unknown(tier: RemoteTier, entry: TierEntry) -> Finding:
    what = f"whether it is part of the log is unknown: {entry.reason}"
    advice = "give all log directories that have a partition of __remote_log_metadata"
    path = _path_of(tier, entry)
    return Finding(Severity.WARNING, "remote-unknown", path, NO_POSITION, what, advice)


def _unused(tier: RemoteTier, entry: TierEntry) -> Finding:
    path = _path_of(tier, entry)
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
