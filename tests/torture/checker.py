"""Compares the directory with the model while nobody writes to it. Reads only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import NotALogDirError
from stratalog.format.names import RootFile
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.maintenance.verify.findings import EXPLAINED_BY_COMPACTION, Severity
from stratalog.partitions.view import open_dirs
from tests.torture.content import COMMITTED, OrderCheck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_view import PartitionView
    from stratalog.partitions.view import LogDirsView
    from tests.torture.content import Identity
    from tests.torture.model import Expected, Group, Model, Partition, Pending, Topic
    from tests.torture.setup import Place

JOURNAL_NAMES: Final = "stratalog-commit*"


@dataclass
class Scan:
    """What is in one partition."""

    start: int
    end: int
    stable: int
    size_bytes: int
    found: dict[int, Identity]
    committed: set[int]
    """Offsets that readers of read_committed see."""


class Checker:
    """One check after the other of one run."""

    def __init__(self, place: Place, model: Model) -> None:
        self._place = place
        self._model = model
        self.records = 0

    def check(self) -> None:
        """Everything that was acknowledged is there; nothing is there that must not be."""
        views = open_dirs(*self._place.dirs)
        here = self._topics(views)
        self._check_topics(here)
        scans: list[tuple[Topic, int, Scan]] = []
        for topic_id, name in here.items():
            topic = self._model.topics[topic_id]
            found = {number: self._scan(views, name, number) for number in topic.partitions}
            self._place_found(topic, found)
            scans += [(topic, number, scan) for number, scan in found.items()]
        for topic, number, scan in scans:
            self._check_partition(topic, number, scan)
        self._judge_groups()
        self._drop_unwritten()

    def check_end(self) -> None:
        """Once the last writer has cleaned up: nothing is open, and nothing is left lying about.

        A `.tmp` that a kill has left is no matter: the next write of that file replaces it.
        """
        views = open_dirs(*self._place.dirs)
        for topic, partition in views.topic_partitions:
            with views.partition(topic, partition) as view:
                assert view.last_stable_offset == view.log_end_offset, (
                    f"{topic}-{partition}: last stable offset {view.last_stable_offset}, "
                    f"log end {view.log_end_offset}, and no transaction is open"
                )
        for root in self._place.dirs:
            for path in root.rglob("*"):
                name = path.name
                bad = (".staged", ".swap", ".cleaned", ".deleted", "-delete")
                assert not name.endswith(bad), f"{path} was left behind"
                assert not path.match(JOURNAL_NAMES), f"{path} was left behind"

    def verify(self) -> None:
        """As the command does."""
        for root in self._place.dirs:
            is_clean = is_closed(root)
            for finding in verify_directory(root, threads=1).findings:
                is_allowed = finding.severity is Severity.NOTE
                if is_clean:
                    is_allowed |= finding.code in EXPLAINED_BY_COMPACTION
                else:  # opening repairs it
                    is_allowed |= finding.severity is Severity.WARNING
                assert is_allowed, f"verify (clean: {is_clean}): {finding}"

    # -- topics

    def _topics(self, views: LogDirsView) -> dict[str, str]:
        """Ids and names of those that are whole. A topic that is just made may be in parts."""
        here = {}
        for name, numbers in views.partition_numbers.items():
            if name.startswith("__"):
                continue
            ids = set()
            for number in numbers:
                try:
                    with views.partition(name, number) as view:
                        ids.add(view.topic_id)
                except NotALogDirError:
                    ids.add(None)
            (topic_id, *others) = ids
            if topic_id is None or others:
                assert name in self._model.creating, f"{name}: topic ids {ids}"
                continue
            if str(topic_id) not in self._model.topics:
                assert name in self._model.creating, f"{name}: nobody made topic {topic_id}"
            self._model.adopt(name, str(topic_id))
            here[str(topic_id)] = name
        return here

    def _check_topics(self, here: dict[str, str]) -> None:
        model = self._model
        for topic_id, topic in list(model.topics.items()):
            if topic_id in here:
                assert not topic.is_gone, f"{topic.name} {topic_id} was deleted, and is here"
                # Whoever opens the directory completes a deletion that was begun before.
                is_settled = model.was_opened and topic.delete_round < model.round
                topic.may_be_gone = topic.may_be_gone and not is_settled
            else:
                assert topic.is_gone or topic.may_be_gone, f"topic {topic.name} {topic_id} is gone"
                if model.was_opened or topic.is_gone:
                    del model.topics[topic_id]

    # -- records

    def _scan(self, views: LogDirsView, name: str, number: int) -> Scan:
        with views.partition(name, number) as view:
            found, order = {}, OrderCheck()
            for record in view.read("earliest"):
                found[record.offset] = order.take(record)
            self.records += len(found)
            return Scan(
                view.log_start_offset,
                view.log_end_offset,
                view.last_stable_offset,
                view.size_bytes,
                found,
                _committed(view, found),
            )

    def _place_found(self, topic: Topic, scans: dict[int, Scan]) -> None:
        seen: dict[tuple[str, int], str] = {}
        for number, scan in scans.items():
            part = topic.partitions[number]
            for offset, identity in scan.found.items():
                where, uid = f"{topic.name}-{number} offset {offset}", (identity[0], identity[1])
                assert uid not in seen, f"{identity} is at {where} and at {seen[uid]}"
                seen[uid] = where
                if offset < part.start:
                    continue  # deleted, and the checkpoint that said so was lost
                if offset not in part.placed:
                    pending = topic.pending.get(uid)
                    assert pending is not None, f"{where}: {identity} should not be here"
                    self._model.place(topic, number, offset, pending.record)
                _note_visibility(part.placed[offset], offset, scan, f"{where}: {identity}")

    def _check_partition(self, topic: Topic, number: int, scan: Scan) -> None:
        part, where = topic.partitions[number], f"{topic.name}-{number}"
        self._check_removed(topic, number, scan)
        if topic.kind.is_compacted:
            _check_compacted(topic, part, scan, where)
        for offset, record in part.placed.items():
            found = scan.found.get(offset)
            what = f"{where} offset {offset}: {record.identity}"
            assert found is not None, f"{what} is missing; the log is {_range(scan)}"
            assert found == record.identity, f"{what} expected, found {found}"
        part.start, part.end = max(part.start, scan.start), max(part.end, scan.end)

    def _check_removed(self, topic: Topic, number: int, scan: Scan) -> None:
        """The log start moves no further than retention (see `Deletion`) and `delete_records` have
        moved it."""
        part = topic.partitions[number]
        allowed = max(part.trim_to, part.deleted_to)
        assert scan.start <= allowed, (
            f"{topic.name}-{number}: the log is {_range(scan)}; retention deleted records before "
            f"{part.deleted_to}, and delete_records before {part.trim_to}"
        )
        for offset in [each for each in part.placed if each < scan.start]:
            del part.placed[offset]

    # -- groups

    def _judge_groups(self) -> None:
        is_finished = not any(any(root.glob(JOURNAL_NAMES)) for root in self._place.dirs)
        for group in list(self._model.groups.values()):
            missing = self._missing(group)
            if not missing:
                self._model.settle(group)
            elif group.is_transaction:
                self._judge_transaction(group, missing)
            elif is_finished:
                self._judge_commit(group, missing)

    def _judge_transaction(self, group: Group, missing: list[tuple[Topic, Pending]]) -> None:
        if group.is_certain:
            for topic, pending in missing:
                assert _may_be_deleted(topic, pending), f"{pending} of {group} is missing"
            self._model.settle(group)

    def _judge_commit(self, group: Group, missing: list[tuple[Topic, Pending]]) -> None:
        is_recovered = all(self._model.is_recovered(pending) for _, pending in missing)
        is_begun = len(missing) < len(group.uids)
        if group.is_certain or (is_begun and is_recovered):
            for topic, pending in missing:
                assert _may_be_deleted(topic, pending), (
                    f"{len(missing)} of {len(group.uids)} records of commit {group.name} "
                    f"(acknowledged: {group.is_certain}) are missing: {pending}"
                )
            self._model.settle(group)

    def _missing(self, group: Group) -> list[tuple[Topic, Pending]]:
        missing = []
        for topic_id, uid in group.uids:
            topic = self._model.topics.get(topic_id)
            pending = None if topic is None else topic.pending.get(uid)
            if topic is not None and pending is not None:
                missing.append((topic, pending))
        return missing

    def _drop_unwritten(self) -> None:
        """What recovery has not brought must not come any more; a commit may be tried again."""
        for topic in self._model.topics.values():
            for uid, pending in list(topic.pending.items()):
                group = pending.record.group
                may_come = group is not None and not group.is_transaction
                if self._model.is_recovered(pending) and not may_come:
                    del topic.pending[uid]


def _committed(view: PartitionView, found: dict[int, Identity]) -> set[int]:
    order, offsets = OrderCheck(), set()
    for record in view.read("earliest", isolation=IsolationLevel.READ_COMMITTED):
        identity = order.take(record)
        assert found[record.offset] == identity
        offsets.add(record.offset)
    return offsets


def _note_visibility(record: Expected, offset: int, scan: Scan, what: str) -> None:
    group, is_visible = record.group, offset in scan.committed
    if group is None or not group.is_transaction:
        assert is_visible or offset >= scan.stable, f"{what} is hidden from read_committed"
    elif is_visible:
        is_right = group.is_intended and record.identity.fate == COMMITTED
        assert is_right, f"{what} was not committed, and read_committed sees it"
        assert not group.is_aborted, f"{what}: parts of its transaction were aborted"
        group.is_certain = True
    elif offset < scan.stable:
        assert not group.is_certain, f"{what} was committed, and read_committed does not see it"
        group.is_aborted = True


def _check_compacted(topic: Topic, part: Partition, scan: Scan, where: str) -> None:
    """The last value of each key is there; what is gone has a later one, or was deleted: by a
    tombstone, which may be gone, too."""
    pending = [pending.record.identity for pending in topic.pending.values()]
    deleted = {identity.key for identity in pending if identity.value is None}
    last: dict[bytes | None, int] = defaultdict(lambda: -1)
    for offset, record in part.placed.items():
        if not _is_uncertain(record):
            last[record.identity.key] = max(last[record.identity.key], offset)
    for offset in [offset for offset in part.placed if offset not in scan.found]:
        record = part.placed.pop(offset)
        key = record.identity.key
        if _is_uncertain(record) or last[key] > offset or key in deleted:
            continue
        what = f"{where} offset {offset}: {record.identity}"
        assert record.identity.value is None, f"{what}, the last of its key, is gone"
        part.deleted_keys[key] = offset
    for offset, identity in scan.found.items():
        tombstone = part.deleted_keys.get(identity.key, -1)
        assert offset > tombstone or offset not in scan.committed, (
            f"{where} offset {offset}: {identity} was deleted at {tombstone}, and is here"
        )


def _is_uncertain(record: Expected) -> bool:
    """It belongs to a transaction of which nobody knows whether it was committed, or that was
    not."""
    group = record.group
    return group is not None and group.is_transaction and not group.is_certain


def _may_be_deleted(topic: Topic, pending: Pending) -> bool:
    """It was written, perhaps, and retention or compaction was faster than any look at it."""
    parts, key = topic.partitions, pending.record.identity.key
    if any(parts[number].start > floor for number, floor in pending.floors.items()):
        return True
    if not topic.kind.is_compacted:
        return False
    later = [other.record.identity for other in topic.pending.values()]
    if any(identity.key == key and identity.value is None for identity in later):
        return True
    return any(
        offset >= pending.floors[number] and key == other
        for number, part in parts.items()
        for offset, other in _keys_of(part)
    )


def _keys_of(part: Partition) -> Iterator[tuple[int, bytes | None]]:
    for offset, record in part.placed.items():
        yield offset, record.identity.key
    for key, offset in part.deleted_keys.items():
        yield offset, key


def _range(scan: Scan) -> str:
    return f"[{scan.start}, {scan.end}), stable to {scan.stable}, {scan.size_bytes} bytes"


def is_closed(root: Path) -> bool:
    """Whether the last writer says that it has closed all logs of the directory."""
    return (root / RootFile.CLEAN_SHUTDOWN.value).exists()


def snapshot(place: Place) -> dict[Path, tuple[int, int, int]]:
    """Every file as it is now: to be compared with how it is when only readers have run."""
    found = {}
    for root in place.dirs:
        for path in root.rglob("*"):
            stat = path.lstat()
            found[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found
