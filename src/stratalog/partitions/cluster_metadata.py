"""The metadata of a KRaft cluster as one of its nodes has it on disk: topics and settings.

A node keeps the log `__cluster_metadata-0` and snapshots of its state, each named after its end
offset. The node's state is the newest complete snapshot plus the log after it, or the log alone
while it starts at offset 0.

* A snapshot without its footer, or with a corrupt batch, is skipped: an older one and a longer
  part of the log lead to the same state. If the log ends before the skipped snapshot, this raises.
* A torn batch at the end of the log, or a corrupt one that no batch follows, was never
  acknowledged: the log ends before it. Corruption before other batches, and a gap between a
  snapshot and the log, raise: the settings would be a guess.
* Records of a transaction (KIP-868) take effect when it ends.
* Types of records that do not concern topics or settings are not decoded, so new ones of later
  versions are no problem.

No file has the high watermark, so records that the quorum had not committed yet are included.
"""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    StorageError,
    UnsupportedError,
)
from stratalog.format import varint
from stratalog.format.batch import BatchHeader, check_crc, next_entry, read_header
from stratalog.format.control import ControlType, read_control_key
from stratalog.format.messages.cluster_metadata import (
    FRAME_VERSION,
    MetadataRecord,
    read_metadata_record,
)
from stratalog.format.messages.schema import uuid_bytes
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    FileKind,
    FileState,
    TopicPartition,
    known_partition_file,
)
from stratalog.format.record import decode_records
from stratalog.format.resync import FoundBatch, find_next_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

METADATA_DIR: Final = str(TopicPartition(CLUSTER_METADATA_TOPIC, 0))

CLUSTER_DEFAULT: Final = ""
"""The name under which the settings for all brokers are stored."""

_FRAME: Final = bytes([FRAME_VERSION])
_NO_CHANGE: Final = -2
"""As the leader in a change of a partition."""


class _Type(enum.IntEnum):
    """The records that concern topics and settings, and those of transactions."""

    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    REMOVE_TOPIC = 9
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25


_TYPES: Final = frozenset(map(int, _Type))


class ResourceType(enum.IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class PartitionRegistration(NamedTuple):
    """A partition of the cluster."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int


@dataclass(frozen=True)
class ClusterTopic:
    """A topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionRegistration] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        return len(self.partitions)


@dataclass(frozen=True)
class ClusterMetadata:
    """Topics and settings of a cluster, up to `end_offset`."""

    path: Path
    """The directory of the metadata log."""
    end_offset: int
    """Offset of the last record that was applied, plus one."""
    snapshot: Path | None
    """The snapshot that was used."""
    topics: Mapping[str, ClusterTopic]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    """Settings by type and name of the resource."""
    warnings: tuple[str, ...] = ()
    """Snapshots that were skipped, and why."""

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The settings of a topic."""
        return self.configs.get((ResourceType.TOPIC, name), {})

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        """The dynamic settings of one broker."""
        return self.configs.get((ResourceType.BROKER, str(node_id)), {})

    @property
    def cluster_configs(self) -> Mapping[str, str]:
        """The dynamic settings of all brokers."""
        return self.configs.get((ResourceType.BROKER, CLUSTER_DEFAULT), {})


def read_cluster_metadata(path: Path) -> ClusterMetadata:
    """The state in a node's `__cluster_metadata-0`. Never writes.

    Raises CorruptError, with the position, if the state is not certain; UnsupportedError for
    records of a later Kafka that would change it; StorageError if a file cannot be read.
    """
    for is_last_try in (False, False, True):
        try:
            return _read(path)
        except FileNotFoundError as error:  # a running node has removed it since it was listed
            if is_last_try:
                raise _cannot_read(path, error) from error
        except OSError as error:
            raise _cannot_read(path, error) from error
    raise AssertionError("the last try returns or raises")


def _read(path: Path) -> ClusterMetadata:
    listing = _Listing.of(path)
    if not listing.snapshots and not listing.segments:
        raise CorruptError("no metadata snapshot and no segment in this directory", path=path)
    image, snapshot, warnings = _newest_snapshot(listing.snapshots)
    _replay_log(image, listing.segments, path, warnings)
    _check_reaches(image, listing.snapshots, path, warnings)
    topics = image.sorted_topics()
    return ClusterMetadata(path, image.end_offset, snapshot, topics, image.configs, tuple(warnings))


def _cannot_read(path: Path, error: OSError) -> StorageError:
    where = path if error.filename is None else Path(error.filename)
    return StorageError(where, "read", error.errno or 0, error.strerror or str(error))


class _Listing(NamedTuple):
    snapshots: list[tuple[int, Path]]
    """By end offset, the newest first."""
    segments: list[tuple[int, Path]]
    """By base offset."""

    @classmethod
    def of(cls, path: Path) -> _Listing:
        snapshots, segments = [], []
        for name in sorted(entry.name for entry in path.iterdir()):
            file = known_partition_file(name)
            if file is None or file.state is not FileState.LIVE or file.base_offset is None:
                continue
            if file.kind is FileKind.METADATA_SNAPSHOT:
                snapshots.append((file.base_offset, path / name))
            elif file.kind is FileKind.LOG:
                segments.append((file.base_offset, path / name))
        return cls(snapshots[::-1], segments)


# -- the state


class _Image:
    """The state after the records replayed so far."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._partitions: dict[uuid.UUID, dict[int, PartitionRegistration]] = {}
        self._open: list[MetadataRecord] | None = None  # of the transaction that has not ended
        self._open_from = 0
        self._replays: Mapping[int, Callable[[dict[str, Any]], None]] = {
            _Type.TOPIC: self._add_topic,
            _Type.PARTITION: self._add_partition,
            _Type.PARTITION_CHANGE: self._change_partition,
            _Type.CONFIG: self._set_config,
            _Type.REMOVE_TOPIC: self._remove_topic,
        }

    def sorted_topics(self) -> dict[str, ClusterTopic]:
        """Topics in order of their names, without the records of a transaction that has not
        ended."""
        if self._open is not None:
            self.end_offset = self._open_from
        return {
            name: ClusterTopic(name, topic_id, dict(sorted(self._partitions[topic_id].items())))
            for name, topic_id in sorted(self._ids.items())
        }

    def replay(self, record: MetadataRecord, offset: int) -> None:
        if record.type_id == _Type.BEGIN_TRANSACTION:
            if self._open is not None:
                raise _contradiction("a transaction starts inside another", offset)
            self._open, self._open_from = [], offset
        elif record.type_id in {_Type.END_TRANSACTION, _Type.ABORT_TRANSACTION}:
            if self._open is None:
                raise _contradiction("a transaction ends that never started", offset)
            records, self._open = self._open, None
            if record.type_id == _Type.END_TRANSACTION:
                for each in records:
                    self._apply(each, offset)
        elif self._open is not None:
            self._open.append(record)
        else:
            self._apply(record, offset)

    def _apply(self, record: MetadataRecord, offset: int) -> None:
        try:
            self._replays[record.type_id](record.fields)
        except KeyError as error:
            raise _contradiction(f"{record.kafka_name} of unknown {error}", offset) from None

    def _add_topic(self, fields: dict[str, Any]) -> None:
        name, topic_id = fields["name"], _uuid(fields["topicId"])
        self._names[topic_id], self._ids[name] = name, topic_id
        self._partitions[topic_id] = {}

    def _remove_topic(self, fields: dict[str, Any]) -> None:
        topic_id = _uuid(fields["topicId"])
        name = self._names.pop(topic_id)
        del self._partitions[topic_id]
        if self._ids.get(name) == topic_id:
            del self._ids[name]
            self.configs.pop((ResourceType.TOPIC, name), None)

    def _add_partition(self, fields: dict[str, Any]) -> None:
        self._partitions[_uuid(fields["topicId"])][fields["partitionId"]] = PartitionRegistration(
            tuple(fields["replicas"]), fields["leader"], fields["leaderEpoch"]
        )

    def _change_partition(self, fields: dict[str, Any]) -> None:
        partitions = self._partitions[_uuid(fields["topicId"])]
        before = partitions[fields["partitionId"]]
        leader, epoch = fields.get("leader", _NO_CHANGE), before.leader_epoch
        if leader == _NO_CHANGE:
            leader = before.leader
        else:
            epoch += 1
        replicas = fields.get("replicas")
        partitions[fields["partitionId"]] = PartitionRegistration(
            before.replicas if replicas is None else tuple(replicas), leader, epoch
        )

    def _set_config(self, fields: dict[str, Any]) -> None:
        configs = self.configs.setdefault((fields["resourceType"], fields["resourceName"]), {})
        if fields["value"] is None:
            configs.pop(fields["name"], None)
        else:
            configs[fields["name"]] = fields["value"]


def _uuid(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=uuid_bytes(text))


def _contradiction(reason: str, offset: int) -> CorruptRecordError:
    return CorruptRecordError(reason, offsets=(offset, offset))


# -- the files


def _newest_snapshot(
    snapshots: Sequence[tuple[int, Path]],
) -> tuple[_Image, Path | None, list[str]]:
    """The state of the newest complete snapshot; the empty one if there is none."""
    warnings = []
    for end_offset, path in snapshots:
        try:
            image = _read_snapshot(path.read_bytes())
        except CorruptError as error:
            warnings.append(f"metadata snapshot skipped: {error.located(path)}")
            continue
        except UnsupportedError as error:
            raise UnsupportedError(f"{path}: {error}") from None
        image.end_offset = end_offset
        return image, path, warnings
    return _Image(), None, warnings


def _read_snapshot(data: bytes) -> _Image:
    """Raises CorruptError unless it is complete: header first, footer last, all CRCs valid."""
    image = _Image()
    controls: list[ControlType] = []
    at = 0
    has_footer = False
    while (entry := next_entry(data, at)) is not None:
        header = _checked(data, at)
        if header.is_control:
            records = decode_records(data, at, header)
            controls += [read_control_key(record, position=at).type for record in records]
            has_footer = bool(controls) and controls[-1] is ControlType.SNAPSHOT_FOOTER
        else:
            has_footer = False
            _replay_batch(image, data, at, header, offset_min=0)
        if controls[:1] != [ControlType.SNAPSHOT_HEADER]:
            raise CorruptBatchError("it does not start with a snapshot header", position=at)
        at = entry.end
    if not has_footer or at != len(data):
        raise CorruptBatchError("it is incomplete: no footer at its end", position=at)
    return image


def _replay_log(
    image: _Image, segments: Sequence[tuple[int, Path]], path: Path, warnings: Sequence[str]
) -> None:
    """Replay the records from the image's end on. Segments that end before it are not read."""
    start = image.end_offset
    ended = sum(base <= start for base, _ in segments[1:])
    used = segments[ended:]
    if not used:
        return
    if used[0][0] > start:
        reason = (
            f"the log starts at offset {used[0][0]}, and no complete snapshot reaches there: the "
            f"records from {start} on are missing" + "".join(f"; {each}" for each in warnings)
        )
        raise CorruptError(reason, path=path)
    next_offset = used[0][0]
    for index, (base, file) in enumerate(used):
        if base != next_offset:
            raise CorruptError(f"offsets {next_offset} to {base - 1} are missing", path=file)
        is_last = index == len(used) - 1
        try:
            next_offset = _replay_segment(image, file.read_bytes(), base, is_last=is_last)
        except CorruptError as error:
            raise error.located(file) from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{file}: {error}") from None
    image.end_offset = max(image.end_offset, next_offset)


def _check_reaches(
    image: _Image, snapshots: Sequence[tuple[int, Path]], path: Path, warnings: Sequence[str]
) -> None:
    """A snapshot only has committed records. If one was skipped, the log must reach as far."""
    newest = max((end_offset for end_offset, _ in snapshots), default=0)
    if image.end_offset < newest:
        reason = f"the records from {image.end_offset} to {newest - 1} are missing"
        raise CorruptError("; ".join([reason, *warnings]), path=path)


def _replay_segment(image: _Image, data: bytes, base_offset: int, *, is_last: bool) -> int:
    """Returns the offset after the segment's last batch. Skips batches before the image's end."""
    next_offset = base_offset
    for position, header in _batches(data, base_offset, is_last=is_last):
        if header.base_offset != next_offset:
            reason = f"expected offset {next_offset}, found {header.base_offset}"
            raise CorruptBatchError(reason, position=position)
        next_offset = header.next_offset
        if next_offset > image.end_offset and not header.is_control:
            _replay_batch(image, data, position, header, offset_min=image.end_offset)
    return next_offset


def _batches(data: bytes, base_offset: int, *, is_last: bool) -> Iterator[tuple[int, BatchHeader]]:
    """The batches of a segment. The last segment ends before a torn batch, preallocated zeros or a
    corrupt batch, unless another batch follows."""
    at, next_offset = 0, base_offset
    while at < len(data):
        try:
            if next_entry(data, at) is None:
                raise CorruptBatchError("the file ends inside this batch", position=at)
            header = _checked(data, at)
        except CorruptBatchError:
            if is_last and not _is_followed(data, at + 1, next_offset):
                return
            raise
        yield at, header
        at, next_offset = at + header.size_bytes, header.next_offset


def _is_followed(data: bytes, at: int, offset_min: int) -> bool:
    """Whether there is a batch with a valid CRC from `at` on."""
    end = len(data)
    return isinstance(
        find_next_batch(data, at, end, offset_min=offset_min, log_end=end), FoundBatch
    )


def _checked(data: bytes, at: int) -> BatchHeader:
    header = read_header(data, at)
    check_crc(data, at, header)
    return header


def _replay_batch(
    image: _Image, data: bytes, at: int, header: BatchHeader, *, offset_min: int
) -> None:
    for record in decode_records(data, at, header):
        if record.offset < offset_min or record.value is None:
            continue
        try:
            decoded = _decoded(record.value)
            if decoded is not None:
                image.replay(decoded, record.offset)
        except CorruptRecordError as error:
            offsets = (record.offset, record.offset)
            raise CorruptRecordError(error.reason, position=at, offsets=offsets) from None


def _decoded(value: bytes) -> MetadataRecord | None:
    """None for a type that does not concern topics or settings."""
    if value[:1] == _FRAME:
        type_id, _ = varint.read_unsigned(value, 1, len(value))
        if type_id not in _TYPES:
            return None
    return read_metadata_record(value)
