"""Replays captured conversations against our broker, and compares the answers field by field.

A scenario's events are replayed in the order in which they passed: a request is sent, an answer is
waited for, a connection is closed. What a real broker chose by itself (ids of topics, members and
sessions, times, ports) differs: where a field is an id, the first difference is learned, and later
requests and answers are translated.

What was there before a scenario began (topics, records, users) is derived from its answers.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from stratalog.broker.broker import Broker
from stratalog.broker.logs import id_of
from stratalog.broker.security.scram import ScramCredential, ScramMechanism
from stratalog.errors import StratalogError
from stratalog.format.messages.schema import read_message
from stratalog.wire.apis import ApiKey
from stratalog.wire.frames import read_request, request_frame, response_header_bytes
from stratalog.wire.message_tables import ZERO_UUID
from tests.broker.raw_client import RawClient
from tests.golden_wire import exchanges, frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.golden_wire import Frame

Body = dict[str, Any]

CONFIG: Final = {
    "node.id": 1,
    "broker.rack": "rack-a",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
"""As that of the real broker (tests/golden-wire/README.md)."""
USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}
CLUSTER_METADATA: Final = "__cluster_metadata"
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
SEED_TIMESTAMP: Final = 1_700_000_000_000
ANSWER_TIMEOUT_S: Final = 6
WAITED_MS: Final = 2_500

IDS: Final = frozenset(
    {"topicId", "memberId", "leader", "sessionId", "clusterId", "memberIdOrRegex"}
)
"""Fields whose values the broker chooses."""
TIMES_AND_PORTS: Final = frozenset(
    {
        "throttleTimeMs",
        "logAppendTimeMs",
        "transactionStartTimeMs",
        "lastFetchTimestamp",
        "lastCaughtUpTimestamp",
        "port",
        "host",
    }
)
"""Fields that are not compared."""
_SORT_KEYS: Final = (
    "index",
    "partitionIndex",
    "partition",
    "partitionId",
    "apiKey",
    "configName",
    "topic",
    "name",
    "groupId",
    "memberId",
)


class Difference(NamedTuple):
    """One field of an answer that is not Kafka's."""

    client: str
    scenario: str
    number: int
    """Of the request within the scenario."""
    api: str
    version: int
    path: str
    """Of the field; list positions are left out."""
    expected: object
    actual: object

    def __str__(self) -> str:
        return (
            f"{self.client}/{self.scenario} #{self.number} {self.api} v{self.version} {self.path}: "
            f"Kafka {_shown(self.expected)}, here {_shown(self.actual)}"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 160 else text[:160] + "…"


class Known(NamedTuple):
    """An exception: differences that are meant, and why. Patterns as in a shell."""

    where: str
    """client/scenario."""
    api: str
    path: str
    reason: str

    def matches(self, difference: Difference) -> bool:
        where = f"{difference.client}/{difference.scenario}"
        return (
            fnmatchcase(where, self.where)
            and fnmatchcase(difference.api, self.api)
            and fnmatchcase(difference.path, self.path)
        )


# -- reading


def request_body(frame: Frame) -> Body | None:
    """The body of a captured request; None if it is wrong on purpose."""
    try:
        return read_request(frame.payload)[1]
    except (StratalogError, ValueError):
        return None


def response_body(frame: Frame, payload: bytes | None = None) -> Body:
    """The body of a captured answer, or of ours to the same request."""
    data = frame.payload if payload is None else payload
    api, version = ApiKey(frame.api_key), frame.api_version
    if api is ApiKey.API_VERSIONS and data[4:6] == struct.pack(">h", 35):
        version = 0
    at = len(response_header_bytes(api, version, frame.correlation_id))
    return read_message(api.response, data, at, version)[0]


# -- what was there before


@dataclass
class Before:
    """Topics and records that a scenario expects."""

    partitions: dict[str, int] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    batches: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    """Topics that the scenario creates itself."""
    ids: dict[str, str] = field(default_factory=dict)
    """Names of topics by id."""
    lowest_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where nothing says how many records there were: what a later answer needs."""
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Log start offsets, where records were deleted before."""
    unacknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    """Records that were produced with acks=0 so far."""


def before(client: str, scenario: str) -> Before:
    """What must be there before a scenario is replayed."""
    found = Before()
    for request, response in exchanges(client, scenario):
        asked = request_body(request)
        if asked is None:
            continue
        if response is None:
            _note_unanswered(found, request, asked)
            continue
        answered = response_body(response)
        _note_named(found, answered)
        note = _NOTES.get(request.api_key)
        if note is not None:
            note(found, asked, answered)
    for at, end in found.lowest_ends.items():
        found.ends.setdefault(at, end)
    return found


def _note_unanswered(found: Before, request: Frame, asked: Body) -> None:
    """Records that were produced with acks=0."""
    if request.api_key != ApiKey.PRODUCE:
        return
    for topic in asked["topicData"]:
        for partition in topic["partitionData"]:
            at = (topic["name"], partition["index"])
            if partition["records"]:
                count = struct.unpack_from(">i", partition["records"], 57)[0]
                found.unacknowledged[at] = found.unacknowledged.get(at, 0) + count


def _note_created(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["topics"]:
        name = topic["name"]
        if topic["errorCode"] == 0 and name not in found.partitions:
            found.created.add(name)
        elif topic["errorCode"] == 36 and name not in found.created:
            _note_partition(found, name, 0)


def _note_epochs(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["topics"]:
        for partition in topic["partitions"]:
            if partition["errorCode"] == 0 and partition["endOffset"] >= 0:
                found.ends.setdefault(
                    (topic["topic"], partition["partition"]), partition["endOffset"]
                )


def _note_deleted_records(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["topics"]:
        for partition in topic["partitions"]:
            at = (topic["name"], partition["partitionIndex"])
            if partition["errorCode"] == 0:
                found.lowest_ends[at] = max(found.lowest_ends.get(at, 0), partition["lowWatermark"])


def _note_named(found: Before, value: Any) -> None:
    """Topics and partitions that an answer names without an error."""
    if isinstance(value, list):
        for each in value:
            _note_named(found, each)
    if not isinstance(value, dict):
        return
    name = value.get("name", value.get("topic", value.get("topicName")))
    partitions = value.get("partitions", value.get("results"))
    if isinstance(name, str) and isinstance(partitions, list):
        for partition in partitions:
            if not isinstance(partition, dict):
                continue
            number = partition.get("partitionIndex", partition.get("partition"))
            if number is not None and partition.get("errorCode") == 0 and name != CLUSTER_METADATA:
                _note_partition(found, name, number)
    if value.get("resourceType") == 2 and value.get("errorCode") == 0:
        _note_partition(found, value["resourceName"], 0)
    for each in value.values():
        _note_named(found, each)


def _note_metadata(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["topics"]:
        name = topic["name"]
        if topic.get("topicId", ZERO_UUID) != ZERO_UUID and name:
            found.ids[topic["topicId"]] = name
        if topic["errorCode"] == 0 and name and name not in found.created:
            found.partitions.setdefault(name, len(topic["partitions"]))


def _note_produced(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["responses"]:
        for partition in topic["partitionResponses"]:
            at = (topic["name"], partition["index"])
            if partition["errorCode"] in {3, 17, 29}:
                continue
            _note_partition(found, *at)
            if partition["baseOffset"] >= 0:
                end = partition["baseOffset"] - found.unacknowledged.get(at, 0)
                found.ends.setdefault(at, end)


def _note_partition(found: Before, name: str, partition: int) -> None:
    if name not in found.created:
        found.partitions[name] = max(found.partitions.get(name, 3), partition + 1)


def _note_fetched(found: Before, _: Body, answered: Body) -> None:
    for topic in answered["responses"]:
        name = topic.get("topic") or found.ids.get(topic.get("topicId", ""), "")
        if not name:
            continue
        for partition in topic["partitions"]:
            at = (name, partition["partitionIndex"])
            if partition["errorCode"] or name in found.created:
                continue
            _note_partition(found, *at)
            found.batches.setdefault(at, {}).update(_batches(bytes(partition["records"] or b"")))
            found.ends.setdefault(at, partition["highWatermark"])
            found.starts.setdefault(at, partition.get("logStartOffset", 0))


def _batches(records: bytes) -> Iterator[tuple[int, bytes]]:
    """The batches of an answer, by base offset. The last one may be cut off."""
    position = 0
    while position + 12 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            return
        yield base, records[position : position + 12 + length]
        position += 12 + length


def _note_listed(found: Before, asked: Body, answered: Body) -> None:
    wanted = {
        (topic["name"], partition["partitionIndex"]): partition["timestamp"]
        for topic in asked["topics"]
        for partition in topic["partitions"]
    }
    for topic in answered["topics"]:
        for partition in topic["partitions"]:
            at = (topic["name"], partition["partitionIndex"])
            if partition["errorCode"] or topic["name"] in found.created:
                continue
            _note_partition(found, *at)
            if wanted.get(at) == -1:
                found.ends.setdefault(at, partition["offset"])
            elif wanted.get(at, -1) >= 0:
                end = partition["offset"] + 1
                found.lowest_ends[at] = max(found.lowest_ends.get(at, 0), end)


_NOTES: Final[dict[int, Callable[[Before, Body, Body], None]]] = {
    ApiKey.CREATE_TOPICS: _note_created,
    ApiKey.METADATA: _note_metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _note_metadata,
    ApiKey.PRODUCE: _note_produced,
    ApiKey.FETCH: _note_fetched,
    ApiKey.LIST_OFFSETS: _note_listed,
    ApiKey.DELETE_RECORDS: _note_deleted_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _note_epochs,
}


# -- replaying


class Replay:
    """One scenario against one broker."""

    def __init__(self, client: str, scenario: str, directory: Path) -> None:
        self.client = client
        self.scenario = scenario
        self._directory = directory
        self._learned: dict[object, object] = {}
        self.differences: list[Difference] = []
        self._nonces: deque[str] = deque()
        self._answers = {
            (request.connection, request.number): response
            for request, response in exchanges(client, scenario)
        }
        self.compared = 0
        self.skipped = 0

    def run(self) -> None:
        """Replay all of it."""
        sasl = self.scenario == "sasl"
        listeners = "SASL_PLAINTEXT://127.0.0.1:0" if sasl else "PLAINTEXT://127.0.0.1:0"
        # Only where it is needed: several replays at once would not undo each other's patches.
        nonces = patch("stratalog.broker.security.scram.new_nonce", self._nonces.popleft)
        with (
            nonces if sasl else nullcontext(),
            Broker(self._directory, listeners=listeners, users=USERS, config=CONFIG) as broker,
        ):
            self._broker = broker
            self._prepare(before(self.client, self.scenario))
            with ExitStack() as stack:
                self._stack = stack
                self._connections: dict[int, RawClient] = {}
                self._replay_events()

    def _prepare(self, found: Before) -> None:
        log_dir = self._broker.log_dir
        salted = ScramCredential.of_password(
            ScramMechanism.SHA_256, "carol-secret", salt=b"saltsaltsaltsalt"
        )
        if not (self.client == "confluent" and self.scenario == "admin_scram"):
            self._broker._access_control.change_credentials(
                {("carol", ScramMechanism.SHA_256): salted}
            )
        for name, count in {**dict.fromkeys(INTERNAL, 4), **found.partitions}.items():
            if name in log_dir.topics or (name in INTERNAL and name not in found.partitions):
                continue
            overrides = (
                {"cleanup.policy": "compact"} if "compact" in name or name in INTERNAL else {}
            )
            log_dir.create_topic(name, count, config=overrides)
            for partition in range(count):
                self._seed(found, name, partition)
        for topic_id, name in found.ids.items():
            if name in log_dir.topics:
                self._learned[topic_id] = id_of(log_dir.topic(name))

    def _seed(self, found: Before, name: str, partition: int) -> None:
        log = self._broker.log_dir.partition(name, partition)
        end = found.ends.get((name, partition), 0)
        known = found.batches.get((name, partition), {})
        count = found.partitions[name]
        while log.log_end_offset < end:
            offset = log.log_end_offset
            batch = known.get(offset)
            if batch is not None:
                log.append_as_follower(batch)
                continue
            following = min((base for base in known if base > offset), default=end)
            for number in range(offset, min(following, end)):
                timestamp = SEED_TIMESTAMP + 1000 * (number * count + partition)
                self._broker.log_dir.append(
                    name, b"seed", key=b"k", partition=partition, timestamp=timestamp
                )
        start = found.starts.get((name, partition), 0)
        if 0 < start <= end:
            self._broker.log_dir.delete_records(name, partition, start)

    def _replay_events(self) -> None:
        number = 0
        numbers: dict[tuple[int, int], tuple[int, Frame]] = {}
        last: Frame | None = None
        for frame in frames(self.client, self.scenario):
            self._keep_distance(frame, last)
            last = frame
            if frame.direction == "req":
                number += 1
                if self._is_loading(frame):
                    self.skipped += 1
                    continue
                numbers[frame.connection, frame.correlation_id] = (number, frame)
                self._send(frame)
            elif frame.direction == "resp":
                asked = numbers.pop((frame.connection, frame.correlation_id), None)
                if asked is not None:
                    self._expect(frame, *asked)
            else:
                self._close(frame)
                for key in [key for key in numbers if key[0] == frame.connection]:
                    del numbers[key]  # the client did not wait for this answer

    def _keep_distance(self, frame: Frame, last: Frame | None) -> None:
        """Let a request on another connection arrive first; wait for a timer of the broker where
        the raw client did."""
        if last is None or frame.direction != "req":
            return
        gap_ms = frame.at_ms - last.at_ms
        if self.client == "raw" and gap_ms > WAITED_MS:
            time.sleep(gap_ms / 1000)
        elif last.direction == "req" and last.connection != frame.connection:
            time.sleep(0.005)

    def _connection(self, frame: Frame) -> RawClient:
        if frame.connection not in self._connections:
            client = RawClient(self._broker.bootstrap_servers, timeout_s=ANSWER_TIMEOUT_S)
            self._connections[frame.connection] = self._stack.enter_context(client)
        return self._connections[frame.connection]

    def _is_loading(self, frame: Frame) -> bool:
        """Whether the real coordinator was not ready: clients ask again, and ours is ready."""
        response = self._answers.get((frame.connection, frame.number))
        if response is None:
            return False
        return response_body(response).get("errorCode") in {14, 15}

    def _send(self, frame: Frame) -> None:
        data = frame.data
        body = request_body(frame)
        if body is not None and self._learned:
            translated = self._translated(body)
            if translated != body:
                data = request_frame(
                    ApiKey(frame.api_key),
                    frame.api_version,
                    translated,
                    correlation_id=frame.correlation_id,
                    client_id=frame.client_id,
                )
        self._choose_as_kafka_did(frame)
        with suppress(OSError):
            self._connection(frame).socket.sendall(data)

    def _choose_as_kafka_did(self, frame: Frame) -> None:
        """Let the broker choose what the real one chose where the client's next bytes depend on it:
        batches carry producer ids, and a SCRAM proof signs the server's nonce."""
        if frame.api_key not in {ApiKey.INIT_PRODUCER_ID, ApiKey.SASL_AUTHENTICATE}:
            return
        response = self._answers.get((frame.connection, frame.number))
        if response is None:
            return
        answered = response_body(response)
        if frame.api_key == ApiKey.SASL_AUTHENTICATE:
            server_first = bytes(answered["authBytes"])
            if server_first.startswith(b"r="):
                asked = request_body(frame)
                assert asked is not None
                client_nonce = bytes(asked["authBytes"]).partition(b",r=")[2]
                nonce = server_first[2:].partition(b",")[0].removeprefix(client_nonce)
                self._nonces.append(nonce.decode())
        elif answered["producerId"] >= 0:
            ids = self._broker.log_dir._producer_ids
            ids._next, ids._end = answered["producerId"], answered["producerId"] + 1

    def _translated(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: self._learned.get(each, each)
                if name == "sessionId"
                else (each if isinstance(each, int) else self._translated(each))
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [self._translated(each) for each in value]
        if isinstance(value, str):
            return self._learned.get(value, value)
        return value

    def _expect(self, frame: Frame, number: int, request: Frame) -> None:
        expected = response_body(frame)
        try:
            payload = self._connection(frame).receive_frame()
        except OSError:
            payload = b""
        api = ApiKey(frame.api_key)
        if not payload:
            self._differ(number, frame, "", "an answer", "none")
            self._connections.pop(frame.connection).socket.close()  # the next request opens another
            return
        actual = response_body(frame, payload)
        self.compared += 1
        for path, one, other in self._compare(expected, actual, ""):
            self.differences.append(
                Difference(
                    self.client,
                    self.scenario,
                    number,
                    api.title,
                    request.api_version,
                    path,
                    one,
                    other,
                )
            )

    def _differ(
        self, number: int, frame: Frame, path: str, expected: object, actual: object
    ) -> None:
        title = ApiKey(frame.api_key).title
        self.differences.append(
            Difference(
                self.client, self.scenario, number, title, frame.api_version, path, expected, actual
            )
        )

    def _close(self, frame: Frame) -> None:
        connection = self._connections.get(frame.connection)
        if connection is None:
            return
        if frame.closed_by != "client":
            with suppress(OSError):
                if connection.receive_frame() != b"":
                    self.differences.append(
                        Difference(
                            self.client,
                            self.scenario,
                            0,
                            "close",
                            0,
                            "",
                            "closed by the broker",
                            "open",
                        )
                    )
        connection.socket.close()

    def _compare(
        self, expected: Any, actual: Any, path: str
    ) -> Iterator[tuple[str, object, object]]:
        name = path.rpartition(".")[2]
        if name in TIMES_AND_PORTS:
            return
        if isinstance(expected, dict) and isinstance(actual, dict):
            for key in dict.fromkeys((*expected, *actual)):
                yield from self._compare(
                    expected.get(key), actual.get(key), f"{path}.{key}" if path else key
                )
        elif isinstance(expected, list) and isinstance(actual, list):
            yield from self._compare_lists(expected, actual, path)
        elif not self._is_equal(name, expected, actual):
            yield path, expected, actual

    def _is_equal(self, name: str, expected: Any, actual: Any) -> bool:
        if expected == actual:
            return True
        if name == "records":
            return _without_times(expected) == _without_times(actual)
        if name in IDS and self._is_learned(expected, actual):
            return True
        return isinstance(expected, str) and self._with_our_ids(expected) == actual

    def _with_our_ids(self, text: str) -> str:
        for theirs, ours in self._learned.items():
            if isinstance(theirs, str) and isinstance(ours, str):
                text = text.replace(theirs, ours)
        return text

    def _is_learned(self, expected: object, actual: object) -> bool:
        unset = {None, "", 0, ZERO_UUID}
        if expected in unset or actual in unset:
            return expected == actual
        return self._learned.setdefault(expected, actual) == actual

    def _compare_lists(
        self, expected: list[Any], actual: list[Any], path: str
    ) -> Iterator[tuple[str, object, object]]:
        theirs, ours = expected, actual
        if theirs and isinstance(theirs[0], dict):
            for key in _SORT_KEYS:
                if key in theirs[0] and all(key in each for each in (*theirs, *ours)):
                    yield from self._compare_keyed(theirs, ours, path, key)
                    return
        if len(theirs) != len(ours):
            yield f"{path}[]", theirs, ours
            return
        for one, other in zip(theirs, ours, strict=True):
            yield from self._compare(one, other, path)

    def _compare_keyed(
        self, expected: list[Body], actual: list[Body], path: str, key: str
    ) -> Iterator[tuple[str, object, object]]:
        """Entries with names are compared by name."""
        rest: dict[object, list[Body]] = {}
        for each in actual:
            rest.setdefault(each[key], []).append(each)
        for each in expected:
            wanted = each[key]
            found = rest.get(self._learned.get(wanted, wanted)) or rest.get(wanted)
            if not found and key == "memberId":
                found = self._similar_member(each, rest)
            if found:
                yield from self._compare(each, found.pop(0), path)
            else:
                yield f"{path}[{key}]", wanted, "missing"
        for listed in rest.values():
            for each in listed:
                yield f"{path}[{key}]", "missing", each[key]

    def _similar_member(self, member: Body, rest: dict[object, list[Body]]) -> list[Body] | None:
        """The member that is this one under another id."""
        known = set(self._learned.values())
        unknown = [listed for name, listed in rest.items() if listed and name not in known]
        for listed in unknown:
            if {**listed[0], "memberId": ""} == {**member, "memberId": ""}:
                return listed
        return unknown[0] if unknown else None


def _without_times(records: Any) -> bytes | None:
    """Record batches without what a broker writes from its clock: when a marker was written, and
    the CRC over that."""
    if records is None:
        return None
    data = bytearray(records)
    position = 0
    for _, batch in _batches(bytes(records)):
        if batch[22] & 0x20:  # a control batch
            data[position + 17 : position + 21] = bytes(4)
            data[position + 27 : position + 43] = bytes(16)
        position += len(batch)
    return bytes(data)
