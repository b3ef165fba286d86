"""The APIs of the protocol: their keys, their messages, and the versions that are served."""

from __future__ import annotations

import enum
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.wire.message_tables import message_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.format.messages.schema import Message


class ApiKey(enum.IntEnum):
    """Kafka's number of each API whose messages are known here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75

    @cached_property
    def title(self) -> str:
        """As Kafka writes it: "FindCoordinator"."""
        return self.name.title().replace("_", "")

    @cached_property
    def request(self) -> Message:
        """The request, in every version."""
        return message_named(f"{self.title}Request")

    @cached_property
    def response(self) -> Message:
        """The response, in every version."""
        return message_named(f"{self.title}Response")


class Versions(NamedTuple):
    """The first and the last version of an API."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


SERVED: Final[Mapping[ApiKey, Versions]] = {
    ApiKey.PRODUCE: Versions(3, 13),
    ApiKey.FETCH: Versions(4, 18),
    ApiKey.LIST_OFFSETS: Versions(1, 11),
    ApiKey.METADATA: Versions(0, 13),
    ApiKey.OFFSET_COMMIT: Versions(2, 10),
    ApiKey.OFFSET_FETCH: Versions(1, 10),
    ApiKey.FIND_COORDINATOR: Versions(0, 6),
    ApiKey.JOIN_GROUP: Versions(0, 9),
    ApiKey.HEARTBEAT: Versions(0, 4),
    ApiKey.LEAVE_GROUP: Versions(0, 5),
    ApiKey.SYNC_GROUP: Versions(0, 5),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 6),
    ApiKey.LIST_GROUPS: Versions(0, 5),
    ApiKey.SASL_HANDSHAKE: Versions(0, 1),
    ApiKey.API_VERSIONS: Versions(0, 4),
    ApiKey.CREATE_TOPICS: Versions(2, 7),
    ApiKey.DELETE_TOPICS: Versions(1, 6),
    ApiKey.DELETE_RECORDS: Versions(0, 2),
    ApiKey.INIT_PRODUCER_ID: Versions(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 4),
    ApiKey.END_TXN: Versions(0, 5),
    ApiKey.WRITE_TXN_MARKERS: Versions(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: Versions(0, 5),
    ApiKey.DESCRIBE_ACLS: Versions(1, 3),
    ApiKey.CREATE_ACLS: Versions(1, 3),
    ApiKey.DELETE_ACLS: Versions(1, 3),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4),
    ApiKey.ALTER_CONFIGS: Versions(0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: Versions(1, 5),
    ApiKey.SASL_AUTHENTICATE: Versions(0, 2),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3),
    ApiKey.DELETE_GROUPS: Versions(0, 2),
    ApiKey.ELECT_LEADERS: Versions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0),
    ApiKey.OFFSET_DELETE: Versions(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0),
    ApiKey.DESCRIBE_QUORUM: Versions(0, 2),
    ApiKey.DESCRIBE_CLUSTER: Versions(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: Versions(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Versions(0, 0),
    ApiKey.LIST_TRANSACTIONS: Versions(0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Versions(0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: Versions(0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Versions(0, 0),
}
"""What the broker offers. Clients choose the highest version that both know."""
