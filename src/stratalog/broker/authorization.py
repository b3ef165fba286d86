"""What a client may do: the interface `Authorizer`, and the default one, which allows everything.

`security/acls.py` has the one that enforces ACLs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.broker.requests import Session

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class Operation(enum.IntEnum):
    """Kafka's AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(enum.IntEnum):
    """Kafka's ResourceType."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


OPERATIONS: Final = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that clients ask about."""


class Authorizer:
    """Allows everything. Subclasses decide in `allows` and `allows_any`."""

    def allows(
        self, session: Session, operation: Operation, resource: Resource, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether the session's principal may do this to the resource."""
        return True

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Whether there can be a resource of this type to which the principal may do this."""
        return True

    def authorized_operations(self, session: Session, resource: Resource, name: str) -> int:
        """One bit for each operation that is allowed, as clients ask for them."""
        operations: Iterable[Operation] = OPERATIONS[resource]
        return sum(
            1 << operation
            for operation in operations
            if self.allows(session, operation, resource, name)
        )
