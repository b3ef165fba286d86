"""The lines that Kafka's DumpLogSegments prints: of single values, and of a file as blocks of
text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.dump.files import (
    INDEX_KINDS,
    LOG,
    LOG_KINDS,
    OFFSET_INDEX,
    base_offset_of,
    check_sanity,
    errors_reported,
    is_done,
    kind_of,
    shown_entries,
)
from stratalog.dump.log_contents import DumpedBatch, LogDump
from stratalog.errors import CorruptError, CorruptRecordError, InvalidNameError, StratalogError
from stratalog.format import offset_index
from stratalog.format.batch import NO_SEQUENCE, PREFIX_BYTES, BatchHeader, Codec
from stratalog.format.checkpoint import CheckpointedOffset, EpochEntry
from stratalog.format.control import ControlType, read_control_key, read_end_marker
from stratalog.format.messages.cluster_metadata import read_quorum_record
from stratalog.format.messages.schema import to_json
from stratalog.format.names import FileKind, parse_partition_file
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.time_index import TimeEntry
from stratalog.format.varint import wrapped_long
from stratalog.storage.log_file import open_file
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.dump.files import EntryValue
    from stratalog.dump.log_contents import Dumped, DumpedRecord, DumpOptions
    from stratalog.dump.problems import DumpReport
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.record import Record

_CODEC_NAMES: Final = {codec.value: codec.name.lower() for codec in Codec}
_EMPTY: Final = "OptionalLong.empty"
_BOOLEANS: Final = ("false", "true")
_INT_MAX: Final = (1 << 31) - 1
_QUORUM_TITLES: Final = {
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}


def codec_name(header: EntryHeader) -> str:
    """Kafka's tool throws at an unknown codec."""
    return _CODEC_NAMES.get(header.codec_id, f"unknown({header.codec_id})")


class _Flags(NamedTuple):
    """What a magic-2 header's attributes put into its line."""

    booleans: str
    timestamp_name: str
    codec: str
    has_delete_horizon: bool


@lru_cache(maxsize=512)
def _flags(attributes: int) -> _Flags:
    header = BatchHeader._make([0] * 5 + [attributes] + [0] * 7)
    return _Flags(
        f"isTransactional: {_BOOLEANS[header.is_transactional]} "
        f"isControl: {_BOOLEANS[header.is_control]}",
        header.timestamp_type.kafka_name,
        codec_name(header),
        header.delete_horizon_ms is not None,
    )


def batch_line(batch: DumpedBatch) -> str:
    """The line of a batch, or of a message of the old formats."""
    header = batch.header
    valid = _BOOLEANS[batch.is_valid]
    if not isinstance(header, BatchHeader):
        return (
            f"offset: {header.last_offset} position: {batch.position} "
            f"{header.timestamp_type.kafka_name}: {header.max_timestamp} "
            f"size: {header.size_bytes} magic: {header.magic} compresscodec: {codec_name(header)} "
            f"crc: {header.crc} isvalid: {valid}"
        )
    # One unpacking is cheaper than thirteen attributes, and there may be a million lines.
    base, length, epoch, magic, crc, attributes, delta, start, newest, *producer = header
    producer_id, producer_epoch, base_sequence, count = producer
    flags = _flags(attributes)
    last = NO_SEQUENCE if base_sequence == NO_SEQUENCE else last_sequence(header)
    horizon = f"OptionalLong[{start}]" if flags.has_delete_horizon else _EMPTY
    return (
        f"baseOffset: {base} lastOffset: {wrapped_long(base + delta)} count: {count} "
        f"baseSequence: {base_sequence} lastSequence: {last} producerId: {producer_id} "
        f"producerEpoch: {producer_epoch} partitionLeaderEpoch: {epoch} {flags.booleans} "
        f"deleteHorizonMs: {horizon} position: {batch.position} {flags.timestamp_name}: {newest} "
        f"size: {length + PREFIX_BYTES} magic: {magic} compresscodec: {flags.codec} crc: {crc} "
        f"isvalid: {valid}"
    )


def last_sequence(header: BatchHeader) -> int:
    """As Java computes it, also from header fields that no producer would write."""
    base, delta = header.base_sequence, header.last_offset_delta
    if base == NO_SEQUENCE:
        return NO_SEQUENCE
    if base > _wrapped_int(_INT_MAX - delta):
        return _wrapped_int(delta - (_INT_MAX - base) - 1)
    return _wrapped_int(base + delta)


def _wrapped_int(value: int) -> int:
    return ((value + (1 << 31)) & 0xFFFF_FFFF) - (1 << 31)


def optional_text(value: int | None) -> str:
    """Java's OptionalLong as text."""
    return _EMPTY if value is None else f"OptionalLong[{value}]"


def record_line(seen: DumpedRecord, options: DumpOptions) -> str:
    """Without metadata, a control record is an empty line, and one without a key loses its bar."""
    is_control = seen.batch.header.is_control
    line = "" if options.skip_record_metadata else _metadata(seen)
    if options.print_data and not is_control:
        key, payload = options.decoder.show(seen.record)
        if key is not None:
            line += f" key: {key}" if line else f"| key: {key}"
        if payload is not None:
            line += f" payload: {payload}"
    return line


def _metadata(seen: DumpedRecord) -> str:
    record, header = seen.record, seen.batch.header
    line = (
        f"| offset: {record.offset} {header.timestamp_type.kafka_name}: {record.timestamp} "
        f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
    )
    if isinstance(header, BatchHeader):
        keys = ",".join([header_.key for header_ in record.headers])
        line += f" sequence: {header.sequence_of(record.offset)} headerKeys: [{keys}]"
    else:
        line += f" isValid: {_BOOLEANS[bool(seen.is_valid)]} crc: {seen.crc}}}"
    if header.is_control:
        line += control_text(record)
    return line


def _size(field: bytes | None) -> int:
    return -1 if field is None else len(field)


def control_text(record: Record) -> str:
    """What a control record says; a type that is not known here is named by its number."""
    key = read_control_key(record)
    marker = read_end_marker(record)
    if marker is not None:
        return f" endTxnMarker: {marker.type.name} coordinatorEpoch: {marker.coordinator_epoch}"
    title = _QUORUM_TITLES.get(key.type)
    if title is None:
        return f" controlType: {key.type.name}({key.type_id})"
    if record.value is None:
        raise CorruptRecordError(f"control record {key.type.name} has no value")
    return f" {title} {to_json(read_quorum_record(key.type, record.value))}"


def entry_line(entry: EntryValue) -> str:
    """An entry of an index, transaction index, snapshot or text checkpoint."""
    if isinstance(entry, OffsetEntry):
        return f"offset: {entry.offset} position: {entry.position}"
    if isinstance(entry, TimeEntry):
        return f"timestamp: {entry.timestamp} offset: {entry.offset}"
    if isinstance(entry, ProducerEntry):
        return _producer_line(entry)
    if isinstance(entry, EpochEntry):
        return f"epoch: {entry.epoch} startOffset: {entry.start_offset}"
    if isinstance(entry, CheckpointedOffset):
        return f"topic: {entry.topic} partition: {entry.partition} offset: {entry.offset}"
    return (
        f"version: {entry.version} producerId: {entry.producer_id} "
        f"firstOffset: {entry.first_offset} lastOffset: {entry.last_offset} "
        f"lastStableOffset: {entry.last_stable_offset}"
    )


def _producer_line(entry: ProducerEntry) -> str:
    """Ends with a blank when no batch of the producer is known."""
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
        f"coordinatorEpoch: {entry.coordinator_epoch} "
        f"currentTxnFirstOffset: {optional_text(entry.open_txn_first_offset)} "
        f"lastTimestamp: {entry.timestamp} "
    )
    if entry.has_batch:
        line += (
            f"firstSequence: {entry.first_sequence} lastSequence: {entry.last_sequence} "
            f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} "
            f"timestamp: {entry.timestamp}"
        )
    return line


BULK_LINES_MIN: Final = 50_000
_BLOCK_LINES: Final = 512
_BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"


def dump_text(path: str, options: DumpOptions, report: DumpReport) -> Iterator[bytes]:
    """Blocks of complete lines. What is wrong with the file is reported.

    `path` is shown as it is; `files.java_path` makes it what Java would show.
    """
    if is_done(options, report):
        return
    yield _encoded([f"Dumping {path}"])
    kind = kind_of(path)
    if kind is None:
        report.remark(f"Ignoring unknown file {path}")
        return
    with errors_reported(path, report):
        if kind in LOG_KINDS:
            yield from _log_blocks(path, options, report)
        else:
            yield from _blocks(_entry_lines(path, kind, options, report))


def _encoded(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _blocks(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines in blocks; those before an error are yielded before it is raised."""
    block: list[str] = []
    try:
        for line in lines:
            block.append(line)
            if len(block) == _BLOCK_LINES:
                yield _encoded(block)
                block = []
    except (StratalogError, OSError):
        if block:
            yield _encoded(block)
        raise
    if block:
        yield _encoded(block)


def _title(path: str) -> str:
    if kind_of(path) == LOG:
        return f"Log starting offset: {base_offset_of(path)}"
    name = path.rpartition("/")[2]
    if name == _BOOTSTRAP_NAME:
        return "KRaft bootstrap snapshot"
    parsed = parse_partition_file(name)
    if parsed is None or parsed.kind is not FileKind.METADATA_SNAPSHOT:
        raise InvalidNameError(f"{name!r} is not the name of a metadata snapshot")
    return f"Snapshot end offset: {parsed.base_offset}, epoch: {parsed.epoch}"


def _log_blocks(path: str, options: DumpOptions, report: DumpReport) -> Iterator[bytes]:
    yield _encoded([*options.notices, _title(path)])
    with open_file(location(path)) as file:
        walk = LogDump(file, path, options, report)

        def show(values: Iterable[Dumped]) -> Iterator[bytes]:
            return _blocks(_log_lines(values, path, options, report))

        if _is_bulk(walk, options):
            from stratalog.dump.compiled_text import BulkDump  # noqa: PLC0415  # compiled kernels

            yield from BulkDump(walk, options, report, show).blocks()
        else:
            yield from show(walk.values())
        if options.reads_all and walk.position < walk.end and not is_done(options, report):
            size, name = walk.end - walk.position, path.rpartition("/")[2]
            yield _encoded([f"Found {size} invalid bytes at the end of {name}"])


def _is_bulk(walk: LogDump, options: DumpOptions) -> bool:
    """Whether there is enough to show for compiled kernels to pay off, loading included."""
    if options.print_data and not options.decoder.is_plain:
        return False
    if options.is_bulk is not None:
        return options.is_bulk
    return walk.estimate_lines() >= BULK_LINES_MIN


def _log_lines(
    values: Iterable[Dumped], path: str, options: DumpOptions, report: DumpReport
) -> Iterator[str]:
    for seen in values:
        if isinstance(seen, DumpedBatch):
            yield batch_line(seen)
        else:
            yield _record_line(seen, path, options, report)
        if is_done(options, report):
            return


def _record_line(seen: DumpedRecord, path: str, options: DumpOptions, report: DumpReport) -> str:
    try:
        return record_line(seen, options)
    except StratalogError as error:
        reason = error.reason if isinstance(error, CorruptError) else str(error)
        report.problem(f"{path} at byte {seen.batch.position}: {reason}")
        return f"| offset: {seen.record.offset}"


def _entry_lines(path: str, kind: str, options: DumpOptions, report: DumpReport) -> Iterator[str]:
    if kind == OFFSET_INDEX and location(path).stat().st_size < offset_index.ENTRY_BYTES:
        yield f"{path} is empty."
    elif options.index_checks.sanity_only and kind in INDEX_KINDS:
        check_sanity(path)
        yield f"{path} passed sanity check."
    else:
        yield from map(entry_line, shown_entries(path, options, report))
