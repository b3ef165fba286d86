"""The contents of a file as rows for JSON: the names of Kafka's dump, and header values as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from stratalog.dump import files
from stratalog.dump.log_contents import DumpedBatch, DumpedRecord, LogDump
from stratalog.dump.text import codec_name, last_sequence
from stratalog.errors import StratalogError
from stratalog.format.batch import BatchHeader
from stratalog.format.checkpoint import CheckpointedOffset, EpochEntry
from stratalog.format.control import read_control_key, read_end_marker
from stratalog.format.messages.cluster_metadata import QUORUM_RECORDS, read_quorum_record
from stratalog.format.messages.schema import json_value
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.time_index import TimeEntry
from stratalog.storage.log_file import open_file
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.dump.files import EntryValue
    from stratalog.dump.log_contents import DumpOptions
    from stratalog.dump.problems import DumpReport
    from stratalog.format.record import Record

Row: TypeAlias = dict[str, Any]


def dump_rows(path: str, options: DumpOptions, report: DumpReport) -> Iterator[Row]:
    """One row per batch, record or entry. What is wrong with the file is reported."""
    if files.is_done(options, report):
        return
    kind = files.kind_of(path)
    if kind is None:
        report.remark(f"Ignoring unknown file {path}")
        return
    rows = _log_rows if kind in files.LOG_KINDS else _entry_rows
    with files.errors_reported(path, report):
        for row in rows(path, options, report):
            yield {"file": path, **row}


def _log_rows(path: str, options: DumpOptions, report: DumpReport) -> Iterator[Row]:
    with open_file(location(path)) as file:
        walk = LogDump(file, path, options, report)
        for seen in walk.values():
            yield _batch_row(seen) if isinstance(seen, DumpedBatch) else _record_row(seen, options)
            if files.is_done(options, report):
                return
        if options.reads_all and walk.position < walk.end:
            yield {"kind": "trailing", "position": walk.position, "size": walk.end - walk.position}


def _entry_rows(path: str, options: DumpOptions, report: DumpReport) -> Iterator[Row]:
    if options.index_checks.sanity_only and files.kind_of(path) in files.INDEX_KINDS:
        files.check_sanity(path)
        yield {"kind": "sanity", "passed": True}
    else:
        yield from map(_entry_row, files.shown_entries(path, options, report))


def _batch_row(batch: DumpedBatch) -> Row:
    header = batch.header
    row: Row = {"kind": "batch", "baseOffset": header.base_offset, "lastOffset": header.last_offset}
    if isinstance(header, BatchHeader):
        row |= {
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": last_sequence(header),
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.delete_horizon_ms,
        }
    return row | {
        "position": batch.position,
        "timestampType": header.timestamp_type.kafka_name,
        "maxTimestamp": header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": codec_name(header),
        "crc": header.crc,
        "isvalid": batch.is_valid,
    }


def _record_row(seen: DumpedRecord, options: DumpOptions) -> Row:
    record, header = seen.record, seen.batch.header
    row: Row = {"kind": "record", "offset": record.offset}
    if not options.skip_record_metadata:
        row |= {
            "timestampType": header.timestamp_type.kafka_name,
            "timestamp": record.timestamp,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
        }
        if isinstance(header, BatchHeader):
            row["sequence"] = header.sequence_of(record.offset)
        else:
            row |= {"isValid": seen.is_valid, "crc": seen.crc}
    if header.is_control:
        return row | {"control": _control_row(record)}
    if options.print_data:
        row["key"], row["value"] = map(json_value, options.decoder.show_json(record))
        show = options.header_format.to_json
        row["headers"] = [
            {"key": key, "value": None if value is None else show(value)}
            for key, value in record.headers
        ]
    else:
        row["headerKeys"] = [key for key, _ in record.headers]
    return row


def _control_row(record: Record) -> Row:
    try:
        key = read_control_key(record)
        row: Row = {"type": key.type.name, "typeId": key.type_id}
        marker = read_end_marker(record)
        if marker is not None:
            return row | {"coordinatorEpoch": marker.coordinator_epoch}
        if key.type in QUORUM_RECORDS and record.value is not None:
            return row | {"data": read_quorum_record(key.type, record.value)}
    except StratalogError as error:
        return {"error": str(error)}
    return row


def _entry_row(entry: EntryValue) -> Row:
    if isinstance(entry, OffsetEntry):
        return {"kind": "offset-entry", "offset": entry.offset, "position": entry.position}
    if isinstance(entry, TimeEntry):
        return {"kind": "time-entry", "timestamp": entry.timestamp, "offset": entry.offset}
    if isinstance(entry, EpochEntry):
        return {"kind": "leader-epoch", "epoch": entry.epoch, "startOffset": entry.start_offset}
    if isinstance(entry, CheckpointedOffset):
        return {"kind": "checkpointed-offset", **entry._asdict()}
    if not isinstance(entry, ProducerEntry):
        return {
            "kind": "aborted-transaction",
            "version": entry.version,
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }
    row: Row = {
        "kind": "producer",
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": entry.open_txn_first_offset,
        "lastTimestamp": entry.timestamp,
    }
    if entry.has_batch:
        row |= {
            "firstSequence": entry.first_sequence,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
        }
    return row
