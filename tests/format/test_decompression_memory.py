"""How much memory a batch may take that holds far more than it should: measured in a process."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
import zstandard

from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.compression import compress
from stratalog.format.record import BatchFields, Record, encode_batch, seal_batch
from tests.memory import output_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MIB = 1 << 20
LIMIT_BYTES = 96 * MIB
BOMB_BYTES = 200 * MIB

DECOMPRESS = """
import sys
from pathlib import Path
from stratalog.errors import LimitExceededError
from stratalog.format.compression import compress, decompress_into
from stratalog.format.buffers import Scratch
from tests.memory import peak_bytes

data, codec, limit = Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3])
decompress_into(codec, Path(sys.argv[4]).read_bytes(), Scratch())  # loads the codec
before = peak_bytes()
try:
    print(decompress_into(codec, data, Scratch(), bytes_max=limit), peak_bytes() - before)
except LimitExceededError:
    print("refused", peak_bytes() - before)
"""

READ = """
import sys
from stratalog import open_partition
from stratalog.errors import LimitExceededError
from tests.memory import peak_bytes

log = open_partition(sys.argv[1])
read = log.read_columns if sys.argv[2] == "columns" else log.read
next(iter(read(0, 1)))  # loads the codec
before = peak_bytes()
try:
    for _ in read(1):
        pass
except LimitExceededError:
    print("refused", peak_bytes() - before)
"""


def parts(size_bytes: int) -> Iterable[bytes]:
    return (bytes(MIB) for _ in range(size_bytes // MIB))


def packed(codec: Codec, size_bytes: int) -> bytes:
    """So many zeros. Streams of gzip and zstd do not tell how many."""
    if codec is Codec.GZIP:
        gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
        return b"".join(map(gzip.compress, parts(size_bytes))) + gzip.flush()
    if codec is Codec.ZSTD:
        zstd = zstandard.ZstdCompressor().compressobj()
        return b"".join(map(zstd.compress, parts(size_bytes))) + zstd.flush()
    return compress(codec, bytes(size_bytes))


def measured(program: str, *arguments: object) -> tuple[str, int]:
    answer, grown = output_of(program, *arguments)
    return answer, int(grown)


CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("size_bytes", "answer", "grown_max"),
    [
        pytest.param(BOMB_BYTES, "refused", 72 * MIB, id="too much"),
        pytest.param(64 * MIB, str(64 * MIB), 112 * MIB, id="much, but not too much"),
    ],
)
def test_memory_of_a_large_batch(
    tmp_path: Path, codec: Codec, size_bytes: int, answer: str, grown_max: int
) -> None:
    (tmp_path / "large").write_bytes(packed(codec, size_bytes))
    (tmp_path / "small").write_bytes(packed(codec, MIB))
    arguments = (tmp_path / "large", int(codec), LIMIT_BYTES, tmp_path / "small")
    found, grown = measured(DECOMPRESS, *arguments)
    assert found == answer
    assert grown < grown_max


@pytest.mark.slow
@pytest.mark.parametrize("way", ["records", "columns"])
def test_memory_of_reading_a_bomb(tmp_path: Path, way: str) -> None:
    """Over the default limit of 256 MiB, in a log."""
    first = encode_batch([Record(0, 0, None, b"x")], BatchFields(codec=Codec.ZSTD))
    header = BatchHeader.unpack(first)._replace(base_offset=1)
    bomb = seal_batch(header, packed(Codec.ZSTD, 600 * MIB))
    partition = tmp_path / "orders-0"
    partition.mkdir()
    (partition / f"{0:020}.log").write_bytes(first + bomb)
    found, grown = measured(READ, partition, way)
    assert found == "refused"
    assert grown < 128 * MIB
