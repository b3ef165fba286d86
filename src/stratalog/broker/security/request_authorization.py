"""What admin and transactional requests need: a check around each of their handlers.

The handlers of records, metadata and groups ask the authorizer themselves, because their responses
depend on it in many ways. The others follow three patterns, so their rules are tables here:

* a request needs one permission, on the cluster (`_CLUSTER`);
* each entry of a request needs a permission: those without it get their error here, the handler
  gets the rest (`_ENTRIES`);
* a request of a transaction needs permissions on its transactional id, group and topics.

Handlers are wrapped only if there are ACLs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.broker.authorization import Operation, Resource
from stratalog.broker.requests import Deferred
from stratalog.wire.apis import ApiKey
from stratalog.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.broker.context import BrokerContext
    from stratalog.broker.requests import Handler, Handlers, Request, Response, Session
    from stratalog.wire.frames import Body

_CODES: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_MESSAGES: Final = {
    Resource.TOPIC: "Topic authorization failed.",
    Resource.GROUP: "Group authorization failed.",
    Resource.CLUSTER: "Cluster authorization failed.",
    Resource.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
_NO_PRODUCER: Final = {"producerId": -1, "producerEpoch": -1}
_CONFIG_RESOURCES: Final = {2: Resource.TOPIC, 32: Resource.GROUP}
"""By the number that config requests have for the type; all others are the cluster's."""

_CLUSTER: Final = {
    ApiKey.DESCRIBE_LOG_DIRS: Operation.DESCRIBE,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Operation.DESCRIBE_CONFIGS,
    ApiKey.LIST_CONFIG_RESOURCES: Operation.DESCRIBE_CONFIGS,
}


class _Entries(NamedTuple):
    """Entries of a request that need a right each."""

    asked: str
    """The field of the request."""
    response_field: str
    """The field of the response."""
    operation: Operation
    refusal: Callable[[Any], Body]
    """What the response has for an entry, apart from the error and its message."""
    resource: Callable[[Any], tuple[Resource, str]] = lambda entry: (Resource.TOPIC, entry["name"])


def _config_resource(entry: Body) -> tuple[Resource, str]:
    resource = _CONFIG_RESOURCES.get(entry["resourceType"], Resource.CLUSTER)
    return resource, entry["resourceName"]


def _config_refusal(entry: Body) -> Body:
    return {name: entry[name] for name in ("resourceType", "resourceName")}


def _refused_partitions(numbers: str) -> Callable[[Body], Body]:
    """An entry whose partitions have the error, not the topic; `numbers` lists them."""
    code = int(_CODES[Resource.TOPIC])

    def refuse(entry: Body) -> Body:
        listed = [
            each["partitionIndex"] if isinstance(each, dict) else each for each in entry[numbers]
        ]
        partitions = [
            {
                "partitionIndex": number,
                "errorCode": code,
                "errorMessage": _MESSAGES[Resource.TOPIC],
                "lowWatermark": -1,
            }
            for number in listed
        ]
        return {"name": entry["name"], "partitions": partitions}

    return refuse


_ENTRIES: Final[Mapping[ApiKey, _Entries]] = {
    ApiKey.CREATE_PARTITIONS: _Entries(
        "topics", "results", Operation.ALTER, lambda entry: {"name": entry["name"]}
    ),
    ApiKey.DELETE_RECORDS: _Entries(
        "topics", "topics", Operation.DELETE, _refused_partitions("partitions")
    ),
    ApiKey.DESCRIBE_PRODUCERS: _Entries(
        "topics", "topics", Operation.READ, _refused_partitions("partitionIndexes")
    ),
    ApiKey.DESCRIBE_CONFIGS: _Entries(
        "resources", "results", Operation.DESCRIBE_CONFIGS, _config_refusal, _config_resource
    ),
    ApiKey.ALTER_CONFIGS: _Entries(
        "resources", "responses", Operation.ALTER_CONFIGS, _config_refusal, _config_resource
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Entries(
        "resources", "responses", Operation.ALTER_CONFIGS, _config_refusal, _config_resource
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: _Entries(
        "transactionalIds",
        "transactionStates",
        Operation.DESCRIBE,
        lambda name: {"transactionalId": name},
        lambda name: (Resource.TRANSACTIONAL_ID, name),
    ),
}


class RequestAuthorization:
    """Wraps handlers, so that a request without the rights does not reach them."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._own: Mapping[ApiKey, Callable[[Request, Handler], Response]] = {
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end_transaction,
            ApiKey.WRITE_TXN_MARKERS: self._write_markers,
            ApiKey.LIST_TRANSACTIONS: self._list_transactions,
        }

    def around(self, handlers: Handlers) -> Handlers:
        """The handlers, each with its check if it needs one."""
        return {api: self._checked(api, handler) for api, handler in handlers.items()}

    def _checked(self, api: ApiKey, handler: Handler) -> Handler:
        if api in self._own:
            check = self._own[api]
            return lambda request: check(request, handler)
        if api in _ENTRIES:
            entries = _ENTRIES[api]
            return lambda request: self._split(request, handler, entries)
        if api in _CLUSTER:
            operation = _CLUSTER[api]
            return lambda request: self._of_cluster(request, handler, operation)
        return handler

    def _may(
        self, session: Session, operation: Operation, resource: Resource, name: str | None = None
    ) -> bool:
        authorizer = self._context.authorizer
        if resource is Resource.CLUSTER or name is None:
            return authorizer.allows(session, operation, Resource.CLUSTER)
        return authorizer.allows(session, operation, resource, name)

    # -- patterns

    def _of_cluster(self, request: Request, handler: Handler, operation: Operation) -> Response:
        if self._may(request.session, operation, Resource.CLUSTER):
            return handler(request)
        return _refused(Resource.CLUSTER)

    def _split(self, request: Request, handler: Handler, entries: _Entries) -> Response:
        """Respond to the entries without a right here, and leave the others to the handler."""
        allowed, refused = [], []
        for entry in request.body[entries.asked]:
            resource, name = entries.resource(entry)
            if self._may(request.session, entries.operation, resource, name):
                allowed.append(entry)
            else:
                refused.append({**_refused(resource), **entries.refusal(entry)})
        if not refused:
            return handler(request)
        rest = replace(request, body={**request.body, entries.asked: allowed})
        return _then(handler(rest), lambda body: _extended(body, entries.response_field, refused))

    # -- topics

    def _create_topics(self, request: Request, handler: Handler) -> Response:
        session = request.session
        if self._may(session, Operation.CREATE, Resource.CLUSTER):
            response = handler(request)
        else:
            entries = _Entries("topics", "topics", Operation.CREATE, _not_created)
            response = self._split(request, handler, entries)
        return _then(response, lambda body: self._without_configs(session, body))

    def _without_configs(self, session: Session, body: Body) -> Body:
        """The response has the settings of a new topic only for those who may see them."""
        hidden = {
            "topicConfigErrorCode": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            "numPartitions": -1,
            "replicationFactor": -1,
            "configs": [],
        }
        topics = [
            topic
            if topic.get("errorCode", 0)
            or self._may(session, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic["name"])
            else {**topic, **hidden}
            for topic in body["topics"]
        ]
        return {**body, "topics": topics}

    def _delete_topics(self, request: Request, handler: Handler) -> Response:
        field = "topicNames" if "topicNames" in request.body else "topics"
        entries = _Entries(
            field,
            "responses",
            Operation.DELETE,
            lambda entry: self._not_deleted(request.session, entry),
            lambda entry: (Resource.TOPIC, self._name_to_delete(entry)),
        )
        return self._split(request, handler, entries)

    def _name_to_delete(self, entry: str | Body) -> str:
        if isinstance(entry, str):
            return entry
        return entry["name"] or self._context.logs.name_of(entry["topicId"]) or ""

    def _not_deleted(self, session: Session, entry: str | Body) -> Body:
        """The name of a topic that was asked for by id stays secret without DESCRIBE."""
        name = self._name_to_delete(entry)
        if isinstance(entry, str):
            return {"name": entry}
        if entry["name"] is None and not name:
            code = int(ErrorCode.UNKNOWN_TOPIC_ID)
            return {**entry, "errorCode": code, "errorMessage": None}
        may_see = self._may(session, Operation.DESCRIBE, Resource.TOPIC, name)
        return {"name": name if entry["name"] or may_see else None, "topicId": entry["topicId"]}

    # -- transactions

    def _may_write(self, session: Session, transactional_id: str) -> bool:
        return self._may(session, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)

    def _init_producer_id(self, request: Request, handler: Handler) -> Response:
        session, transactional_id = request.session, request.body["transactionalId"]
        if transactional_id is not None:
            if not self._may_write(session, transactional_id):
                return {**_refused(Resource.TRANSACTIONAL_ID), **_NO_PRODUCER}
        elif not self._may(session, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER):
            authorizer = self._context.authorizer
            if not authorizer.allows_any(session, Operation.WRITE, Resource.TOPIC):
                return {**_refused(Resource.CLUSTER), **_NO_PRODUCER}
        return handler(request)

    def _add_partitions(self, request: Request, handler: Handler) -> Response:
        session, body = request.session, request.body
        if "transactions" in body:  # among brokers
            return self._of_cluster(request, handler, Operation.CLUSTER_ACTION)
        topics = body["v3AndBelowTopics"]
        if not self._may_write(session, body["v3AndBelowTransactionalId"]):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _partition_results(topics, lambda _: code)
        refused = {
            topic["name"]
            for topic in topics
            if not self._may(session, Operation.WRITE, Resource.TOPIC, topic["name"])
        }
        if not refused:
            return handler(request)
        return _partition_results(
            topics,
            lambda name: (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if name in refused
                else ErrorCode.OPERATION_NOT_ATTEMPTED
            ),
        )

    def _add_offsets(self, request: Request, handler: Handler) -> Response:
        session, body = request.session, request.body
        if not self._may_write(session, body["transactionalId"]):
            return _refused(Resource.TRANSACTIONAL_ID)
        if not self._may(session, Operation.READ, Resource.GROUP, body["groupId"]):
            return _refused(Resource.GROUP)
        return handler(request)

    def _end_transaction(self, request: Request, handler: Handler) -> Response:
        if not self._may_write(request.session, request.body["transactionalId"]):
            return {**_refused(Resource.TRANSACTIONAL_ID), **_NO_PRODUCER}
        return handler(request)

    def _write_markers(self, request: Request, handler: Handler) -> Response:
        session = request.session
        for operation in (Operation.CLUSTER_ACTION, Operation.ALTER):
            if self._may(session, operation, Resource.CLUSTER):
                return handler(request)
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return {"markers": [_marker_refusal(marker, code) for marker in request.body["markers"]]}

    def _list_transactions(self, request: Request, handler: Handler) -> Response:
        def visible(body: Body) -> Body:
            states = [
                state
                for state in body.get("transactionStates", [])
                if self._may(
                    request.session,
                    Operation.DESCRIBE,
                    Resource.TRANSACTIONAL_ID,
                    state["transactionalId"],
                )
            ]
            return {**body, "transactionStates": states}

        return _then(handler(request), visible)


def _refused(resource: Resource) -> Body:
    return {"errorCode": int(_CODES[resource]), "errorMessage": _MESSAGES[resource]}


def _not_created(entry: Body) -> Body:
    return {"name": entry["name"], "numPartitions": -1, "replicationFactor": -1, "configs": []}


def _marker_refusal(marker: Body, code: int) -> Body:
    topics = []
    for topic in marker["topics"]:
        refused = [{"partitionIndex": n, "errorCode": code} for n in topic["partitionIndexes"]]
        topics.append({"name": topic["name"], "partitions": refused})
    return {"producerId": marker["producerId"], "topics": topics}


def _partition_results(topics: list[Body], code_of: Callable[[str], ErrorCode]) -> Body:
    return {
        "resultsByTopicV3AndBelow": [
            {
                "name": topic["name"],
                "resultsByPartition": [
                    {"partitionIndex": number, "partitionErrorCode": int(code_of(topic["name"]))}
                    for number in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


def _extended(body: Body, field: str, more: list[Body]) -> Body:
    return {**body, field: [*body.get(field, []), *more]}


def _then(response: Response, change: Callable[[Body], Body]) -> Response:
    """The response with a change, also if it comes later."""
    if not isinstance(response, Deferred):
        return response if response is None else change(response)
    later = Deferred(on_closed=response.client_gone)
    response.then(lambda body: later.respond(None if body is None else change(body)))
    return later
