"""Names of topics, directories and files in a Kafka log directory: parse and build.

Names are classified without I/O. The result is a typed value; `None` for a name that Kafka ignores;
or `InvalidNameError` if Kafka refuses to load the directory.

Invariants:

* a partition is found by the LAST `-` of a directory name, because topics may contain `-`;
* segment files start with the base offset in 20 digits, so name order is offset order;
* a state suffix (`.deleted`, `.cleaned`, `.swap`) comes after the normal extension.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import Final, NamedTuple, Self

from stratalog.errors import InvalidNameError

TOPIC_CHARS_MAX: Final = 249
DIRECTORY_CHARS_MAX: Final = 255
OFFSET_DIGITS: Final = 20
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset(
    {CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC}
)
"""Topics of the broker itself, all compacted. `__cluster_metadata` is not one of them: clients
never see it."""
SYSTEM_TOPICS: Final = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC}
"""Every topic in a log directory that is not a user's: skipped unless it is named."""
REMOTE_METADATA_TOPIC: Final = "__remote_log_metadata"
"""Events of remote segments. Not among the above: to brokers it is a topic like those of users."""

REMOTE_INDEX_CACHE_DIR: Final = "remote-log-index-cache"
TEMPORARY_SUFFIX: Final = ".tmp"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_DIGITS = re.compile(r"[0-9]+")
_UNIQUE_ID = re.compile(r"[0-9a-f]{32}")
_MOVED_DIR = re.compile(r"\S+-\S+\.\S+-(delete|stray|future)", re.ASCII)
_SEGMENT_FILE = re.compile(
    r"(?P<offset>[^.]*)(?P<kind>\.(?:log|index|timeindex|txnindex|snapshot))"
    r"(?P<state>\.(?:deleted|cleaned|swap))?"
)
_METADATA_SNAPSHOT = re.compile(
    r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})(?:-[^.]*)?\.checkpoint(?P<state>\.deleted|\.part)?"
)


class TopicPartition(NamedTuple):
    """One partition of one topic. Orders by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read `topic-0`. The topic may break Kafka's rules: on disk it is what it is."""
        topic, dash, digits = name.rpartition("-")
        partition = _int_of(digits, INT32_MAX)
        if not dash or not topic or partition is None:
            raise InvalidNameError(f"{name!r} is not in the form topic-partition")
        return cls(topic, partition)


class FileKind(enum.Enum):
    """The kind of a file in a partition directory. The value is its extension or its name."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    METADATA_SNAPSHOT = ".checkpoint"
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    QUORUM_STATE = "quorum-state"


class FileState(enum.Enum):
    """What is being done to a file. The value is the suffix after its normal name."""

    LIVE = ""
    DELETED = ".deleted"
    """Waits for its physical deletion; readers that had it open may finish."""
    CLEANED = ".cleaned"
    """Compaction is still writing it; deleted after a crash."""
    SWAP = ".swap"
    """Compaction finished it; after a crash it replaces the segments that it was written from."""
    TEMPORARY = ".tmp"
    """Written before it is renamed over the file of that name."""
    PARTIAL = ".part"
    """A metadata snapshot that was never completed."""


class DirState(enum.Enum):
    """What is being done to a partition directory. The value is the suffix of its name."""

    LIVE = ""
    DELETE = "-delete"
    STRAY = "-stray"
    FUTURE = "-future"
    """Target of a move between the log directories of one broker."""


class RootFile(enum.Enum):
    """The files at the root of a log directory, by name."""

    META_PROPERTIES = "meta.properties"
    LOCK = ".lock"
    CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
    RECOVERY_POINTS = "recovery-point-offset-checkpoint"
    LOG_START_OFFSETS = "log-start-offset-checkpoint"
    HIGH_WATERMARKS = "replication-offset-checkpoint"
    CLEANER_OFFSETS = "cleaner-offset-checkpoint"
    BOOTSTRAP_METADATA = "bootstrap.checkpoint"


class PartitionFile(NamedTuple):
    """One file of a partition directory, by its name."""

    kind: FileKind
    base_offset: int | None = None
    """The segment's; the end offset (exclusive) of both kinds of snapshot; None if unnumbered."""
    state: FileState = FileState.LIVE
    epoch: int | None = None
    """Epoch of a metadata snapshot only."""


class PartitionDir(NamedTuple):
    """One partition directory, by its name."""

    topic_partition: TopicPartition
    """A `-delete` or `-stray` name may have lost the end of its topic, see `directory_name`."""
    state: DirState = DirState.LIVE
    unique_id: str | None = None


_SEGMENT_KINDS: Final = frozenset(
    {
        FileKind.LOG,
        FileKind.OFFSET_INDEX,
        FileKind.TIME_INDEX,
        FileKind.TXN_INDEX,
        FileKind.PRODUCER_SNAPSHOT,
    }
)
_NAMED_FILES: Final = {
    kind.value + suffix: PartitionFile(kind, state=state)
    for kind in (FileKind.LEADER_EPOCHS, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE)
    for suffix, state in (("", FileState.LIVE), (TEMPORARY_SUFFIX, FileState.TEMPORARY))
}
_ROOT_FILES: Final = {file.value: file for file in RootFile}


def check_topic_name(name: str) -> None:
    """Raise unless Kafka would let a topic of this name be created."""
    wrong = ""
    if not name:
        wrong = "the empty string is not allowed"
    elif name in {".", ".."}:
        wrong = f"'{name}' is not allowed"
    elif len(name) > TOPIC_CHARS_MAX:
        wrong = f"the length of '{name}' is longer than the max allowed length {TOPIC_CHARS_MAX}"
    elif not _TOPIC.fullmatch(name):
        wrong = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    if wrong:
        raise InvalidNameError(f"Topic name is invalid: {wrong}")  # the sentence that Kafka uses


def is_topic_name(name: str) -> bool:
    """Whether Kafka would let a topic of this name be created."""
    try:
        check_topic_name(name)
    except InvalidNameError:
        return False
    return True


def do_topics_collide(first: str, second: str) -> bool:
    """Whether the two names have the same metric name, in which `.` becomes `_`.

    Kafka refuses to create a topic that collides with an existing one.
    """
    return first.replace(".", "_") == second.replace(".", "_")


def segment_file_name(base_offset: int, kind: FileKind, state: FileState = FileState.LIVE) -> str:
    """The name of a segment's file, such as `00000000000000000042.log`."""
    if kind not in _SEGMENT_KINDS:
        raise InvalidNameError(f"{kind.name} files are not named after an offset")
    if state in {FileState.TEMPORARY, FileState.PARTIAL}:
        raise InvalidNameError(f"segment files cannot have the state {state.name}")
    return f"{_padded(base_offset, OFFSET_DIGITS, INT64_MAX)}{kind.value}{state.value}"


@lru_cache(maxsize=1 << 14)  # the partitions of a directory have many names in common
def parse_partition_file(name: str) -> PartitionFile | None:
    """Classify a file of a partition directory. None: Kafka ignores it.

    Kafka reads the number before the first dot and then opens the 20-digit name, so `7.log` would
    make it create an empty `00000000000000000007.log` beside it. Here that is an invalid name.
    """
    if name in _NAMED_FILES:
        return _NAMED_FILES[name]
    if segment := _SEGMENT_FILE.fullmatch(name):
        return _segment_file(name, segment)
    if snapshot := _METADATA_SNAPSHOT.fullmatch(name):
        return _metadata_snapshot(snapshot)
    if name.endswith((FileState.CLEANED.value, FileState.SWAP.value)):
        _offset_of(name)  # Kafka reads the offset of every such file, whatever its kind
    return None


def known_partition_file(name: str) -> PartitionFile | None:
    """The same. None also for a name that is invalid: for callers that ignore such files."""
    try:
        return parse_partition_file(name)
    except InvalidNameError:
        return None


def parse_root_file(name: str) -> tuple[RootFile, FileState] | None:
    """Classify a file at the root of a log directory. None: Kafka ignores it."""
    if name in _ROOT_FILES:
        return _ROOT_FILES[name], FileState.LIVE
    plain = name.removesuffix(TEMPORARY_SUFFIX)
    if plain != name and plain in _ROOT_FILES:
        return _ROOT_FILES[plain], FileState.TEMPORARY
    return None


def parse_partition_dir(name: str) -> PartitionDir | None:
    """Classify a directory at the root of a log directory. None: Kafka ignores it.

    Any other directory that is not a partition stops a broker from starting, hence the error. Java
    also accepts a sign and other Unicode digits; no Kafka writes them, so they are rejected here.
    """
    if name == REMOTE_INDEX_CACHE_DIR:
        return None
    for state in (DirState.DELETE, DirState.STRAY, DirState.FUTURE):
        if name.endswith(state.value):
            if not _MOVED_DIR.fullmatch(name):
                expected = f"topic-partition.id{state.value}"
                raise InvalidNameError(f"{name!r} is not in the form {expected}")
            partition, _, unique_id = name.removesuffix(state.value).rpartition(".")
            return PartitionDir(TopicPartition.parse(partition), state, unique_id)
    return PartitionDir(TopicPartition.parse(name))


def directory_name(
    topic_partition: TopicPartition, state: DirState = DirState.LIVE, unique_id: str | None = None
) -> str:
    """The directory of a partition. `unique_id` (32 hex digits) belongs to every state but LIVE.

    Names for `-delete` and `-stray` fit a file system's 255 characters: the topic is shortened, as
    it is no longer needed. A `-future` name is not shortened and may not fit.
    """
    if state is DirState.LIVE:
        return str(topic_partition)
    if unique_id is None or not _UNIQUE_ID.fullmatch(unique_id):
        raise InvalidNameError(f"unique id {unique_id!r} is not 32 hex digits")
    suffix = f"-{topic_partition.partition}.{unique_id}{state.value}"
    if state is DirState.FUTURE:
        return topic_partition.topic + suffix
    return topic_partition.topic[: DIRECTORY_CHARS_MAX - len(suffix)] + suffix


def _segment_file(name: str, match: re.Match[str]) -> PartitionFile | None:
    state = FileState(match["state"] or "")
    if state is FileState.DELETED and not _DIGITS.fullmatch(match["offset"]):
        return None  # Kafka removes it without asking what it was
    return PartitionFile(FileKind(match["kind"]), _offset_of(name), state)


def _metadata_snapshot(match: re.Match[str]) -> PartitionFile | None:
    offset = _int_of(match["offset"], INT64_MAX)
    epoch = _int_of(match["epoch"], INT32_MAX)
    if offset is None or epoch is None:
        return None
    state = FileState(match["state"] or "")
    return PartitionFile(FileKind.METADATA_SNAPSHOT, offset, state, epoch)


def _offset_of(name: str) -> int:
    digits = name.partition(".")[0]
    offset = _int_of(digits, INT64_MAX)
    if offset is None or len(digits) != OFFSET_DIGITS:
        raise InvalidNameError(f"{name!r} does not begin with an offset in {OFFSET_DIGITS} digits")
    return offset


def _int_of(digits: str, largest: int) -> int | None:
    if not _DIGITS.fullmatch(digits) or len(digits) > OFFSET_DIGITS:
        return None
    value = int(digits)
    return value if value <= largest else None


def _padded(value: int, digits: int, largest: int) -> str:
    if not 0 <= value <= largest:
        raise InvalidNameError(f"{value} is not in 0 to {largest}")
    return f"{value:0{digits}d}"
