"""What `ls --remote` and `verify --remote` share: the partitions named, and their segments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.cli.output import json_line, json_names
from stratalog.cli.records import time_text
from stratalog.cli.tables import NOTHING, columns_of, human_size, print_table
from stratalog.cli.targets import TopicSpec
from stratalog.errors import StratalogError, TieredLogError, UnknownTopicOrPartitionError
from stratalog.partitions.view import LogDirsView
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.partitions.tiered_inventory import TierEntry

_UNUSED = ("unreachable", "incomplete", "deleted", "orphan")


def tiered_partitions(
    names: Sequence[str], log_dirs: Sequence[Path]
) -> tuple[LogDirsView, list[TopicPartition]]:
    """The log directories and the partitions with remote segments that were named: directories,
    or topics and partitions in them."""
    roots, specs = list(log_dirs), []
    for text in names:
        path = location(text)
        if path.is_dir():
            roots.append(path)
        else:
            specs.append(TopicSpec.parse(text))
    logs = LogDirsView(roots)
    assert logs.tier is not None
    found = sorted({*logs.tier.topic_partitions, *_incomplete(logs)})
    if not specs:
        return logs, found
    wanted = []
    for spec in specs:
        matching = [
            each
            for each in found
            if each.topic == spec.topic and spec.partition in {None, each.partition}
        ]
        if not matching:
            known = ", ".join(sorted({each.topic for each in found})[:10]) or "none"
            raise UnknownTopicOrPartitionError(
                f"{logs.tier.store.root}: no remote segments of {spec.topic!r}; topics with remote "
                f"segments: {known}"
            )
        wanted += matching
    return logs, wanted


def _incomplete(logs: LogDirsView) -> Iterator[TopicPartition]:
    """Partitions whose remote part is missing, without a trace in the store or in the metadata."""
    for tp in logs.topic_partitions:
        try:
            logs.partition(*tp).close()
        except TieredLogError:
            yield tp
        except StratalogError:
            pass  # of the local log: not a matter of the store


def list_tier(names: Sequence[str], log_dirs: Sequence[Path], *, as_json: bool) -> None:
    """Print the segments of tiered topics."""
    from stratalog.partitions.tiered_inventory import tier_entries  # noqa: PLC0415 - kernels

    logs, wanted = tiered_partitions(names, log_dirs)
    entries = list(tier_entries(logs, wanted))
    if as_json:
        for entry in entries:
            print(json_line(_json_row(entry)))
        return
    header = "PARTITION | ROLE | FIRST# | LAST# | SIZE# | STORED# | EPOCHS | NEWEST/2 | ID/3"
    columns = columns_of(header)
    print_table(columns, [_row(entry) for entry in entries])
    stored, unused, unknown = (
        human_size(
            sum(entry.stored_bytes for entry in entries if roles is None or entry.role in roles)
        )
        for roles in (None, _UNUSED, ("unknown",))
    )
    print(f"\n{stored} in the store, of which {unused} is not part of any log")
    if any(entry.role == "unknown" for entry in entries):
        print(f"Of {unknown} it is unknown whether they are part of a log:")
    reasons = dict.fromkeys((entry.topic_partition, entry.reason) for entry in entries)
    for tp, reason in reasons:
        if reason:
            text = reason.removeprefix(f"{tp}: ")
            print(f"{tp}: {text}")


def _row(entry: TierEntry) -> tuple[str, ...]:
    return (
        str(entry.topic_partition),
        entry.role,
        str(entry.base_offset),
        NOTHING if entry.last_offset is None else str(entry.last_offset),
        human_size(entry.size_bytes) if entry.size_bytes else NOTHING,
        human_size(entry.stored_bytes) if entry.stored_bytes else NOTHING,
        ",".join(map(str, entry.leader_epochs)) or NOTHING,
        NOTHING if entry.max_timestamp_ms is None else time_text(entry.max_timestamp_ms),
        entry.segment_id or NOTHING,
    )


def _json_row(entry: TierEntry) -> dict[str, object]:
    fields = entry._asdict()
    place = fields.pop("topic_partition")
    return {"kind": "tiered-segment", **place._asdict(), **json_names(fields)}
