"""The `.rsm-manifest` of Aiven's tiered storage plugin: how a segment is divided into chunks.

A `.log` object is the segment in chunks of equal size, each compressed with zstd, then encrypted,
or left as it is, and put end to end. A manifest says where each is, where the indexes are in the
`.indexes` object, and which part of which log it is.
"""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptError, UnsupportedError
from stratalog.format.batch import Codec
from stratalog.format.compression import decompress

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST_SUFFIX: Final = ".rsm-manifest"
COUNT_MAX = 1 << 20
"""Chunks of a segment: 2 GiB in chunks of 2 KiB."""


class Encryption(NamedTuple):
    """How a segment is encrypted."""

    key_id: str
    """Which of the operator's keys encrypts the data key."""
    data_key: bytes
    """Encrypted."""
    aad: bytes


class Chunks(NamedTuple):
    """Where the chunks of a segment are in its object."""

    original_bytes: int
    """Size of a chunk in the segment; the last one may be shorter."""
    file_bytes: int
    """Size of the segment."""
    ends: tuple[int, ...]
    """Where each ends in the object."""

    def number_of(self, position: int) -> int:
        return min(position // self.original_bytes, len(self.ends) - 1)

    def start_of(self, number: int) -> int:
        return self.ends[number - 1] if number else 0


class AivenManifest(NamedTuple):
    """A segment in the store."""

    chunks: Chunks
    indexes: Mapping[str, tuple[int, int]]
    """Position and size in the `.indexes` object; `transaction` only if there is one."""
    is_compressed: bool
    encryption: Encryption | None
    metadata: Mapping[str, Any]
    """`remoteLogSegmentMetadata`: offsets, epochs, times."""


def decode_manifest(raw: bytes) -> AivenManifest:
    """Raises CorruptError and UnsupportedError."""
    try:
        found = json.loads(raw)
        if found["version"] != "1":
            raise UnsupportedError(
                f"version {found['version']} of a segment manifest is not supported"
            )
        indexes = {
            name: (int(place["position"]), int(place["size"]))
            for name, place in found["segmentIndexes"].items()
            if place is not None
        }
        return AivenManifest(
            _chunks(found["chunkIndex"]),
            indexes,
            bool(found["compression"]),
            _encryption(found.get("encryption")),
            found.get("remoteLogSegmentMetadata") or {},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"not a segment manifest: {type(error).__name__} {error}") from None


def _encryption(found: Mapping[str, str] | None) -> Encryption | None:
    if found is None:
        return None
    key_id, _, text = found["dataKey"].rpartition(":")
    aad = b64decode(found["aad"], validate=True)
    return Encryption(key_id, b64decode(text, validate=True), aad)


def _chunks(found: Mapping[str, Any]) -> Chunks:
    original, size = int(found["originalChunkSize"]), int(found["originalFileSize"])
    if original <= 0 or size < 0 or size > original * COUNT_MAX:
        raise ValueError(f"{size} bytes in chunks of {original}")
    count = max(1, -(-size // original))
    if found["type"] == "fixed":
        sizes = [int(found["transformedChunkSize"])] * (count - 1)
        sizes.append(int(found["finalTransformedChunkSize"]))
    elif found["type"] == "variable":
        packed = b64decode(found["transformedChunks"], validate=True)
        sizes = _variable_sizes(decompress(Codec.ZSTD.value, packed, bytes_max=16 + 4 * COUNT_MAX))
    else:
        raise ValueError(f"chunk index of type {found['type']}")
    if len(sizes) != count or min(sizes) < 0:
        raise ValueError(f"{len(sizes)} chunks for {size} bytes in chunks of {original}")
    return Chunks(original, size, tuple(accumulate(sizes)))


def _variable_sizes(raw: bytes) -> list[int]:
    """Sizes as differences from the smallest, in as many bytes as the largest takes."""
    count = int.from_bytes(raw[:4])
    if count <= 1:
        return [int.from_bytes(raw[4:8])][:count]
    base, width = int.from_bytes(raw[4:8]), raw[8]
    if count > COUNT_MAX or not 1 <= width <= 4 or len(raw) != 13 + (count - 1) * width:
        raise ValueError(f"{count} sizes of {width} bytes in {len(raw)} bytes")
    end = 9 + (count - 1) * width
    sizes = [base + int.from_bytes(raw[at : at + width]) for at in range(9, end, width)]
    return [*sizes, int.from_bytes(raw[end:])]
