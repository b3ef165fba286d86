"""How keys and values of records are shown: as text, hex, base64, JSON or integers.

A decoder returns (key, payload); None means that there is nothing to show. Records of internal
topics are decoded in the words of Kafka's own tool; what cannot be decoded is reported in its
place."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from stratalog.dump.problems import in_table_order, partition_hash, slots_after
from stratalog.errors import CorruptError, StratalogError, UnknownGroupRecordError, UnsupportedError
from stratalog.format.java_text import decode_utf8
from stratalog.format.messages import cluster_metadata
from stratalog.format.messages import group_records as groups
from stratalog.format.messages import remote_log_records as remote
from stratalog.format.messages import transaction_records as txns
from stratalog.format.messages.schema import Value, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.format.record import Record

Text: TypeAlias = "tuple[str | None, str | None]"


class MessageDecoder(Protocol):
    """What a record's key and value are shown as."""

    def show(self, record: Record) -> Text:
        """Key and payload as they go into a line of text."""
        ...

    def show_json(self, record: Record) -> tuple[Value, Value]:
        """Key and payload as they go into JSON."""
        ...

    @property
    def is_plain(self) -> bool:
        """Keys and values are shown as the UTF-8 they are."""
        ...


class Format(NamedTuple):
    """One way to show bytes."""

    to_text: Callable[[bytes], str]
    to_json: Callable[[bytes], Value]


def text_or_base64(data: bytes) -> Value:
    """Text, or an object with the base64 of bytes that are not UTF-8, so that nothing is lost."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _parse_json(data: bytes) -> Value:
    """`data` parsed as JSON, or its text if it is not JSON."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return text_or_base64(data)


def _json_line(data: bytes) -> str:
    """`data` as JSON in one line, or its text if it is not JSON."""
    try:
        parsed = json.loads(data.decode())
        line = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        line.encode()  # a lone surrogate may have been escaped
    except UnicodeEncodeError:
        return json.dumps(parsed, separators=(",", ":"))
    except (ValueError, RecursionError):
        return decode_utf8(data)
    return line


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _integer(size_bytes: int) -> Format:
    """As Kafka's decoders: the first bytes count. If there are too few, they are shown in hex."""

    def to_json(data: bytes) -> Value:
        if len(data) < size_bytes:
            return f"0x{data.hex()}"
        return int.from_bytes(data[:size_bytes], signed=True)

    return Format(lambda data: str(to_json(data)), to_json)


UTF_8: Final = "utf-8"
FORMATS: Final[Mapping[str, Format]] = {
    UTF_8: Format(decode_utf8, text_or_base64),
    "hex": Format(bytes.hex, bytes.hex),
    "base64": Format(_base64, _base64),
    "json": Format(_json_line, _parse_json),
    "int32": _integer(4),
    "int64": _integer(8),
}


class PlainDecoder:
    """Keys and values each in a format of `FORMATS`."""

    def __init__(self, key_format: str = UTF_8, value_format: str = UTF_8) -> None:
        self._key, self._value = FORMATS[key_format], FORMATS[value_format]
        self.is_plain = key_format == value_format == UTF_8

    def show(self, record: Record) -> Text:
        key, value = record.key, record.value
        return (
            None if key is None else self._key.to_text(key),
            None if value is None else self._value.to_text(value),
        )

    def show_json(self, record: Record) -> tuple[Value, Value]:
        key, value = record.key, record.value
        return (
            None if key is None else self._key.to_json(key),
            None if value is None else self._value.to_json(value),
        )


_KAFKA_CLASSES: Final = {
    "StringDecoder": UTF_8,
    "IntegerDecoder": "int32",
    "LongDecoder": "int64",
    "DefaultDecoder": "hex",  # Kafka prints the array's identity, such as [B@1b2c3d
}
_PACKAGE: Final = "org.apache.kafka.tools.api."
_DEPRECATED_PACKAGE: Final = "kafka.serializer."


def format_of_class(name: str) -> str:
    """The format that one of Kafka's own decoder classes stands for."""
    for package in (_PACKAGE, _DEPRECATED_PACKAGE):
        short = name.removeprefix(package)
        if short != name and short in _KAFKA_CLASSES:
            return _KAFKA_CLASSES[short]
    known = ", ".join(_PACKAGE + short for short in _KAFKA_CLASSES)
    raise UnsupportedError(f"{name} is a Java class, which cannot be used here; use one of {known}")


def deprecation_notice(name: str) -> str | None:
    """What Kafka's tool says first when a decoder is named by its old class."""
    short = name.removeprefix(_DEPRECATED_PACKAGE)
    if short == name or short not in _KAFKA_CLASSES:
        return None
    return f"{name} is deprecated. Please use {_PACKAGE}{short} instead"


# Decoders for the records of internal topics.

_TOMBSTONE = "<DELETE>"


class OffsetsDecoder:
    """Records of `__consumer_offsets`."""

    is_plain = False

    def show(self, record: Record) -> Text:
        key, value = self.show_json(record)
        return _text(key), _text(value)

    def show_json(self, record: Record) -> tuple[Value, Value]:
        if record.key is None:
            return (
                f"Failed to decode message at offset {record.offset} using offset topic decoder "
                "(message had a missing key)"
            ), None
        try:
            found = groups.read_group_record(record.key, record.value)
        except UnknownGroupRecordError as error:
            text = f"Unknown record type {error.type_id} at offset {record.offset}, skipping."
            return text, None
        except StratalogError as error:
            return f"Error at offset {record.offset}, skipping. {_reason(error)}", None
        key = {"type": str(found.type_id), "data": found.key}
        if found.value is None:
            return key, _TOMBSTONE
        return key, {"version": str(found.value_version), "data": found.value}


class TransactionLogDecoder:
    """Records of `__transaction_state`."""

    is_plain = False

    def show(self, record: Record) -> Text:
        try:
            return self._show(record)
        except StratalogError as error:
            return f"Error at offset {record.offset}, skipping. {_reason(error)}", None

    def _show(self, record: Record) -> Text:
        key = record.key or b""
        if version := txns.key_version(key):
            return f"unknown::version={version}", None
        shown = f"transaction_metadata::transactionalId={txns.read_transactional_id(key)}"
        if record.value is None:
            return shown, _TOMBSTONE
        state = txns.read_transaction_state(record.value)
        return shown, (
            f"producerId:{state.producer_id},producerEpoch:{state.producer_epoch},"
            f"state={state.status.kafka_name},partitions=[{','.join(_partitions(state))}],"
            f"txnLastUpdateTimestamp={state.last_update_timestamp},txnTimeoutMs={state.timeout_ms}"
        )

    def show_json(self, record: Record) -> tuple[Value, Value]:
        try:
            key = {"transactionalId": txns.read_transactional_id(record.key or b"")}
            if record.value is None:
                return key, None
            state = txns.read_transaction_state(record.value)
        except StratalogError as error:
            return f"Error at offset {record.offset}, skipping. {_reason(error)}", None
        return key, {
            "producerId": state.producer_id,
            "producerEpoch": state.producer_epoch,
            "state": state.status.kafka_name,
            "partitions": _partitions(state),
            "txnLastUpdateTimestamp": state.last_update_timestamp,
            "txnTimeoutMs": state.timeout_ms,
        }


class ClusterMetadataDecoder:
    """Records of `__cluster_metadata`, which have no keys."""

    is_plain = False

    def show(self, record: Record) -> Text:
        _, value = self.show_json(record)
        return None, _text(value)

    def show_json(self, record: Record) -> tuple[Value, Value]:
        try:
            found = cluster_metadata.read_metadata_record(record.value or b"")
        except StratalogError as error:
            return None, f"Error at {record.offset}, skipping. {_reason(error)}"
        shown = {"type": found.kafka_name, "version": found.version, "data": found.fields}
        return None, shown


class RemoteLogMetadataDecoder:
    """Records of `__remote_log_metadata`, which have no keys."""

    is_plain = False

    def show(self, record: Record) -> Text:
        found = self._read(record)
        return None, found if isinstance(found, str) else _remote_text(found)

    def show_json(self, record: Record) -> tuple[Value, Value]:
        found = self._read(record)
        if isinstance(found, str):
            return None, found
        return None, {"type": found.name, "version": found.version, "data": found.fields}

    @staticmethod
    def _read(record: Record) -> remote.RemoteLogRecord | str:
        """The content of the record, or why it cannot be read."""
        try:
            return remote.read_remote_log_record(record.value or b"")
        except StratalogError as error:
            return f"Error at offset {record.offset}, skipping. {_reason(error)}"


def _remote_text(found: remote.RemoteLogRecord) -> str:
    """The Java object of the record, as Kafka prints it."""
    of = found.fields
    event = {"eventTimestampMs": of["eventTimestampMs"], "brokerId": of["brokerId"]}
    if found.type_id == remote.PARTITION_DELETE:
        partition = _topic_id_partition(of["topicIdPartition"])
        state = of["remotePartitionDeleteState"]
        facts = {"topicPartition": partition, "state": state, **event}
        return _java_object("RemotePartitionDeleteMetadata", facts)
    segment, custom = of["remoteLogSegmentId"], of["customMetadata"]
    partition = _topic_id_partition(segment["topicIdPartition"])
    names = {"topicIdPartition": partition, "id": segment["id"]}
    head = {"remoteLogSegmentId": _java_object("RemoteLogSegmentId", names)}
    custom_text = "Optional.empty"
    if custom is not None:
        custom_text = f"Optional[CustomMetadata{{{len(custom)} bytes}}]"
    tail = {"customMetadata": custom_text, "state": of["remoteLogSegmentState"]}
    if found.type_id == remote.SEGMENT_UPDATE:
        return _java_object("RemoteLogSegmentMetadataUpdate", {**head, **tail, **event})
    epochs = sorted((each["leaderEpoch"], each["offset"]) for each in of["segmentLeaderEpochs"])
    facts = {
        **head,
        **{name: of[name] for name in ("startOffset", "endOffset", "brokerId", "maxTimestampMs")},
        "eventTimestampMs": of["eventTimestampMs"],
        "segmentLeaderEpochs": "{" + ", ".join(f"{epoch}={at}" for epoch, at in epochs) + "}",
        "segmentSizeInBytes": of["segmentSizeInBytes"],
        **tail,
        "txnIdxEmpty": "true" if of.get("txnIndexEmpty") else "false",
    }
    return _java_object("RemoteLogSegmentMetadata", facts)


def _topic_id_partition(of: Mapping[str, Value]) -> str:
    return f"{of['id']}:{of['name']}-{of['partition']}"


def _java_object(name: str, facts: Mapping[str, Value]) -> str:
    return f"{name}{{{', '.join(f'{key}={value}' for key, value in facts.items())}}}"


def _partitions(state: txns.TransactionState) -> list[str]:
    """Partitions as text, in the order of Kafka's hash set. An empty transaction has none."""
    if state.status is txns.TransactionStatus.EMPTY:
        return []
    lots = [(topic, dict.fromkeys(partitions)) for topic, partitions in state.partitions]
    pairs = dict.fromkeys((topic, partition) for topic, lot in lots for partition in lot)
    slots = slots_after(len(lot) for _, lot in lots)
    ordered = in_table_order(list(pairs), [partition_hash(*pair) for pair in pairs], slots)
    return [f"{topic}-{partition}" for topic, partition in ordered]


def _text(value: Value) -> str | None:
    return value if value is None or isinstance(value, str) else to_json(value)


def _reason(error: StratalogError) -> str:
    return error.reason if isinstance(error, CorruptError) else str(error)
