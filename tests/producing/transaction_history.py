"""What readers and the coordinator know of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.messages.transaction_records import (
    read_transaction_state,
    read_transactional_id,
)
from stratalog.log.reader import IsolationLevel

if TYPE_CHECKING:
    from stratalog.log_dir import LogDir


def committed(logs: LogDir, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    log = logs.partition(topic, partition)
    return [record.value for record in log.read(isolation=IsolationLevel.READ_COMMITTED)]


def history(logs: LogDir) -> list[tuple[str, int, int, str, object]]:
    """What the coordinator wrote: id, producer id, epoch, status, partitions."""
    steps: list[tuple[str, int, int, str, object]] = []
    for record in logs.partition("__transaction_state", 0).read():
        state = read_transaction_state(record.value or b"")
        steps.append(
            (
                read_transactional_id(record.key or b""),
                state.producer_id,
                state.producer_epoch,
                state.status.name,
                state.partitions,
            )
        )
    return steps
