"""Requests that create, extend and delete topics, delete records, and inspect the cluster.

The rules are those of `partitions.catalog`, in Kafka's words. Here are the requests: each names
many topics, and each topic has its own result.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from stratalog.broker.configs import NO_SUCH_TOPIC, code_and_message, topic_configs
from stratalog.broker.logs import id_of
from stratalog.broker.requests import HandlerGroup, handles
from stratalog.errors import OffsetOutOfRangeError, RequestError, StratalogError
from stratalog.format.names import CLUSTER_METADATA_TOPIC
from stratalog.partitions.topics import check_more_partitions
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.message_tables import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Request
    from stratalog.log_dir import LogDir
    from stratalog.partitions.topics import TopicInfo
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

_DEFAULT: Final = -1
_DELETE_BY_ID_SINCE: Final = 6
_DELETION_DISABLED_SINCE: Final = 3
_QUORUM_EPOCH: Final = 1
_NEW_PARTITIONS_MAX: Final = 10_000
"""In one request, as in Kafka: a typo must not fill the disk."""
_TOO_MANY: Final = (
    int(ErrorCode.POLICY_VIOLATION),
    "Excessively large number of partitions per request.",
)
_NO_SUCH_ID: Final = "This server does not host this topic ID."


class TopicHandlers(HandlerGroup):
    """The handlers of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._logs = context.logs
        self.on_deleted: list[Callable[[str], None]] = []
        """Called in the reactor's thread with the name of each topic that was deleted."""
        if not context.logs.is_read_only:
            self._log_dir.deletion_listeners.append(self._topic_deleted)

    @property
    def _log_dir(self) -> LogDir:
        return self._logs.log_dir

    # -- topics

    @handles(ApiKey.CREATE_TOPICS)
    def create_topics(self, request: Request) -> Body:
        body = request.body
        once, repeated = _split_repeated(body["topics"])
        if sum(map(_partitions_asked, once)) > _NEW_PARTITIONS_MAX:
            too_many = [_failed_create(topic["name"], *_TOO_MANY) for topic in once]
            return {"topics": [*too_many, *map(_repeated_create, repeated)]}
        results = [self._created(topic, validate_only=body["validateOnly"]) for topic in once]
        return {"topics": [*results, *map(_repeated_create, repeated)]}

    def _created(self, topic: Body, *, validate_only: bool) -> Body:
        name = topic["name"]
        try:
            info = self._create(topic, validate_only=validate_only)
        except StratalogError as error:
            return _failed_create(name, *code_and_message(error))
        return {
            "name": name,
            "topicId": id_of(info),
            "numPartitions": info.partition_count,
            "replicationFactor": 1,
            "configs": topic_configs(info),
        }

    def _create(self, topic: Body, *, validate_only: bool) -> TopicInfo:
        count, factor = topic["numPartitions"], topic["replicationFactor"]
        if topic["assignments"]:
            count, factor = self._assigned(topic)
        return self._log_dir.create_topic(
            topic["name"],
            count,
            replication_factor=factor,
            config={
                each["name"]: each["value"]
                for each in topic["configs"]
                if each["value"] is not None
            },
            validate_only=validate_only,
        )

    def _assigned(self, topic: Body) -> tuple[int, int]:
        """Partitions and replicas of a topic that says where to put them: they can only be here."""
        for field in ("numPartitions", "replicationFactor"):
            if topic[field] != _DEFAULT:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {field} was not set to -1.",
                )
        assignments = sorted(topic["assignments"], key=lambda each: each["partitionIndex"])
        if [each["partitionIndex"] for each in assignments] != list(range(len(assignments))):
            raise RequestError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        self._check_assigned(assignments)
        return len(assignments), 1

    def _check_assigned(self, assignments: Iterable[Body]) -> None:
        for each in assignments:
            if each["brokerIds"] != [self._context.node_id]:
                raise RequestError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes brokers {each['brokerIds']}, but "
                    f"the only broker is {self._context.node_id}.",
                )

    @handles(ApiKey.DELETE_TOPICS)
    def delete_topics(self, request: Request) -> Body:
        body = request.body
        if request.version < _DELETE_BY_ID_SINCE:
            topics = [{"name": name, "topicId": ZERO_UUID} for name in body["topicNames"]]
        else:
            topics = body["topics"]
        _, repeated = _split_repeated([topic for topic in topics if topic["name"] is not None])
        wanted = [topic for topic in topics if topic["name"] not in repeated]
        results = [self._deleted(topic, request.version) for topic in wanted]
        return {"responses": [*results, *map(_repeated_name, repeated)]}

    def _deleted(self, topic: Body, version: int) -> Body:
        name, topic_id = topic["name"], topic["topicId"]
        try:
            info = self._named(name, topic_id)
            name, topic_id = info.name, id_of(info)
            self._log_dir.delete_topic(info.name)
        except StratalogError as error:
            code, message = code_and_message(error)
            is_disabled = code == ErrorCode.TOPIC_DELETION_DISABLED
            if is_disabled and version < _DELETION_DISABLED_SINCE:
                code = ErrorCode.INVALID_REQUEST
            failed = {"errorCode": code, "errorMessage": message}
            return {"name": name, "topicId": topic_id, **failed}
        return {"name": name, "topicId": topic_id}

    def _named(self, name: str | None, topic_id: str) -> TopicInfo:
        if (name is None) == (topic_id == ZERO_UUID):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "Neither topic name nor id were specified."
                if name is None
                else "You may not specify both topic name and topic id.",
            )
        if name is None:
            name = self._logs.name_of(topic_id)
            if name is None:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID, _NO_SUCH_ID)
        return self._log_dir.topic(name)

    def _topic_deleted(self, info: TopicInfo) -> None:
        """By a client, or by the program that the broker is part of."""
        reactor = self._context.reactor
        if reactor.is_own_thread:
            self._forget(info)
        else:
            reactor.call_soon(lambda: self._forget(info))

    def _forget(self, info: TopicInfo) -> None:
        for listener in self.on_deleted:
            listener(info.name)
        for number in info.partitions:
            self._context.changes.notify(info.name, number)

    @handles(ApiKey.CREATE_PARTITIONS)
    def create_partitions(self, request: Request) -> Body:
        body = request.body
        once, repeated = _split_repeated(body["topics"])
        results = []
        for topic in once:
            result: Body = {"name": topic["name"]}
            try:
                self._grow(topic, validate_only=body["validateOnly"])
            except StratalogError as error:
                result["errorCode"], result["errorMessage"] = code_and_message(error)
            results.append(result)
        return {"results": [*results, *map(_repeated_name, repeated)]}

    def _grow(self, topic: Body, *, validate_only: bool) -> None:
        info, count = self._log_dir.topic(topic["name"]), topic["count"]
        check_more_partitions(info, count)
        if count - info.partition_count > _NEW_PARTITIONS_MAX:
            raise RequestError(*_TOO_MANY)
        assignments, added = topic["assignments"], count - info.partition_count
        if assignments is not None:
            if len(assignments) != added:
                raise RequestError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {added} additional partition(s), but only "
                    f"{len(assignments)} assignment(s) were specified.",
                )
            self._check_assigned(assignments)
        if not validate_only:
            self._log_dir.add_partitions(info.name, count)

    # -- records

    @handles(ApiKey.DELETE_RECORDS)
    def delete_records(self, request: Request) -> Body:
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    self._records_deleted(topic["name"], each) for each in topic["partitions"]
                ],
            }
            for topic in request.body["topics"]
        ]
        if not self._logs.is_read_only:
            try:
                self._log_dir.checkpoint()  # else a crash would bring them back
            except StratalogError as error:
                _log.error("cannot store what DeleteRecords has deleted: %s", error)
                code, _ = code_and_message(error)
                for deleted in (each for topic in topics for each in topic["partitions"]):
                    if not deleted.get("errorCode"):
                        deleted.update(lowWatermark=-1, errorCode=code)
        return {"topics": topics}

    def _records_deleted(self, topic: str, partition: Body) -> Body:
        number = partition["partitionIndex"]
        code = 0
        try:
            if not self._log_dir.topic(topic).config.has_delete_policy:
                raise RequestError(ErrorCode.POLICY_VIOLATION)
            start = self._log_dir.delete_records(topic, number, partition["offset"])
        except OffsetOutOfRangeError:
            code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        except StratalogError as error:
            code, _ = code_and_message(error)
        if code:
            return {"partitionIndex": number, "lowWatermark": -1, "errorCode": code}
        self._context.changes.notify(topic, number)
        return {"partitionIndex": number, "lowWatermark": start}

    # -- what tools ask of a cluster

    @handles(ApiKey.DESCRIBE_LOG_DIRS)
    def describe_log_dirs(self, request: Request) -> Body:
        wanted = request.body["topics"]
        if wanted is None:
            named = [
                (i.name, number) for i in self._logs.topics.values() for number in i.partitions
            ]
        else:
            named = [(each["topic"], number) for each in wanted for number in each["partitions"]]
        by_dir: defaultdict[Path, defaultdict[str, list[Body]]]
        by_dir = defaultdict(lambda: defaultdict(list))
        for topic, number in named:
            log = self._logs.find(topic, number)
            if log is not None:
                size = {"partitionIndex": number, "partitionSize": log.size_bytes, "offsetLag": 0}
                by_dir[log.path.parent][topic].append(size)
        return {"results": [_described_dir(path, by_dir[path]) for path in self._logs.paths]}

    @handles(ApiKey.ELECT_LEADERS)
    def elect_leaders(self, request: Request) -> Body:
        """The leader of every partition is its only replica."""
        wanted = request.body["topicPartitions"]
        if wanted is None:
            names = self._logs.topics
            return {"replicaElectionResults": [{"topic": n, "partitionResult": []} for n in names]}
        return {
            "replicaElectionResults": [
                {
                    "topic": each["topic"],
                    "partitionResult": [
                        self._not_elected(each["topic"], number) for number in each["partitions"]
                    ],
                }
                for each in wanted
            ]
        }

    def _not_elected(self, topic: str, partition: int) -> Body:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed"
        if self._logs.find(topic, partition) is None:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_TOPIC
        return {"partitionId": partition, "errorCode": int(code), "errorMessage": message}

    @handles(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    def list_reassignments(self, request: Request) -> Body:
        """None: replicas cannot move."""
        return {"errorMessage": None, "topics": []}

    @handles(ApiKey.DESCRIBE_QUORUM)
    def describe_quorum(self, request: Request) -> Body:
        """This node is the only controller. It has no metadata log."""
        node_id, address = self._context.node_id, self._context.address_for(request.session)
        listener = {"name": request.session.listener, "host": address.host, "port": address.port}
        return {
            "errorMessage": "",
            "topics": [
                {
                    "topicName": topic["topicName"],
                    "partitions": [
                        _described_quorum(topic["topicName"], each["partitionIndex"], node_id)
                        for each in topic["partitions"]
                    ],
                }
                for topic in request.body["topics"]
            ],
            "nodes": [{"nodeId": node_id, "listeners": [listener]}],
        }

    @handles(ApiKey.DESCRIBE_CLIENT_QUOTAS)
    def describe_quotas(self, request: Request) -> Body:
        """There are none."""
        return {"errorMessage": "", "entries": []}


def _described_dir(path: Path, topics: dict[str, list[Body]]) -> Body:
    disk = shutil.disk_usage(path)
    return {
        "logDir": str(path.absolute()),
        "topics": [{"name": name, "partitions": listed} for name, listed in topics.items()],
        "totalBytes": disk.total,
        "usableBytes": disk.free,
    }


def _described_quorum(topic: str, partition: int, node_id: int) -> Body:
    if (topic, partition) != (CLUSTER_METADATA_TOPIC, 0):
        code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return {"partitionIndex": partition, "errorCode": code, "errorMessage": NO_SUCH_TOPIC}
    return {
        "partitionIndex": partition,
        "errorMessage": "",
        "leaderId": node_id,
        "leaderEpoch": _QUORUM_EPOCH,
        "highWatermark": 0,
        "currentVoters": [{"replicaId": node_id, "logEndOffset": 0}],
        "observers": [],
    }


def _partitions_asked(topic: Body) -> int:
    count: int = topic["numPartitions"]
    return max(1, count, len(topic["assignments"]))


def _split_repeated(topics: Sequence[Body]) -> tuple[list[Body], list[str]]:
    """The topics that a request names once, and the names that it has more than once."""
    counts = Counter(topic["name"] for topic in topics)
    once = [topic for topic in topics if counts[topic["name"]] == 1]
    return once, [name for name, count in counts.items() if count > 1]


def _repeated_name(name: str) -> Body:
    code, message = int(ErrorCode.INVALID_REQUEST), "Duplicate topic name."
    return {"name": name, "errorCode": code, "errorMessage": message}


def _repeated_create(name: str) -> Body:
    return {**_failed_create(name, 0, None), **_repeated_name(name)}


def _failed_create(name: str, code: int, message: str | None) -> Body:
    return {
        "name": name,
        "errorCode": code,
        "errorMessage": message,
        "numPartitions": -1,
        "replicationFactor": -1,
        "configs": [],
    }
