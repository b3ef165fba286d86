from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptCheckpointError, StratalogError, UnsupportedError
from stratalog.format.directory_metadata import (
    MetaProperties,
    PartitionMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_partition_metadata,
)

BIGBATCH_ID = uuid.UUID("cede9b9f-de03-4fd3-b719-af6c4dfe918c")

# Written by Kafka 4.0.
META_PROPERTIES = (
    b"#\n#Sun Nov 15 18:57:46 UTC 2026\nnode.id=1\ndirectory.id=MtYdq_KPCbmiow0LcoAMAw\n"
    b"version=1\ncluster.id=L_0Za8S1S7WFAosY2JyK9g\n"
)
META = MetaProperties(
    1, "L_0Za8S1S7WFAosY2JyK9g", 1, uuid.UUID("32d61dab-f28f-09b9-a2a3-0d0b72800c03")
)


def test_partition_metadata_of_kafka() -> None:
    raw = b"version: 0\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA"
    assert decode_partition_metadata(raw) == PartitionMetadata(BIGBATCH_ID)
    assert encode_partition_metadata(PartitionMetadata(BIGBATCH_ID)) == raw


def test_partition_metadata_variants() -> None:
    for raw in (
        b"version: 0\r\ntopic_id:\t  zt6bn94DT9O3Ga9sTf6RjA\r\n",
        b"version: 0\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA\nmore: things\n",
    ):
        assert decode_partition_metadata(raw) == PartitionMetadata(BIGBATCH_ID)
    newer = decode_partition_metadata(b"version: 3\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA")
    assert newer == PartitionMetadata(BIGBATCH_ID, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"version: 0",
        b"version: 0\n",
        b"version: -1\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA",
        b"version: x\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA",
        b"version:0\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA",
        b"topic_id: zt6bn94DT9O3Ga9sTf6RjA\nversion: 0",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: zt6bn94DT9O3Ga9sTf6Rj",
        b"version: 0\n\ntopic_id: zt6bn94DT9O3Ga9sTf6RjA",
        b"version: 0\ntopic_id: \xff",
    ],
)
def test_damaged_partition_metadata(raw: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_partition_metadata(raw)


def test_partition_metadata_cut_at_every_byte() -> None:
    raw = encode_partition_metadata(PartitionMetadata(BIGBATCH_ID))
    for cut in range(len(raw)):
        with pytest.raises(CorruptCheckpointError):
            decode_partition_metadata(raw[:cut])


def test_meta_properties_of_kafka() -> None:
    assert decode_meta_properties(META_PROPERTIES) == META


@pytest.mark.parametrize(
    ("raw", "meta"),
    [
        (b"version=0\nbroker.id=7\ncluster.id=c\n", MetaProperties(0, "c", 7)),
        (b"version=0\nbroker.id=7\n", MetaProperties(0, None, 7)),
        (b"broker.id=7\nnode.id=9", MetaProperties(0, None, 7)),
        (b"", MetaProperties(0)),
        (b"version=1\nnode.id=9\ncluster.id=c\n", MetaProperties(1, "c", 9)),
    ],
)
def test_meta_properties_versions(raw: bytes, meta: MetaProperties) -> None:
    assert decode_meta_properties(raw) == meta


@pytest.mark.parametrize(
    "raw",
    [
        b"version=x",
        b"version=",
        b"version=1\ncluster.id=c",
        b"version=1\nnode.id=1",
        b"version=1\nnode.id=one\ncluster.id=c",
        b"version=0\nbroker.id=4294967296",
        b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short",
        b"version=\\u12",
    ],
)
def test_damaged_meta_properties(raw: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_meta_properties(raw)


def test_unknown_meta_properties_version() -> None:
    with pytest.raises(UnsupportedError, match="version 2"):
        decode_meta_properties(b"version=2")


def test_clean_shutdown_of_kafka() -> None:
    assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":7}') == 7
    assert encode_clean_shutdown(7) == b'{"version":0,"brokerEpoch":7}'


def test_clean_shutdown_that_says_nothing() -> None:
    assert decode_clean_shutdown(b"") is None
    assert decode_clean_shutdown(b'{"version":0}') is None


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"7",
        b"null",
        b'{"brokerEpoch":"7"}',
        b'{"brokerEpoch":7.5}',
        b'{"brokerEpoch":true}',
        b'{"brokerEpoch":9223372036854775808}',
        b'{"brokerEpoch":' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b"\0" * 29,
    ],
)
def test_damaged_json(raw: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_clean_shutdown(raw)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_give_a_value_or_a_typed_error(raw: bytes) -> None:
    for decode in (
        decode_partition_metadata,
        decode_meta_properties,
        decode_clean_shutdown,
    ):
        with contextlib.suppress(StratalogError):
            decode(raw)
