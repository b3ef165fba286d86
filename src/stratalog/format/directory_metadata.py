"""The small files that say what a directory is: ids, versions, and how it was last closed.

* `partition.metadata`: the topic's id, two lines, no newline at the end;
* `meta.properties`: which cluster and node a log directory belongs to, as Java properties;
* `.kafka_cleanshutdown`: exists after a clean stop. Only its existence matters; its
  content is JSON with the broker epoch (older brokers: empty).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.errors import CorruptCheckpointError, UnsupportedError
from stratalog.format.java_text import Line, decode_properties, parse_int, read_lines, read_text
from stratalog.format.uuids import ZERO_ID, decode_id, encode_id

if TYPE_CHECKING:
    import uuid

    from stratalog.format.buffers import Buffer

_KEY_VALUE = re.compile(r"(.*?):[ \t\x0b\f]+(.*)")


class PartitionMetadata(NamedTuple):
    """`partition.metadata`."""

    topic_id: uuid.UUID
    version: int = 0


class MetaProperties(NamedTuple):
    """`meta.properties`. Version 0 is from ZooKeeper's time; there every id may be missing."""

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: uuid.UUID | None = None


def decode_partition_metadata(buf: Buffer) -> PartitionMetadata:
    """Decode any version from 0 up, as Kafka does, so that ids are found after a downgrade."""
    lines = read_lines(buf)
    if len(lines) < 2:
        raise CorruptCheckpointError(f"{len(lines)} lines, not 2", position=len(buf))
    version = parse_int(_value_of(lines[0], "version"), bits=32)
    if version is None or version < 0:
        raise lines[0].wrong(f"{lines[0].text[:40]!r} is not a version")
    topic_id = decode_id(_value_of(lines[1], "topic_id"))
    if topic_id is None or topic_id == ZERO_ID:
        raise lines[1].wrong(f"{lines[1].text[:40]!r} is not a topic id")
    return PartitionMetadata(topic_id, version)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """The bytes of a `partition.metadata`."""
    return f"version: {metadata.version}\ntopic_id: {encode_id(metadata.topic_id)}".encode()


def decode_meta_properties(buf: Buffer) -> MetaProperties:
    """A file without a version is of version 0; other keys are ignored."""
    properties = decode_properties(buf)
    version = _int_property(properties, "version") if "version" in properties else 0
    if version not in {0, 1}:
        raise UnsupportedError(f"version {version} of meta.properties is not supported")
    node_key = "node.id" if version else "broker.id"
    node_id = _int_property(properties, node_key) if version or node_key in properties else None
    cluster_id = properties.get("cluster.id")
    if version and cluster_id is None:
        raise CorruptCheckpointError("cluster.id is missing")
    directory_id = None
    if "directory.id" in properties:
        directory_id = decode_id(properties["directory.id"])
        if directory_id is None:
            raise CorruptCheckpointError(f"directory.id is {properties['directory.id'][:40]!r}")
    return MetaProperties(version, cluster_id, node_id, directory_id)


def decode_clean_shutdown(buf: Buffer) -> int | None:
    """The broker epoch, or None when the file does not say, as the empty one of older brokers.

    A corrupt file raises, so that it can be reported; the shutdown still counts as clean.
    """
    if not len(buf):
        return None
    fields = _json_object(buf)
    return _int_field(fields, "brokerEpoch", bits=64) if "brokerEpoch" in fields else None


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """The bytes of a `.kafka_cleanshutdown`."""
    return _json_bytes({"version": 0, "brokerEpoch": broker_epoch})


def _value_of(line: Line, key: str) -> str:
    match = _KEY_VALUE.fullmatch(line.text)
    if match is None or match[1] != key:
        raise line.wrong(f"{line.text[:40]!r} is not a {key!r} line")
    return match[2]


def _int_property(properties: dict[str, str], key: str) -> int:
    value = parse_int(properties.get(key, ""), bits=32)
    if value is None:
        raise CorruptCheckpointError(f"{key} is {properties.get(key)!r}")
    return value


def _json_object(buf: Buffer) -> dict[str, Any]:
    try:
        value = json.loads(read_text(buf))
    except (ValueError, RecursionError) as error:  # nesting has no bound but Python's stack
        raise CorruptCheckpointError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptCheckpointError("not a JSON object")
    return value


def _int_field(fields: dict[str, Any], name: str, *, bits: int) -> int:
    value = fields.get(name)
    limit = 1 << (bits - 1)
    if type(value) is not int or not -limit <= value < limit:
        raise CorruptCheckpointError(f"{name} is not a {bits}-bit number")
    return value


def _json_bytes(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
