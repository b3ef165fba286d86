"""Exactly-once writes as Spark does them: tasks stage, a driver commits, and comes again if it was
killed. What a micro-batch holds is kept outside of the log directory, as in a query's checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import time
import traceback
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.bulk.row_staging import RowStager, StagingOptions
from stratalog.bulk.target import Target, abandon_job
from stratalog.commits.journal import CommitIdentity
from stratalog.commits.staged import RunStager, StagedCommit
from stratalog.config import BrokerConfig
from stratalog.errors import (
    CommitError,
    LogDirLockedError,
    StorageError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.batch import Codec
from stratalog.format.column_types import schema_of
from tests.torture.content import STAGED, Identity
from tests.torture.faults import TrappedDisk
from tests.torture.retention import note_deletions
from tests.torture.setup import BROKER, LASTING, PASSING, Complaints, Journal, kind_of, now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.commits.staged import StagedRun
    from stratalog.log_dir import LogDir
    from stratalog.storage.disk import Disk
    from tests.torture.faults import Trap
    from tests.torture.setup import Place

_KEPT_BATCHES = 20
_REFUSALS_MAX = 5
NOWHERE = "nowhere"


@dataclass(frozen=True)
class MicroBatch:
    """What a commit appends, the same each time that it is tried."""

    query: str
    number: int
    topic: str
    count: int
    tasks: int
    at: int

    @property
    def stream(self) -> str:
        return f"{self.query}.{self.number}"

    @property
    def identities(self) -> list[Identity]:
        is_keyed = kind_of(self.topic).is_compacted
        return [Identity(self.stream, n, self.at, STAGED, is_keyed) for n in range(self.count)]

    def rows_of(self, task: int) -> list[Identity]:
        """Tasks have consecutive parts: so numbers grow within a partition."""
        bounds = [self.count * n // self.tasks for n in range(self.tasks + 1)]
        return self.identities[bounds[task] : bounds[task + 1]]


class Query:
    """A streaming query. Two drivers may believe to be it."""

    def __init__(self, place: Place, name: str, disk: Disk) -> None:
        self.name = name
        self._place = place
        self._disk = disk
        self._dir = place.queries / name
        self._dir.mkdir(exist_ok=True)
        self.job = hashlib.md5(name.encode()).hexdigest()
        self.target = Target(place.dirs, config=BrokerConfig.parse(BROKER))

    # -- what to commit

    def next_batch(self, rng: random.Random, topics: Sequence[str]) -> MicroBatch:
        """A new one, or the last one again: certainly if it is not known to be done."""
        numbers = sorted(int(path.stem) for path in self._dir.glob("*.json"))
        for number in numbers[:-_KEPT_BATCHES]:
            (self._dir / f"{number}.json").unlink(missing_ok=True)
        if numbers and (rng.random() < 0.1 or not self._is_done(numbers[-1])):
            return self._load(numbers[-1])
        number = numbers[-1] + 1 if numbers else 0
        count = rng.choice([1, 10, 60, 200, 800])
        batch = MicroBatch(
            self.name, number, rng.choice(topics), count, rng.randint(1, 3), now_ms()
        )
        draft = self._dir / f"draft-{os.getpid()}-{rng.random()}"
        draft.write_text(json.dumps(asdict(batch)))
        try:
            os.link(draft, self._dir / f"{number}.json")
        except FileExistsError:  # the other driver was faster
            return self._load(number)
        finally:
            draft.unlink()
        return batch

    def _load(self, number: int) -> MicroBatch:
        return MicroBatch(**json.loads((self._dir / f"{number}.json").read_text()))

    def _is_done(self, number: int) -> bool:
        return number <= self._last_done()[0]

    def _last_done(self) -> tuple[int, str]:
        """The last micro-batch that needs no retry, and the id of the topic that has it."""
        path = self._dir / "done"
        number, topic_id = path.read_text().split() if path.exists() else (-1, NOWHERE)
        return int(number), topic_id

    def _note_done(self, number: int, topic_id: str) -> None:
        draft = self._dir / f"done-{os.getpid()}"
        draft.write_text(f"{number} {topic_id}")
        draft.replace(self._dir / "done")

    # -- how

    def stage(self, batch: MicroBatch) -> StagedCommit:
        """All tasks of a micro-batch."""
        runs: list[StagedRun] = []
        for task in range(batch.tasks):
            with RunStager(self._disk, self.job, batch.number, task) as stager:
                rng = random.Random(f"{batch.stream}/{task}")
                terms = StagingOptions(
                    batch.topic, rng.choice(list(Codec)), batch_bytes=rng.choice([300, 5000, 20000])
                )
                rows = RowStager(stager, self.target, terms, task=task, now_ms=now_ms)
                rows.add(_columns(batch.rows_of(task), kind_of(batch.topic).partitions))
                runs += rows.finish()
        identity = CommitIdentity(str(uuid.UUID(self.job)), batch.number)
        return StagedCommit(tuple(runs), self.job, batch.number, identity)

    def commit(self, logs: LogDir, journal: Journal, rng: random.Random) -> None:
        """Stage and commit in the process that has the directory open."""
        batch = self.next_batch(rng, LASTING)
        self.commit_to(logs, journal, batch, self.stage(batch))

    def commit_to(
        self, logs: LogDir, journal: Journal, batch: MicroBatch, staged: StagedCommit
    ) -> None:
        """Let the directory have it, and remember that it does."""
        info = logs.topic(batch.topic)
        ends = {p: logs.partition(batch.topic, p).log_end_offset for p in info.partitions}
        journal.note("decide", **asdict(batch), id=str(info.topic_id), ends=ends)
        result = logs.commits.commit(staged)
        journal.note("decided", stream=batch.stream, is_replay=result.is_replay)
        if self._last_done() == (batch.number, str(info.topic_id)):
            assert result.is_replay, f"{batch} was committed a second time"
        self._note_done(batch.number, str(info.topic_id))

    def give_up(self, batch: MicroBatch) -> None:
        """Its topic is gone. If it is tried again, it is for the next topic of that name."""
        self._note_done(batch.number, NOWHERE)


def _columns(identities: Sequence[Identity], partitions: int) -> pa.RecordBatch:
    types = schema_of(["timestamp", "headers"])
    return pa.record_batch(
        {
            "value": pa.array([one.value for one in identities], pa.binary()),
            "key": pa.array([one.key for one in identities], pa.binary()),
            "timestamp": pa.array([one.timestamp for one in identities], types.field(0).type),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in one.headers] for one in identities],
                types.field(1).type,
            ),
            "partition": pa.array([one.number % partitions for one in identities], pa.int32()),
        }
    )


@dataclass(frozen=True)
class DriverPlan:
    """What one driver is to do."""

    name: str
    seed: str
    seconds: float
    query: str
    trap: Trap | None = None
    may_fail: bool = False


class Driver:
    """A process that stages without the lock, and takes it to commit."""

    def __init__(self, place: Place, plan: DriverPlan) -> None:
        self._place = place
        self._plan = plan
        self._trapped = TrappedDisk(plan.trap)
        self._rng = random.Random(plan.seed)
        self._complaints = Complaints()
        self.journal = Journal(place, plan.name)
        note_deletions(self.journal)
        self._query = Query(place, plan.query, self._trapped.disk)
        self._deadline = time.monotonic() + plan.seconds

    def run(self) -> None:
        refusals = 0
        while time.monotonic() < self._deadline:
            try:
                self._step()
                refusals = 0
            except (LogDirLockedError, UnknownTopicOrPartitionError):
                time.sleep(0.01)
            except CommitError:  # the topic has other settings; or the other driver was faster
                refusals += 1
                if refusals > _REFUSALS_MAX and not self._plan.may_fail:
                    raise
            except StratalogError as error:
                is_swept = isinstance(error, StorageError) and error.errno == errno.ENOENT
                if not (is_swept or self._plan.may_fail):
                    raise  # swept: the other driver of the query has committed the micro-batch
                time.sleep(0.05)
        assert self._plan.may_fail or self._complaints.first is None, self._complaints.first

    def _step(self) -> None:
        query = self._query
        batch = query.next_batch(self._rng, (*LASTING, PASSING[0]))
        self._trapped.step()
        try:
            staged = query.stage(batch)
        except UnknownTopicOrPartitionError:
            query.give_up(batch)
            return
        if self._rng.random() < 0.1:
            time.sleep(self._rng.random() * 0.2)
        try:
            logs = self._open()
        except LogDirLockedError:
            if self._rng.random() < 0.3:
                abandon_job(query.target, query.job)
            raise
        self._trapped.step()
        try:
            query.commit_to(logs, self.journal, batch, staged)
        except CommitError as error:
            if "deleted" in str(error):
                query.give_up(batch)
                return
            raise
        except UnknownTopicOrPartitionError:
            query.give_up(batch)
        finally:
            self.journal.note("close")
            logs.close()
            self.journal.note("closed")

    def _open(self) -> LogDir:
        end = min(time.monotonic() + 1, self._deadline)
        self.journal.note("open")
        self._trapped.step()
        while True:
            try:
                logs = self._place.open(self._trapped.disk, background=False)
            except LogDirLockedError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.005)
            else:
                self.journal.note("opened")
                return logs


def drive(place: Place, plan: DriverPlan) -> None:
    """What the process does."""
    driver = Driver(place, plan)
    try:
        driver.run()
    except Exception:
        driver.journal.note("failure", what=traceback.format_exc())
    os._exit(0)
