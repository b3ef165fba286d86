"""The process that holds the lock: it does whatever a user may do, in an order that a seed decides.

It notes what it is about to do before, and what was acknowledged after. In a round without faults
every error is one too many, but for those that an operation asks for.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogDirLockedError,
    LogOfflineError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.log.reader import IsolationLevel
from tests.torture.content import ABORTED, COMMITTED, PLAIN, Identity, OrderCheck
from tests.torture.faults import TrappedDisk
from tests.torture.retention import note_deletions
from tests.torture.setup import (
    LASTING,
    PASSING,
    SEGMENT_BYTES,
    TIMEOUT_MS,
    Complaints,
    Journal,
    kind_of,
    now_ms,
)
from tests.torture.staging import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.batches import Delivery
    from stratalog.producing.producer import Producer
    from stratalog.producing.transactions import Transaction
    from tests.torture.faults import Trap
    from tests.torture.setup import Place

_CHILD_PATIENCE_S: Final = 5.0
_LOCK_PATIENCE_S: Final = 60.0
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_GONE: Final = (UnknownTopicOrPartitionError, LogOfflineError, OffsetOutOfRangeError)
"""What another thread of the same process may have caused by deleting a topic or records."""

_FENCED: Final = (ProducerFencedError, InvalidProducerEpochError, InvalidTxnStateError)


@dataclass(frozen=True)
class WriterPlan:
    """What one writer is to do."""

    name: str
    seed: str
    seconds: float
    trap: Trap | None = None
    threads: int = 1
    has_maintenance: bool = True
    may_fail: bool = False
    """The disk fails or fills up: typed errors are to be expected."""
    without: tuple[str, ...] = ()
    """Operations to leave out, to narrow down a failure."""
    is_last: bool = False
    """Write nothing; wait until every transaction has ended, and clean up."""


class Writer:
    """One LogDir and those who use it."""

    def __init__(self, place: Place, plan: WriterPlan, connection: Connection) -> None:
        self.place = place
        self.plan = plan
        self.connection = connection
        self.journal = Journal(place, plan.name)
        note_deletions(self.journal)
        self.trapped = TrappedDisk(plan.trap)
        self.rng = random.Random(plan.seed)
        self.deadline = time.monotonic() + plan.seconds
        self.complaints = Complaints()
        self.failure: str | None = None
        self.opens = 0
        self.logs: LogDir

    def run(self) -> None:
        """From the first open to a clean close."""
        fds = _open_fds()
        while True:
            if not self._open():
                return
            if self.plan.is_last:
                self._settle()
            else:
                self._work()
            self._close()
            if time.monotonic() >= self.deadline or self.failure:
                break
        del self.logs
        gc.collect()
        left = _open_fds() - fds
        if not self.plan.may_fail:
            assert not left, f"files left open: {left}"

    def _open(self) -> bool:
        self.journal.note("open")
        self.trapped.step()
        try:
            self.logs = self._opened()
        except StratalogError as error:
            self.check_expected(error)
            return False
        self.opens += 1
        self.journal.note("opened")
        return True

    def _opened(self) -> LogDir:
        """A driver may have come first, if this process was paused at its start."""
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                return self.place.open(self.trapped.disk)
            except LogDirLockedError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.05)

    def _close(self) -> None:
        self.journal.note("close")
        self.trapped.step()
        try:
            self.logs.close()
        except StratalogError as error:
            self.check_expected(error)
            self.journal.note("closed", error=repr(error))
        else:
            self.journal.note("closed")

    def _work(self) -> None:
        if self.plan.has_maintenance:
            self.logs.maintenance.start()
        users = [User(self, number) for number in range(self.plan.threads)]
        others = [threading.Thread(target=user.run) for user in users[1:]]
        for thread in others:
            thread.start()
        users[0].run()
        for thread in others:
            thread.join()
        if self.failure is None and not self.plan.may_fail:
            failing = self.logs.maintenance.state().failing
            assert not failing, f"maintenance fails: {failing[0].failures}"
            assert self.complaints.first is None, self.complaints.first

    def _settle(self) -> None:
        logs = self.logs
        end = time.monotonic() + 60
        while logs.open_transactions():
            assert time.monotonic() < end, f"still open: {logs.open_transactions()}"
            time.sleep(0.1)
        for topic in logs.topics:
            list(logs.partitions_of(topic))  # opening a log removes what was left in it
        logs.commits.finish()
        logs.commits.sweep(stale_ms=0)
        logs.maintenance.run_once()
        time.sleep(0.5)  # log.segment.delete.delay.ms

    def check_expected(self, error: Exception) -> None:
        """Raises unless the disk is to blame."""
        if not self.plan.may_fail or not isinstance(error, StratalogError):
            raise error


class User:
    """One thread's operations."""

    def __init__(self, writer: Writer, number: int) -> None:
        self.writer = writer
        self.logs = writer.logs
        self.journal = writer.journal
        self.rng = random.Random(f"{writer.plan.seed}/{number}/{writer.opens}")
        self.is_alone = writer.plan.threads == 1
        self.number = number
        self.name = f"{writer.plan.name}.{number}.{writer.opens}"
        self._ops = 0
        self._open: list[Transaction] = []
        self._producers: list[Producer] = []
        self._query = Query(writer.place, f"in-process-{number}", writer.trapped.disk)

    def run(self) -> None:
        """Until the time is over, or it is time to open the directory again."""
        try:
            self._create_topics()
            while time.monotonic() < self.writer.deadline and self.writer.failure is None:
                operation = self._choose()
                if operation is None:
                    break
                self.writer.trapped.step()
                began = time.monotonic()
                try:
                    operation()
                except StratalogError as error:
                    self._take_error(error, time.monotonic() - began)
        except Exception:
            self.writer.failure = traceback.format_exc()
            raise

    def _take_error(self, error: StratalogError, seconds: float) -> None:
        if isinstance(error, _GONE) and not self.is_alone:
            return
        if isinstance(error, _FENCED) and seconds * 1000 > TIMEOUT_MS:
            return  # the machine was busy, or the process was stopped
        self.writer.check_expected(error)
        time.sleep(0.01)  # a disk that is full for good

    def _choose(self) -> Callable[[], object] | None:
        weights = {
            self.append_one: 6,
            self.append_many: 10,
            self.append_idempotent: 10,
            self.commit_transaction: 8,
            self.abort_transaction: 4,
            self.leave_transaction: 1,
            self.time_out_transaction: 0.2,
            self.commit_staged: 3,
            self.flush: 2,
            self.logs.checkpoint: 1,
            self.delete_records: 0.5,
            self.read: 2,
            self.tidy: 0.4,
        }
        if self.is_alone:
            weights |= {
                self.create_topic: 1,
                self.delete_topic: 0.7,
                self.alter_config: 0.3,
                self.fork: 0.3,
                self.meet_intruder: 0.15,
            }
            if self.rng.random() < 0.004:
                return None
        without = self.writer.plan.without
        allowed = {op: w for op, w in weights.items() if op.__name__ not in without}
        return self.rng.choices(list(allowed), list(allowed.values()))[0]

    # -- records

    def _target(self, *, passing: bool = True) -> TopicInfo:
        topics = self.logs.topics
        names = [name for name in (*LASTING, *PASSING) if name in topics]
        if not self.is_alone or not passing:
            names = [name for name in names if name in LASTING]
        return topics[self.rng.choice(names)]

    def _identities(self, topic: TopicInfo, count: int, fate: str, txn: str | None) -> _Intent:
        self._ops += 1
        stream, at_ms = f"{self.name}.{self._ops}", now_ms()
        is_keyed = kind_of(topic.name).is_compacted
        intent = _Intent(stream, [Identity(stream, n, at_ms, fate, is_keyed) for n in range(count)])
        self.journal.note(
            "write",
            stream=stream,
            topic=topic.name,
            id=str(topic.topic_id),
            count=count,
            at=at_ms,
            fate=fate,
            txn=txn,
        )
        return intent

    def _acknowledge(self, intent: _Intent, deliveries: Sequence[Delivery]) -> None:
        """Whatever was written; raises what was not."""
        places, failure = [], None
        for identity, delivery in zip(intent.identities, deliveries, strict=False):
            try:
                found = delivery.result()
            except StratalogError as error:
                failure = failure or error
            else:
                places.append((identity.number, found.partition, found.offset))
        self.journal.note("wrote", stream=intent.stream, at=places)
        if failure is not None:
            raise failure

    def append_one(self) -> None:
        topic = self._target()
        intent = self._identities(topic, 1, PLAIN, None)
        (one,) = intent.identities
        found = self.logs.append(
            topic.name, one.value, key=one.key, headers=one.headers, timestamp=one.timestamp
        )
        self.journal.note(
            "wrote", stream=intent.stream, at=[(one.number, found.partition, found.offset)]
        )

    def append_many(self) -> None:
        producer = self.logs.producer(
            linger_ms=self.rng.choice([0, 1, 50]), compression=self.rng.choice(_CODECS)
        )
        self._append_through(producer)

    def append_idempotent(self) -> None:
        if not self._producers:
            self._producers.append(self.logs.producer(idempotent=True, linger_ms=20))
        try:
            self._append_through(self._producers[0])
        except StratalogError:
            self._producers.clear()
            raise

    def _append_through(self, producer: Producer) -> None:
        topic = self._target(passing=not producer.producer_id)
        intent = self._identities(topic, self.rng.randint(1, 60), PLAIN, None)
        deliveries: list[Delivery] = []
        try:
            for one in intent.identities:
                deliveries.append(self._hand_over(producer, topic, one))
            producer.flush()
        finally:
            self._acknowledge(intent, deliveries)

    def _hand_over(self, to: Producer | Transaction, topic: TopicInfo, one: Identity) -> Delivery:
        partition = None
        if one.key is None and self.rng.random() < 0.5:
            partition = self.rng.choice(topic.partitions)
        return to.append(
            topic.name,
            one.value,
            key=one.key,
            headers=one.headers,
            timestamp=one.timestamp,
            partition=partition,
        )

    # -- transactions

    def _begin(self, fate: str, *, waiting: float = 0.2) -> tuple[str, Transaction]:
        """`waiting`: how often records still wait to be written when the transaction ends."""
        self._ops += 1
        txn = f"{self.name}.{self._ops}"
        transactional_id = f"id-{self.number}-{self.rng.randrange(4)}"
        self.journal.note("txn", txn=txn)
        transaction = self.logs.transaction(
            transactional_id, timeout_ms=TIMEOUT_MS, flush=self.rng.random() < 0.1
        )
        for _ in range(self.rng.randint(1, 3)):
            topic = self._target(passing=False)
            intent = self._identities(topic, self.rng.randint(1, 15), fate, txn)
            deliveries = [self._hand_over(transaction, topic, one) for one in intent.identities]
            if self.rng.random() >= waiting:
                self._acknowledge(intent, deliveries)
        return txn, transaction

    def commit_transaction(self) -> None:
        txn, transaction = self._begin(COMMITTED)
        self.journal.note("commit", txn=txn)
        transaction.commit()
        self.journal.note("committed", txn=txn)

    def abort_transaction(self) -> None:
        _, transaction = self._begin(ABORTED)
        transaction.abort()

    def leave_transaction(self) -> None:
        """It hangs; the coordinator aborts it, or whoever begins under its id, or the close."""
        self._open.append(self._begin(ABORTED)[1])

    def time_out_transaction(self) -> None:
        _, transaction = self._begin(ABORTED, waiting=0)
        end = time.monotonic() + 30
        mine = transaction.transactional_id
        while mine in [txn.transactional_id for txn in self.logs.open_transactions()]:
            if self.writer.plan.may_fail:
                return  # perhaps the marker cannot be written
            assert time.monotonic() < end, "transactions do not time out"
            time.sleep(0.05)
        try:
            transaction.commit()
        except ProducerFencedError:
            return
        raise AssertionError("a transaction was committed after its timeout")

    def commit_staged(self) -> None:
        self._query.commit(self.logs, self.journal, self.rng)

    # -- maintenance

    def flush(self) -> None:
        self.logs.flush()

    def tidy(self) -> None:
        self.logs.maintenance.run_once()

    def delete_records(self) -> None:
        topic = self._target(passing=False)
        if kind_of(topic.name).settings.get("cleanup.policy") == "compact":
            return
        partition = self.rng.choice(topic.partitions)
        log = self.logs.partition(topic.name, partition)
        to = self.rng.randint(log.log_start_offset, log.high_watermark)
        to = min(to, log.log_start_offset + 100)
        self.journal.note("trim", id=str(topic.topic_id), partition=partition, to=to)
        with suppress(OffsetOutOfRangeError):  # retention was faster
            self.logs.delete_records(topic.name, partition, to)

    def read(self) -> None:
        topic = self._target()
        log = self.logs.partition(topic.name, self.rng.choice(topic.partitions))
        order = OrderCheck()
        isolation = self.rng.choice(list(IsolationLevel))
        start = self.rng.randint(log.log_start_offset, log.log_end_offset)
        with suppress(OffsetOutOfRangeError):
            for record in log.read(start, isolation=isolation, max_records=300):
                order.take(record)

    # -- topics

    def _create_topics(self) -> None:
        for name in LASTING:
            if self.is_alone and name not in self.logs.topics:
                self._create(name)
        assert set(LASTING) <= set(self.logs.topics) or self.writer.plan.may_fail

    def create_topic(self) -> None:
        name = self.rng.choice(PASSING)
        if name not in self.logs.topics:
            self._create(name)

    def _create(self, name: str) -> None:
        kind = kind_of(name)
        self.journal.note("create", topic=name)
        info = self.logs.create_topic(name, kind.partitions, config=kind.settings)
        self.journal.note("created", topic=name, id=str(info.topic_id))

    def delete_topic(self) -> None:
        name = self.rng.choice(PASSING)
        info = self.logs.topics.get(name)
        if info is not None:
            self.journal.note("delete", id=str(info.topic_id))
            self.logs.delete_topic(name)
            self.journal.note("deleted", id=str(info.topic_id))

    def alter_config(self) -> None:
        """What was staged by the old settings is refused; nothing else happens to anybody."""
        name = self.rng.choice(LASTING)
        size = self.rng.choice([SEGMENT_BYTES, 2 * SEGMENT_BYTES])
        self.logs.alter_config(name, {"segment.bytes": size})

    # -- other processes

    def fork(self) -> None:
        """A child that leaves in one of several ways does not take the lock or a record with it."""
        how = self.rng.choice(["_exit", "exit", "collect", "append", "close", "multiprocessing"])
        if how == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=gc.collect)
            process.start()
            process.join(_CHILD_PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()
            return
        pid = os.fork()
        if pid == 0:
            self._be_child(how)
        end = time.monotonic() + _CHILD_PATIENCE_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:  # it waits for a lock that a thread had when it was forked
                os.kill(pid, 9)
            time.sleep(0.002)

    def _be_child(self, how: str) -> NoReturn:
        if how == "exit":
            sys.exit(0)
        if how == "collect":
            self.writer.logs = self.logs = None  # type: ignore[assignment]
            gc.collect()
        elif how == "append":
            self.name += "-child"
            with suppress(StratalogError):
                self.append_one()
        elif how == "close":
            with suppress(StratalogError):
                self.logs.close()
        os._exit(0)

    def meet_intruder(self) -> None:
        """The parent lets another process try to open the directory meanwhile."""
        self.writer.connection.send("intruder")
        self.writer.connection.recv()


@dataclass(frozen=True)
class _Intent:
    stream: str
    identities: list[Identity]


def _open_fds() -> set[str]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(f"{path.name} {path.readlink()}")
    return {fd for fd in found if "/proc/" not in fd}


def write(place: Place, plan: WriterPlan, connection: Connection) -> None:
    """What the process does."""
    writer = Writer(place, plan, connection)
    os.set_inheritable(connection.fileno(), False)
    try:
        writer.run()
    except Exception:
        writer.failure = writer.failure or traceback.format_exc()
    finally:
        if writer.failure is not None:
            writer.journal.note("failure", what=writer.failure)
    os._exit(0)
