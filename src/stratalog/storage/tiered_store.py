"""The store of tiered topics: where the objects of a segment are, and how to read them.

Two layouts: `local` is Kafka's own test store, with the files of a segment as they were; `aiven` is
Aiven's plugin, which cuts a log into chunks that may be compressed and encrypted. A `TieredStore`
names the root of a store and finds out the layout; a `StoredSegment` reads one segment.

Keys are read from the operator's files, when the first encrypted segment is read.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from stratalog.errors import CorruptError, StratalogError, TieredLogError
from stratalog.format.aiven_manifest import MANIFEST_SUFFIX, AivenManifest, decode_manifest
from stratalog.format.batch import Codec
from stratalog.format.compression import decompress
from stratalog.storage.log_file import FileIdentity, LogFile, list_directory, open_file, read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.aiven_manifest import Encryption

Layout: TypeAlias = Literal["local", "aiven"]
LAYOUTS: Final[tuple[Layout, ...]] = ("local", "aiven")
SideFile: TypeAlias = Literal[
    "offset", "timestamp", "transaction", "leaderEpoch", "producerSnapshot"
]

SIDE_FILES: Final[tuple[SideFile, ...]] = (
    "offset",
    "timestamp",
    "transaction",
    "leaderEpoch",
    "producerSnapshot",
)

_LOCAL_DIR: Final = re.compile(r"(.+)-(\d+)-([A-Za-z0-9_-]{22})")
_AIVEN_DIR: Final = re.compile(r"(.+)-([A-Za-z0-9_-]{22})")
_OBJECT: Final = re.compile(r"(\d{20}-[A-Za-z0-9_-]{22})\.([a-z_-]+)")
_LOCAL_SUFFIXES: Final = {
    "offset": ".index",
    "timestamp": ".timeindex",
    "transaction": ".txnindex",
    "leaderEpoch": ".leader_epoch_checkpoint",
    "producerSnapshot": ".snapshot",
}
_DEPTH_MAX: Final = 3
_KEPT_BYTES_MAX: Final = 16 << 20
_IV_BYTES: Final = 12


def _read_key(given: str) -> tuple[str, bytes]:
    key_id, _, name = given.rpartition("=")
    try:
        return key_id, Path(name).read_bytes()
    except OSError as error:
        raise TieredLogError(f"{name}: the key cannot be read: {error.strerror}") from None


class StoredTopic(NamedTuple):
    """A directory of a topic's partition in the store."""

    topic: str
    topic_id: str
    partition: int
    path: Path


@dataclass(frozen=True)
class TieredStore:
    """The root of a store. Small and picklable."""

    root: Path
    """Below it are the directories of topics: a bucket with the prefix, if there is one."""
    layout: Layout
    keys: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    """Private keys (PEM) by the id of their key pair; "" is for any id. They are sent to tasks."""

    @classmethod
    def found_at(
        cls, root: Path, layout: str | None = None, keys: Sequence[str] = ()
    ) -> TieredStore:
        """The store at `root`, or below it if a prefix was left out. Raises TieredLogError if
        there is none. `keys` are files with private keys, or ID=FILE."""
        contents = tuple(map(_read_key, keys))
        if layout is not None and layout not in LAYOUTS:
            raise TieredLogError(f"{layout!r} is not a layout; use {' or '.join(LAYOUTS)}")
        candidates = [root]
        for _ in range(_DEPTH_MAX):
            below: list[Path] = []
            for directory in candidates:
                names = _directories(directory)
                found = _layout_of(directory, names)
                if found is not None and layout in {None, found}:
                    return cls(directory, found, contents)
                below += [directory / name for name in names]
            candidates = below[:16]
        raise TieredLogError(
            f"{root}: no tiered topics found here; give the directory or prefix that contains "
            "TOPIC-ID directories (Aiven's plugin) or kafka-tiered-storage (Kafka's test store)"
        )

    def partitions(self) -> list[StoredTopic]:
        """Every partition that has a directory."""
        found = []
        for name in _directories(self.root):
            if self.layout == "local":
                parsed = _LOCAL_DIR.fullmatch(name)
                if parsed is not None:
                    number = int(parsed[2])
                    found.append(StoredTopic(parsed[1], parsed[3], number, self.root / name))
            elif (topic := _AIVEN_DIR.fullmatch(name)) is not None:
                found += [
                    StoredTopic(topic[1], topic[2], int(number), self.root / name / number)
                    for number in _directories(self.root / name)
                    if number.isdecimal()
                ]
        return sorted(found)

    def directory(self, topic: str, topic_id: str, partition: int) -> Path:
        """Where the objects of a partition are."""
        if self.layout == "local":
            return self.root / f"{topic}-{partition}-{topic_id}"
        return self.root / f"{topic}-{topic_id}" / str(partition)

    def objects(self, directory: Path) -> dict[str, dict[str, int]]:
        """The sizes of the objects in the directory of a partition, by segment and suffix."""
        found: dict[str, dict[str, int]] = {}
        try:
            entries = list_directory(directory)
        except FileNotFoundError:
            return {}
        for entry in entries:
            parsed = _OBJECT.fullmatch(entry.name)
            if parsed is not None and not entry.is_dir:
                size_bytes = entry.path.stat().st_size
                found.setdefault(parsed[1], {})[f".{parsed[2]}"] = size_bytes
        return found

    def segment(self, directory: Path, name: str, size_bytes: int) -> StoredSegment:
        return StoredSegment(self, directory / f"{name}.log", size_bytes)


def _directories(path: Path) -> list[str]:
    try:
        return [entry.name for entry in list_directory(path) if entry.is_dir]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _layout_of(directory: Path, names: Sequence[str]) -> Layout | None:
    """Find the layout by the names of directories. If the name of a topic ends with a number, the
    directories below it show Aiven's layout."""
    for name in names:
        if _LOCAL_DIR.fullmatch(name):
            return "aiven" if _directories(directory / name) else "local"
        if _AIVEN_DIR.fullmatch(name):
            return "aiven"
    return None


@dataclass(frozen=True)
class StoredSegment:
    """One segment in a store. Picklable; nothing is read before it is needed."""

    store: TieredStore
    log: Path
    """The `.log` object."""
    size_bytes: int
    """Size of the segment, before chunks were transformed."""

    @cached_property
    def manifest(self) -> AivenManifest:
        path = self.log.with_name(self.log.name.removesuffix(".log") + MANIFEST_SUFFIX)
        try:
            found = decode_manifest(read_file(path))
            _check_segment(found, self.log)
            return found
        except FileNotFoundError:
            raise TieredLogError(
                f"{path}: missing, although the segment was copied completely"
            ) from None
        except CorruptError as error:
            raise error.located(path) from None

    @cached_property
    def _cipher(self) -> _Cipher | None:
        encryption = self.manifest.encryption
        return None if encryption is None else _Cipher(encryption, self.store.keys, self.log)

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoredSegment, (self.store, self.log, self.size_bytes))

    def open(self) -> LogFile:
        """The bytes of the segment. Raises FileNotFoundError."""
        if self.store.layout == "local":
            return open_file(self.log)
        return ChunkedFile(open_file(self.log), self.manifest, self._cipher)

    def side_path(self, kind: SideFile) -> Path:
        """The object of an index in the layout `local`."""
        return self.log.with_name(self.log.name.replace(".log", _LOCAL_SUFFIXES[kind], 1))

    def side_file(self, kind: SideFile) -> bytes | None:
        """An index, or the leader epochs; None if the segment has none."""
        if self.store.layout == "local":
            try:
                return read_file(self.side_path(kind))
            except FileNotFoundError:
                return None
        place = self.manifest.indexes.get(kind)
        if place is None:
            return None
        position, size_bytes = place
        path = self.log.with_name(self.log.name.removesuffix(".log") + ".indexes")
        try:
            raw = read_file(path)[position : position + size_bytes]
        except FileNotFoundError:
            raise TieredLogError(
                f"{path}: missing, although the segment was copied completely"
            ) from None
        if len(raw) < size_bytes:
            raise CorruptError(f"ends before the {kind} index", path=path, position=position)
        return self._cipher.decrypt(raw) if self._cipher is not None and raw else raw


def _check_segment(manifest: AivenManifest, log: Path) -> None:
    """Raise CorruptError if the manifest says that it is of another segment."""
    described = manifest.metadata.get("remoteLogSegmentId")
    found = described.get("id") if isinstance(described, dict) else None
    if isinstance(found, str) and not log.name.endswith(f"-{found}.log"):
        raise CorruptError(f"it describes the segment {found}")


class ChunkedFile(LogFile):
    """A log in chunks, as if it were one file."""

    def __init__(self, inner: LogFile, manifest: AivenManifest, cipher: _Cipher | None) -> None:
        self.path = inner.path
        self._inner = inner
        self._chunks = manifest.chunks
        self._is_compressed = manifest.is_compressed
        self._cipher = cipher
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._kept_bytes = 0

    def close(self) -> None:
        self._kept.clear()
        self._inner.close()

    @property
    def identity(self) -> FileIdentity:
        return self._inner.identity._replace(size_bytes=self.size_bytes)

    @property
    def size_bytes(self) -> int:
        return self._chunks.file_bytes

    def expect(self, position: int, end: int) -> None:
        first, last = self._chunks.number_of(position), self._chunks.number_of(max(0, end - 1))
        self._inner.expect(self._chunks.start_of(first), self._chunks.ends[last])

    def check_unchanged(self) -> None:
        self._inner.check_unchanged()

    def read(self, position: int, size_bytes: int) -> bytes:
        end = min(position + size_bytes, self.size_bytes)
        if end <= position:
            return b""
        first, last = self._chunks.number_of(position), self._chunks.number_of(end - 1)
        data = b"".join(self._plain(number) for number in range(first, last + 1))
        start = first * self._chunks.original_bytes
        return data[position - start : end - start]

    def read_into(self, buffer: memoryview, position: int) -> int:
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _plain(self, number: int) -> bytes:
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = self._transformed_back(number)
            self._kept_bytes += len(kept)
            while self._kept_bytes > _KEPT_BYTES_MAX and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return kept

    def _transformed_back(self, number: int) -> bytes:
        chunks = self._chunks
        start, end = chunks.start_of(number), chunks.ends[number]
        data = self._inner.read(start, end - start)
        wanted = min(chunks.original_bytes, chunks.file_bytes - number * chunks.original_bytes)
        try:
            if len(data) < end - start:
                raise CorruptError(f"the object ends inside chunk {number}")
            if self._cipher is not None:
                data = self._cipher.decrypt(data)
            if self._is_compressed:
                data = decompress(Codec.ZSTD.value, data, bytes_max=chunks.original_bytes)
        except CorruptError as error:
            raise CorruptError(error.reason, path=self.path, position=start) from None
        except TieredLogError:
            raise
        except StratalogError as error:
            raise CorruptError(f"chunk {number}: {error}", path=self.path, position=start) from None
        if len(data) != wanted:
            reason = f"chunk {number} has {len(data)} bytes, expected {wanted}"
            raise CorruptError(reason, path=self.path, position=start)
        return data


class _Cipher:
    """Decrypts the chunks of one segment: AES-256-GCM with a data key, which is encrypted for the
    operator's RSA key."""

    def __init__(
        self, encryption: Encryption, keys: Sequence[tuple[str, bytes]], path: Path
    ) -> None:
        self._aad = encryption.aad
        self._path = path
        private = _private_key(encryption, keys, path)
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._aes = AESGCM(_data_key(encryption, private, path))

    def decrypt(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self._aes.decrypt(data[:_IV_BYTES], data[_IV_BYTES:], self._aad)
        except InvalidTag:
            reason = "authentication tag mismatch: the encrypted bytes are corrupt"
            raise CorruptError(reason, path=self._path) from None


def _private_key(encryption: Encryption, keys: Sequence[tuple[str, bytes]], path: Path) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.rsa import (  # noqa: PLC0415
            RSAPrivateKey,
        )
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            load_pem_private_key,
        )
    except ImportError:
        raise TieredLogError(
            f"{path}: encrypted; install stratalog[tiered] to read it (it needs cryptography)"
        ) from None
    by_id = dict(keys)
    content = by_id.get(encryption.key_id, by_id.get(""))
    if content is None:
        raise TieredLogError(
            f"{path}: encrypted with the key pair {encryption.key_id!r}; give its private key as a "
            "PEM file (--remote-key, option remote.key)"
        )
    try:
        found = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TieredLogError(
            f"{path}: the key given for {encryption.key_id!r} is not a private key in PEM form"
        ) from None
    if not isinstance(found, RSAPrivateKey):
        raise TieredLogError(
            f"{path}: the key given for {encryption.key_id!r} is not an RSA key; give the private "
            "key of the RSA key pair that Aiven's plugin encrypts with"
        )
    return found


def _data_key(encryption: Encryption, private: Any, path: Path) -> bytes:
    """RSA-OAEP with SHA3-512, also in its mask; `cryptography` does not offer that."""
    numbers = private.private_numbers()
    modulus = numbers.public_numbers.n
    size = (modulus.bit_length() + 7) // 8
    encoded = pow(int.from_bytes(encryption.data_key), numbers.d, modulus).to_bytes(size)
    digest = hashlib.sha3_512
    length = digest().digest_size
    masked_seed, masked = encoded[1 : 1 + length], encoded[1 + length :]
    seed = _xor(masked_seed, _mask(masked, length))
    block = _xor(masked, _mask(seed, len(masked)))
    found, _, key = block[length:].partition(b"\1")
    if encoded[0] or block[:length] != digest(b"").digest() or found.strip(b"\0"):
        raise TieredLogError(
            f"{path}: the private key given is not the one of the key pair "
            f"{encryption.key_id!r} that it is encrypted with"
        )
    return key


def _mask(seed: bytes, size_bytes: int) -> bytes:
    parts, count = b"", 0
    while len(parts) < size_bytes:
        parts += hashlib.sha3_512(seed + count.to_bytes(4)).digest()
        count += 1
    return parts[:size_bytes]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
