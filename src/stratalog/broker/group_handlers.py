"""Handlers of requests about groups and offsets; they call the group coordinator.

What a client may not do is left out here, before the coordinator sees it. From version 10 on,
topics of offsets are named by their ids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.groups.coordinator import GroupCoordinator
from stratalog.broker.groups.describe import describe_classic, describe_consumer, list_groups
from stratalog.broker.groups.environment import (
    Environment,
    GroupRequest,
    GroupSettings,
    TopicFacts,
)
from stratalog.broker.groups.group_log import OffsetsTopic
from stratalog.broker.logs import id_of
from stratalog.broker.regular_expressions import full_matches
from stratalog.broker.requests import Deferred, HandlerGroup, coordinator_code, handles
from stratalog.broker.transactions import join_transaction
from stratalog.errors import RequestError, StratalogError
from stratalog.format.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from stratalog.format.times import current_time_ms
from stratalog.log.partition_log import PartitionLog
from stratalog.producing.transaction_log import ProducerIdentity
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.groups.coordinator import Group
    from stratalog.broker.logs import Logs
    from stratalog.broker.reactor import Reactor, Timer
    from stratalog.broker.requests import Request
    from stratalog.wire.frames import Body

_log = logging.getLogger(__name__)

_NULL_PROTOCOL_SINCE: Final = 7
_TOPIC_IDS_SINCE: Final = 10
_MANY_GROUPS_SINCE: Final = 8
_MANY_KEYS_SINCE: Final = 4
_ERRORS_OF_FETCH_SINCE: Final = 2
_PRODUCE_VERSIONS: Final = {4: 11, 5: 12}
"""What a version of TxnOffsetCommit knows of transactions, as a version of Produce."""
_PRODUCE_WITHOUT_ABORTABLE: Final = 10
_RETRY_MS: Final = 5_000
_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
_SHARE_KEY: Final = 2
_INVALID_REQUEST_TEXT: Final = (
    "This most likely occurs because of a request being malformed by the client library or the "
    "message was sent to an incompatible broker. See the broker logs for more details."
)


class ReactorTimers:
    """Timers of the reactor, by key."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._timers: dict[Hashable, Timer] = {}

    def schedule(self, key: Hashable, delay_ms: int, action: Callable[[], None]) -> None:
        """Run the action after `delay_ms`, instead of an earlier one with the same key. If it
        raises RequestError, because its records could not be stored, it runs again later."""
        self.cancel(key)

        def run() -> None:
            self._timers.pop(key, None)
            try:
                action()
            except RequestError:  # the log of the groups has said why
                if key not in self._timers:
                    self.schedule(key, _RETRY_MS, action)

        self._timers[key] = self._reactor.call_later(delay_ms, run)

    def cancel(self, key: Hashable) -> None:
        """Forget the action with this key, if there is one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


class LogTopics:
    """The topics of the broker's logs."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._matched: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def find(self, name: str) -> TopicFacts | None:
        info = self._logs.find_topic(name)
        return None if info is None else TopicFacts(id_of(info), name, info.partition_count)

    def name_of(self, topic_id: str) -> str | None:
        return self._logs.name_of(topic_id)

    def matching(self, regex: str) -> frozenset[str]:
        """Names of topics that the regular expression matches as a whole. Raises RequestError."""
        names = frozenset(name for name, info in self._logs.topics.items() if not info.is_internal)
        known = self._matched.get(regex)
        if known is None or known[0] != names:
            known = (names, full_matches(regex, names, "SubscribedTopicRegex"))
            self._matched[regex] = known
        return known[1]


class GroupHandlers(HandlerGroup):
    """Serves groups, and says where coordinators are."""

    def __init__(self, context: BrokerContext, environment: Environment | None = None) -> None:
        self._context = context
        self.offsets_topic = OffsetsTopic(
            context.logs, self._create_offsets_topic, current_time_ms, context.changes.notify
        )
        self._env = environment or Environment(
            GroupSettings.of(context.config),
            current_time_ms,
            ReactorTimers(context.reactor),
            self.offsets_topic,
            LogTopics(context.logs),
        )
        self.coordinator = GroupCoordinator(self._env)
        self._why_no_topic = ""
        """Why the topic of the groups could not be created, as last logged."""

    def start(self) -> None:
        """Take over the groups that are in the log. Before the first request."""
        self.offsets_topic.load(self.coordinator)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        def expire() -> None:
            self._schedule_expiry()
            self.coordinator.expire()

        interval_ms = self._context.config.offsets_retention_check_interval_ms
        self._env.timers.schedule("expiry", interval_ms, expire)

    def _create_offsets_topic(self) -> None:
        logs = self._context.logs
        if logs.is_read_only:
            return
        config = self._context.config
        logs.log_dir.create_topic(
            CONSUMER_OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            replication_factor=1,
            config={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": config.offsets_topic_segment_bytes,
            },
        )

    def on_marker(self, tp: TopicPartition, identity: ProducerIdentity, commit: bool) -> None:
        """A marker was written: offsets of the transaction count now, or never."""
        if tp.topic == CONSUMER_OFFSETS_TOPIC:
            partition_for = self.offsets_topic.partition_for
            self.coordinator.end_transaction(
                identity.producer_id,
                commit=commit,
                is_ended=lambda group_id: partition_for(group_id) == tp.partition,
            )

    # -- authorization

    def _may(self, request: Request, operation: Operation, group_id: str) -> bool:
        return self._context.authorizer.allows(request.session, operation, Resource.GROUP, group_id)

    def _check(self, request: Request, operation: Operation, group_id: str) -> None:
        if not self._may(request, operation, group_id):
            raise RequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def _may_topic(self, request: Request, operation: Operation, topic: str) -> bool:
        return self._context.authorizer.allows(request.session, operation, Resource.TOPIC, topic)

    def _operations(self, request: Request, group_id: str) -> int:
        return self._context.authorizer.authorized_operations(
            request.session, Resource.GROUP, group_id
        )

    # -- FindCoordinator

    @handles(ApiKey.FIND_COORDINATOR)
    def find_coordinator(self, request: Request) -> Body:
        body = request.body
        if request.version < _MANY_KEYS_SINCE:
            found = self._coordinator_of(request, body["key"])
            message = "NONE" if found["errorCode"] == ErrorCode.NONE else found["errorMessage"]
            return {**found, "errorMessage": message}
        keys = body["coordinatorKeys"]
        return {"coordinators": [self._coordinator_of(request, key) for key in keys]}

    def _coordinator_of(self, request: Request, key: str) -> Body:
        kind = request.body.get("keyType", _GROUP_KEY)
        code, message = ErrorCode.NONE, ""
        if kind == _GROUP_KEY:
            if not self._may(request, Operation.DESCRIBE, key):
                code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            else:
                code = self._prepare_offsets_topic(key)
        elif kind == _TRANSACTION_KEY:
            may = self._context.authorizer.allows(
                request.session, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key
            )
            if not may:
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        else:
            code = ErrorCode.INVALID_REQUEST
            message = "" if kind == _SHARE_KEY else _INVALID_REQUEST_TEXT
        if code is not ErrorCode.NONE:
            return {
                "key": key,
                "nodeId": -1,
                "host": "",
                "port": -1,
                "errorCode": code,
                "errorMessage": message,
            }
        address = self._context.address_for(request.session)
        return {
            "key": key,
            "nodeId": self._context.node_id,
            "host": address.host,
            "port": address.port,
            "errorCode": code,
            "errorMessage": message,
        }

    def _prepare_offsets_topic(self, group_id: str) -> ErrorCode:
        try:
            self.offsets_topic.partition_for(group_id)
        except StratalogError as error:
            if str(error) != self._why_no_topic:  # every client asks again and again
                _log.warning("%s cannot be created: %s", CONSUMER_OFFSETS_TOPIC, error)
            self._why_no_topic = str(error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    # -- members

    @handles(ApiKey.JOIN_GROUP)
    def join(self, request: Request) -> Deferred:
        self._check(request, Operation.READ, request.body["groupId"])
        deferred = Deferred()

        def reply(body: Body) -> None:
            if body["protocolName"] is None and request.version < _NULL_PROTOCOL_SINCE:
                body = {**body, "protocolName": ""}
            deferred.respond(body)

        self.coordinator.join(_group_request(request), reply)
        return deferred

    @handles(ApiKey.SYNC_GROUP)
    def sync(self, request: Request) -> Deferred:
        self._check(request, Operation.READ, request.body["groupId"])
        deferred = Deferred()
        self.coordinator.sync(_group_request(request), deferred.respond)
        return deferred

    @handles(ApiKey.HEARTBEAT)
    def heartbeat(self, request: Request) -> Body:
        self._check(request, Operation.READ, request.body["groupId"])
        return self.coordinator.heartbeat(_group_request(request))

    @handles(ApiKey.LEAVE_GROUP)
    def leave(self, request: Request) -> Body:
        self._check(request, Operation.READ, request.body["groupId"])
        return self.coordinator.leave(_group_request(request))

    @handles(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    def consumer_heartbeat(self, request: Request) -> Body:
        self._check(request, Operation.READ, request.body["groupId"])
        try:
            return self.coordinator.consumer_heartbeat(_group_request(request))
        except RequestError as error:
            return {"errorCode": error.code, "errorMessage": error.message}

    # -- administration

    @handles(ApiKey.LIST_GROUPS)
    def list_groups(self, request: Request) -> Body:
        body = request.body
        sees_all = self._context.authorizer.allows(
            request.session, Operation.DESCRIBE, Resource.CLUSTER
        )
        groups = list_groups(
            self.coordinator.groups, body.get("statesFilter", ()), body.get("typesFilter", ())
        )
        visible = [
            group
            for group in groups
            if sees_all or self._may(request, Operation.DESCRIBE, group["groupId"])
        ]
        return {"errorCode": ErrorCode.NONE, "groups": visible}

    @handles(ApiKey.DESCRIBE_GROUPS)
    def describe_groups(self, request: Request) -> Body:
        def describe(name: str, group: Group | None) -> Body:
            return describe_classic(name, group, request.version)

        return self._described(request, request.body["groups"], describe)

    @handles(ApiKey.CONSUMER_GROUP_DESCRIBE)
    def describe_consumer_groups(self, request: Request) -> Body:
        def describe(name: str, group: Group | None) -> Body:
            described = describe_consumer(name, group, self._env.topics)
            return self._visible_topics(request, described)

        return self._described(request, request.body["groupIds"], describe)

    def _visible_topics(self, request: Request, described: Body) -> Body:
        """A group that reads a topic which the client may not see is not shown."""
        topics = {
            entry["topicName"]
            for member in described.get("members", ())
            for part in ("assignment", "targetAssignment")
            for entry in member[part]["topicPartitions"]
        }
        if all(self._may_topic(request, Operation.DESCRIBE, topic) for topic in topics):
            return described
        return {
            "groupId": described["groupId"],
            "errorCode": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "errorMessage": "The group has described topic(s) that the client is not authorized "
            "to describe.",
        }

    def _described(
        self, request: Request, names: list[str], describe: Callable[[str, Group | None], Body]
    ) -> Body:
        groups = []
        for name in names:
            if not self._may(request, Operation.DESCRIBE, name):
                groups.append({"groupId": name, "errorCode": ErrorCode.GROUP_AUTHORIZATION_FAILED})
                continue
            described = describe(name, self.coordinator.groups.get(name))
            is_found = described.get("members") is not None
            if request.body.get("includeAuthorizedOperations") and is_found:
                described["authorizedOperations"] = self._operations(request, name)
            groups.append(described)
        return {"groups": groups}

    @handles(ApiKey.DELETE_GROUPS)
    def delete_groups(self, request: Request) -> Body:
        results = []
        for group_id in request.body["groupsNames"]:
            code = ErrorCode.NONE
            try:
                self._check(request, Operation.DELETE, group_id)
                self.coordinator.delete_group(group_id)
            except RequestError as error:
                code = ErrorCode(error.code)
            results.append({"groupId": group_id, "errorCode": code})
        return {"results": results}

    # -- offsets

    @handles(ApiKey.OFFSET_COMMIT)
    def commit_offsets(self, request: Request) -> Body:
        return self._committed(request, self.coordinator.commit)

    @handles(ApiKey.TXN_OFFSET_COMMIT)
    def commit_offsets_in_transaction(self, request: Request) -> Body:
        def commit(asked: GroupRequest) -> Body:
            producer = ProducerIdentity(asked.body["producerId"], asked.body["producerEpoch"])
            self._join_transaction(request, producer)
            return self.coordinator.commit_in_transaction(asked, producer)

        return self._committed(request, commit)

    def _join_transaction(self, request: Request, producer: ProducerIdentity) -> None:
        """Make sure that the transaction includes the partition with the group's records."""
        transactional_id = request.body["transactionalId"]
        may = self._context.authorizer.allows(
            request.session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
        )
        if not may:
            raise RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        partition = self.offsets_topic.partition_for(request.body["groupId"])
        log = self._context.logs.find(CONSUMER_OFFSETS_TOPIC, partition)
        if not isinstance(log, PartitionLog):  # read-only
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        version = _PRODUCE_VERSIONS.get(request.version, _PRODUCE_WITHOUT_ABORTABLE)
        try:
            join_transaction(self._context, log, transactional_id, producer, version)
        except RequestError as error:
            if error.code != ErrorCode.NOT_ENOUGH_REPLICAS:
                raise
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None

    def _committed(self, request: Request, commit: Callable[[GroupRequest], Body]) -> Body:
        """Commit what the client may commit; the response covers all of it."""
        topics = [self._named(request, topic) for topic in request.body["topics"]]
        accepted = [topic for topic, code in topics if code is ErrorCode.NONE]
        try:
            self._check(request, Operation.READ, request.body["groupId"])
            asked = _group_request(request, {**request.body, "topics": accepted})
            committed = iter(commit(asked)["topics"])
        except StratalogError as error:
            reason = coordinator_code(error, request.api.title)
            committed = iter([_with_code(topic, reason) for topic in accepted])
        responses = [
            next(committed) if code is ErrorCode.NONE else _with_code(topic, code)
            for topic, code in topics
        ]
        for response, (topic, _) in zip(responses, topics, strict=True):
            response["topicId"] = topic.get("topicId")
        return {"topics": responses}

    def _named(self, request: Request, topic: Body) -> tuple[Body, ErrorCode]:
        """The topic with its name, and why the client may not use it."""
        if request.api is not ApiKey.TXN_OFFSET_COMMIT and request.version >= _TOPIC_IDS_SINCE:
            name = self._env.topics.name_of(topic["topicId"])
            if name is None:
                return {**topic, "name": ""}, ErrorCode.UNKNOWN_TOPIC_ID
            topic = {**topic, "name": name}
        may = self._may_topic(request, Operation.READ, topic["name"])
        return topic, ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    @handles(ApiKey.OFFSET_FETCH)
    def fetch_offsets(self, request: Request) -> Body:
        body = request.body
        require_stable = body.get("requireStable", False)
        if request.version >= _MANY_GROUPS_SINCE:
            groups = [self._fetched(request, asked, require_stable) for asked in body["groups"]]
            return {"groups": groups}
        found = self._fetched(request, body, require_stable)
        if found["errorCode"] and request.version < _ERRORS_OF_FETCH_SINCE:
            asked = body["topics"]
            found["topics"] = [_with_fetch_code(topic, found["errorCode"]) for topic in asked]
        return found

    def _fetched(self, request: Request, asked: Body, require_stable: bool) -> Body:
        group_id = asked["groupId"]
        try:
            self._check(request, Operation.DESCRIBE, group_id)
            return self._fetched_topics(request, asked, require_stable)
        except RequestError as error:
            return {"groupId": group_id, "topics": [], "errorCode": error.code}

    def _fetched_topics(self, request: Request, asked: Body, require_stable: bool) -> Body:
        has_ids = request.version >= _TOPIC_IDS_SINCE
        refused: dict[str, Body] = {}
        topics = asked["topics"]
        if topics is not None:
            named = []
            for topic in topics:
                name = self._env.topics.name_of(topic["topicId"]) if has_ids else topic["name"]
                key = topic.get("topicId") or topic["name"]
                if name is None:
                    refused[key] = _with_fetch_code(topic, ErrorCode.UNKNOWN_TOPIC_ID)
                elif not self._may_topic(request, Operation.DESCRIBE, name):
                    refused[key] = _with_fetch_code(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                else:
                    named.append({**topic, "name": name})
            asked = {**asked, "topics": named}
        found = self.coordinator.fetch_offsets(asked, require_stable=require_stable)
        visible = [
            topic
            for topic in found["topics"]
            if self._may_topic(request, Operation.DESCRIBE, topic["name"])
        ]
        if has_ids:
            visible = [topic for topic in visible if self._add_id(topic)]
        return {**found, "topics": visible + list(refused.values())}

    def _add_id(self, topic: Body) -> bool:
        facts = self._env.topics.find(topic["name"])
        if facts is not None:
            topic["topicId"] = facts.topic_id
        return facts is not None

    @handles(ApiKey.OFFSET_DELETE)
    def delete_offsets(self, request: Request) -> Body:
        self._check(request, Operation.DELETE, request.body["groupId"])
        topics = [(topic, self._why_not_delete(request, topic)) for topic in request.body["topics"]]
        accepted = [topic for topic, code in topics if code is ErrorCode.NONE]
        asked = _group_request(request, {**request.body, "topics": accepted})
        response = self.coordinator.delete_offsets(asked)
        refused = [_with_code(topic, code) for topic, code in topics if code is not ErrorCode.NONE]
        return {**response, "topics": response["topics"] + refused}

    def _why_not_delete(self, request: Request, topic: Body) -> ErrorCode:
        if not self._may_topic(request, Operation.READ, topic["name"]):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        is_known = self._env.topics.find(topic["name"]) is not None
        return ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _group_request(request: Request, body: Body | None = None) -> GroupRequest:
    host = f"/{request.session.host}"
    return GroupRequest(
        request.version, request.client_id, host, request.body if body is None else body
    )


def _with_code(topic: Body, code: int) -> Body:
    """The response for a topic of a commit that was refused."""
    partitions = [
        {"partitionIndex": entry["partitionIndex"], "errorCode": code}
        for entry in topic["partitions"]
    ]
    return {"name": topic.get("name", ""), "partitions": partitions}


def _with_fetch_code(topic: Body, code: int) -> Body:
    partitions: list[dict[str, Any]] = [
        {
            "partitionIndex": number,
            "committedOffset": -1,
            "committedLeaderEpoch": -1,
            "metadata": "",
            "errorCode": code,
        }
        for number in topic["partitionIndexes"]
    ]
    return {
        "name": topic.get("name", ""),
        "topicId": topic.get("topicId"),
        "partitions": partitions,
    }
