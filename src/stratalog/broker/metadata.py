"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions: facts about the cluster.

The cluster is this node: controller, leader and only replica of every partition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from stratalog.broker.authorization import CLUSTER_NAME, Operation, Resource
from stratalog.broker.logs import id_of
from stratalog.broker.requests import HandlerGroup, handles
from stratalog.errors import InvalidNameError, RequestError, StratalogError
from stratalog.format.names import INTERNAL_TOPICS, check_topic_name
from stratalog.wire.apis import SERVED, ApiKey
from stratalog.wire.error_codes import ErrorCode
from stratalog.wire.message_tables import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Request, Session
    from stratalog.partitions.topics import TopicInfo
    from stratalog.wire.frames import Body

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES: Final = (
    # name, lowest and highest supported level, finalized level
    ("group.version", 0, 1, 1),
    ("metadata.version", 1, 25, 25),
    ("transaction.version", 0, 2, 2),
)
_FEATURES_EPOCH: Final = 1
_FEATURES_FROM_ZERO_SINCE: Final = 4
"""Clients that speak an older ApiVersions fail on a feature whose lowest level is 0."""
_BY_ID_SINCE: Final = 12
"""Versions 10 and 11 have the field already, but it must be empty."""
_OPERATIONS_NOT_ASKED: Final = -(1 << 31)
_BROKER_ENDPOINTS: Final = 1
_PARTITIONS_MAX: Final = 2000
_PRODUCE_LISTED_FROM: Final = 0
"""Old librdkafka looks for Produce version 0 before it uses any; it is listed, not served."""


class ClusterHandlers(HandlerGroup):
    """The handlers of this module."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    # -- versions

    @handles(ApiKey.API_VERSIONS)
    def api_versions(self, request: Request) -> Body:
        if request.version >= 3 and not _is_software_named(request.body):
            return {"errorCode": int(ErrorCode.INVALID_REQUEST)}
        return {
            "apiKeys": [_listed_versions(api) for api in self._context.dispatcher.apis],
            "supportedFeatures": [
                {"name": name, "minVersion": lowest, "maxVersion": highest}
                for name, lowest, highest, _ in _FEATURES
                if lowest > 0 or request.version >= _FEATURES_FROM_ZERO_SINCE
            ],
            "finalizedFeaturesEpoch": _FEATURES_EPOCH,
            "finalizedFeatures": [
                {"name": name, "maxVersionLevel": level, "minVersionLevel": level}
                for name, _, _, level in _FEATURES
            ],
        }

    # -- topics

    @handles(ApiKey.METADATA)
    def metadata(self, request: Request) -> Body:
        context, session, body = self._context, request.session, request.body
        wants_operations = body.get("includeTopicAuthorizedOperations", False)
        cluster_operations = _OPERATIONS_NOT_ASKED
        if body.get("includeClusterAuthorizedOperations", False):
            cluster_operations = self._cluster_operations(session)
        return {
            "brokers": [self._node("nodeId", session)],
            "clusterId": context.cluster_id,
            "controllerId": context.node_id,
            "topics": [
                self._with_operations(topic, session) if wants_operations else topic
                for topic in self._topics(request)
            ],
            "clusterAuthorizedOperations": cluster_operations,
        }

    def _topics(self, request: Request) -> Iterator[Body]:
        wanted = request.body["topics"]
        if wanted is None or (not wanted and request.version == 0):
            for info in self._visible_topics(request.session):
                yield self._described(info)
            return
        if request.version < _BY_ID_SINCE and not all(map(_has_only_a_name, wanted)):
            for topic in wanted:
                yield _failed(ErrorCode.INVALID_REQUEST, topic["name"] or "", topic["topicId"])
            return
        may_create = request.body.get("allowAutoTopicCreation", True)
        for topic in wanted:
            name, topic_id = topic["name"], topic.get("topicId", ZERO_UUID)
            if topic_id != ZERO_UUID:
                yield self._topic_by_id(topic_id, request.session)
            else:
                yield self._topic_by_name(name, request.session, may_create=may_create)

    def _visible_topics(self, session: Session) -> Iterator[TopicInfo]:
        for name, info in self._context.logs.topics.items():
            if self._may(session, Operation.DESCRIBE, name):
                yield info

    def _topic_by_id(self, topic_id: str, session: Session) -> Body:
        name = self._context.logs.name_of(topic_id)
        info = None if name is None else self._context.logs.find_topic(name)
        if info is None:
            return _failed(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        if not self._may(session, Operation.DESCRIBE, info.name):
            return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
        return self._described(info)

    def _topic_by_name(self, name: str, session: Session, *, may_create: bool) -> Body:
        if not self._may(session, Operation.DESCRIBE, name):
            return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
        info = self._context.logs.find_topic(name)
        if info is not None:
            return self._described(info)
        try:
            check_topic_name(name)
        except InvalidNameError:
            return _failed(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
        if not may_create or not self._context.config.auto_create_topics_enable:
            return _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        return self._created(name, session)

    def _created(self, name: str, session: Session) -> Body:
        """Create a topic because somebody uses it. It can be used at once."""
        authorizer = self._context.authorizer
        if not (
            authorizer.allows(session, Operation.CREATE, Resource.CLUSTER)
            or authorizer.allows(session, Operation.CREATE, Resource.TOPIC, name)
        ):
            return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
        try:
            info = self._context.logs.auto_create(name)
        except StratalogError as error:
            code = getattr(error, "code", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return _failed(code, name)
        if info is None:
            return _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        return self._described(info)

    def _described(self, info: TopicInfo) -> Body:
        return {
            "errorCode": 0,
            "name": info.name,
            "topicId": id_of(info),
            "isInternal": info.name in INTERNAL_TOPICS,
            "partitions": [self._partition(info, number) for number in range(info.partition_count)],
        }

    def _partition(self, info: TopicInfo, partition: int) -> Body:
        """Clients count partitions, so those of other brokers are listed too, without a leader."""
        if partition not in info.partitions:
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            return {"errorCode": code, "partitionIndex": partition, "leaderId": -1}
        only = [self._context.node_id]
        return {
            "partitionIndex": partition,
            "leaderId": self._context.node_id,
            "leaderEpoch": self._context.logs.leader_epoch(info.name, partition),
            "replicaNodes": only,
            "isrNodes": only,
            "eligibleLeaderReplicas": [],
            "lastKnownElr": [],
            "offlineReplicas": [],
        }

    @handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    def describe_topic_partitions(self, request: Request) -> Body:
        body, session = request.body, request.session
        cursor = body["cursor"] or {"topicName": "", "partitionIndex": 0}
        names = sorted({topic["name"] for topic in body["topics"]})
        left = max(1, min(body["responsePartitionLimit"], _PARTITIONS_MAX))
        topics: list[Body] = []
        found: Iterable[Body]
        if body["topics"]:
            found = (self._topic_by_name(name, session, may_create=False) for name in names)
        else:
            found = map(self._described, self._visible_topics(session))
        for topic in (self._with_operations(each, session) for each in found):
            if topic["name"] < cursor["topicName"]:
                continue
            first = cursor["partitionIndex"] if topic["name"] == cursor["topicName"] else 0
            partitions = [p for p in topic.get("partitions", ()) if p["partitionIndex"] >= first]
            if len(partitions) > left or (partitions and not left):
                topics += [{**topic, "partitions": partitions[:left]}] if left else []
                return {"topics": topics, "nextCursor": _cursor(topic["name"], partitions[left])}
            left -= len(partitions)
            topics.append({**topic, "partitions": partitions})
        return {"topics": topics}

    def _with_operations(self, topic: Body, session: Session) -> Body:
        """What the client may do with the topic; Kafka also says it of one that is missing."""
        if topic["name"] is None:
            return topic
        authorizer = self._context.authorizer
        allowed = authorizer.authorized_operations(session, Resource.TOPIC, topic["name"])
        return {**topic, "topicAuthorizedOperations": allowed}

    # -- nodes

    @handles(ApiKey.DESCRIBE_CLUSTER)
    def describe_cluster(self, request: Request) -> Body:
        context, session = self._context, request.session
        if request.body.get("endpointType", _BROKER_ENDPOINTS) != _BROKER_ENDPOINTS:
            raise RequestError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
                "type CONTROLLER",
            )
        operations = _OPERATIONS_NOT_ASKED
        if request.body["includeClusterAuthorizedOperations"]:
            operations = self._cluster_operations(session)
        return {
            "clusterId": context.cluster_id,
            "controllerId": context.node_id,
            "brokers": [self._node("brokerId", session)],
            "clusterAuthorizedOperations": operations,
        }

    def _node(self, id_field: str, session: Session) -> Body:
        address = self._context.address_for(session)
        return {
            id_field: self._context.node_id,
            "host": address.host,
            "port": address.port,
            "rack": self._context.rack,
        }

    def _cluster_operations(self, session: Session) -> int:
        authorizer = self._context.authorizer
        return authorizer.authorized_operations(session, Resource.CLUSTER, CLUSTER_NAME)

    def _may(self, session: Session, operation: Operation, topic: str) -> bool:
        return self._context.authorizer.allows(session, operation, Resource.TOPIC, topic)


def _has_only_a_name(topic: Body) -> bool:
    return topic["name"] is not None and topic.get("topicId", ZERO_UUID) == ZERO_UUID


def _is_software_named(body: Body) -> bool:
    names = (body["clientSoftwareName"], body["clientSoftwareVersion"])
    return all(_SOFTWARE.fullmatch(name) for name in names)


def _listed_versions(api: ApiKey) -> dict[str, Any]:
    first, last = SERVED[api]
    if api is ApiKey.PRODUCE:
        first = _PRODUCE_LISTED_FROM
    return {"apiKey": int(api), "minVersion": first, "maxVersion": last}


def _failed(code: int, name: str | None, topic_id: str = ZERO_UUID) -> Body:
    return {"errorCode": int(code), "name": name, "topicId": topic_id, "partitions": []}


def _cursor(topic: str, partition: Body) -> Body:
    return {"topicName": topic, "partitionIndex": partition["partitionIndex"]}
