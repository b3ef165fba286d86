"""Repeated commits: recognized per writer and topic, compared, and skipped or refused.

A writer is a streaming query, or the name that an application chose (`txnAppId`); its commits are
numbered. As in Delta Lake, numbers are per table, here per topic: one micro-batch may be written to
two topics with the same number. `stratalog-state.json` has the last commits of each writer to each
topic, with the number of rows and their checksum. A commit with a known number is skipped if it has
the same rows, and rejected if it has others: skipping would lose them. A commit is also rejected if
its number is lower than the last one and no longer known.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CommitError, CommitReplayError
from stratalog.partitions.saved_state import SavedCommit, SavedCommits

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection

    from stratalog.commits.journal import CommitIdentity, Journal
    from stratalog.commits.staged import StagedCommit
    from stratalog.partitions.catalog import TopicCatalog

NUMBER_MAX: Final = (1 << 63) - 1
HISTORY: Final = 10
"""How many commits of a writer to a topic are kept for comparison."""

_log = logging.getLogger(__name__)


class ReplayCheck(NamedTuple):
    """A commit without the topics to which it was already committed."""

    new: StagedCommit
    skipped_records: int
    skipped_topics: Collection[str]


class CommitHistory:
    """What every writer has committed to every topic, in the state of the log directories."""

    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog

    def last_number(self, writer: str, topic: str | None = None) -> int | None:
        """The number of the writer's last commit to the topic (None: to any topic); None if there
        was none."""
        state = self._catalog.store.state
        saved = state.topic_commits.get(writer, {})
        numbers = [
            found.commits[-1].number for name, found in saved.items() if topic in (None, name)
        ]
        if writer in state.commits:
            numbers.append(state.commits[writer])
        return max(numbers, default=None)

    def check(self, commit: StagedCommit) -> ReplayCheck:
        """Which part of a commit is new. Raises CommitReplayError if another part is neither new
        nor the same as before."""
        identity = commit.identity
        if identity is None:
            return ReplayCheck(commit, 0, ())
        if not 0 <= identity.number <= NUMBER_MAX:
            raise CommitError(
                f"the commit number {identity.number} is not between 0 and {NUMBER_MAX}. Nothing "
                "was written"
            )
        skipped: dict[str, int] = {}
        for topic, (records, checksum) in commit.rows_by_topic().items():
            info = self._catalog.topics.get(topic)
            topic_id = None if info is None else info.topic_id
            rows = SavedCommit(identity.number, records, checksum)
            if self._is_replay(identity, topic, topic_id, rows):
                skipped[topic] = records
        new = tuple(run for run in commit.runs if run.topic_partition.topic not in skipped)
        return ReplayCheck(replace(commit, runs=new), sum(skipped.values()), skipped.keys())

    def record(self, journal: Journal) -> None:
        """Record a commit that is installed. Durable when it returns."""
        identity = journal.identity
        if identity is None:
            return
        store = self._catalog.store
        saved = dict(store.state.topic_commits.get(identity.writer, {}))
        saved = {topic: found for topic, found in saved.items() if self._is_here(topic, found)}
        for topic, topic_id, records in _topics_of(journal):
            one = SavedCommit(identity.number, records, journal.checksums.get(topic))
            found = saved.get(topic)
            earlier = found.commits if found is not None and found.topic_id == topic_id else ()
            earlier = tuple(other for other in earlier if other.number < one.number)
            saved[topic] = SavedCommits(topic_id, (*earlier, one)[-HISTORY:])
        store.update(topic_commits={**store.state.topic_commits, identity.writer: saved})

    def _is_here(self, topic: str, found: SavedCommits) -> bool:
        info = self._catalog.topics.get(topic)
        return info is not None and info.topic_id == found.topic_id

    def _is_replay(
        self, identity: CommitIdentity, topic: str, topic_id: uuid.UUID | None, rows: SavedCommit
    ) -> bool:
        state = self._catalog.store.state
        found = state.topic_commits.get(identity.writer, {}).get(topic)
        if found is not None and found.topic_id == topic_id:
            return _is_replay_of(found, identity, topic, rows)
        known = state.commits.get(identity.writer)
        if known is None or identity.number > known:
            return False
        if identity.number < known:
            raise _too_old(identity, topic, known)
        _log.warning(
            "%s: skipped commit %d to topic %s with %d rows: it was already committed, by a "
            "version of Stratalog that did not record row counts",
            *(identity.writer, identity.number, topic, rows.records),
        )
        return True


def _is_replay_of(
    found: SavedCommits, identity: CommitIdentity, topic: str, rows: SavedCommit
) -> bool:
    last = found.commits[-1].number
    if rows.number > last:
        return False
    before = next((one for one in found.commits if one.number == rows.number), None)
    if before is None:
        raise _too_old(identity, topic, last)
    if not _is_same(before, rows):
        raise CommitReplayError(
            f"commit {identity.number} of {identity.writer!r} to topic {topic!r} is repeated with "
            f"other rows: {_described(rows)}, but {_described(before)} were committed. Nothing was "
            "written. If these are new rows (a query started from an older or a copied "
            "checkpoint), give them a new identity: another checkpoint, another txnAppId, or a "
            "higher txnVersion. If they are the same rows computed again (rand, uuid), the topic "
            "already has them: set the option replayCheck to count to compare only row counts"
        )
    _log.warning(
        "%s: skipped commit %d to topic %s: its %d rows were already committed",
        *(identity.writer, identity.number, topic, rows.records),
    )
    return True


def _is_same(before: SavedCommit, rows: SavedCommit) -> bool:
    if before.records != rows.records:
        return False
    return None in (before.checksum, rows.checksum) or before.checksum == rows.checksum


def _described(rows: SavedCommit) -> str:
    checksum = "" if rows.checksum is None else f" (checksum {rows.checksum:x})"
    return f"{rows.records} rows{checksum}"


def _too_old(identity: CommitIdentity, topic: str, last: int) -> CommitReplayError:
    return CommitReplayError(
        f"commit {identity.number} of {identity.writer!r} to topic {topic!r} comes after commit "
        f"{last}, and it is unknown whether its rows were already committed. Nothing was written. "
        "Start the query with a new checkpoint; an application needs a higher txnVersion or "
        "another txnAppId"
    )


def _topics_of(journal: Journal) -> list[tuple[str, uuid.UUID | None, int]]:
    """The topics of a journal, with their ids and numbers of records."""
    found: dict[str, tuple[uuid.UUID | None, int]] = {}
    for part in journal.partitions:
        topic = part.topic_partition.topic
        _, records = found.get(topic, (None, 0))
        found[topic] = (part.topic_id, records + part.record_count)
    return [(topic, topic_id, records) for topic, (topic_id, records) in found.items()]
