"""How keys and values are shown."""

from __future__ import annotations

import pytest

from stratalog.dump.decoders import (
    FORMATS,
    ClusterMetadataDecoder,
    OffsetsDecoder,
    PlainDecoder,
    TransactionLogDecoder,
    deprecation_notice,
    format_of_class,
)
from stratalog.errors import UnsupportedError
from stratalog.format.record import Record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "text", "json"),
    [
        ("utf-8", b"caf\xc3\xa9", "café", "café"),
        ("utf-8", b"caf\xc3\xa9 \xff", "café \ufffd", {"base64": "Y2Fmw6kg/w=="}),
        ("hex", b"\x00\xff", "00ff", "00ff"),
        ("base64", b"\x00\xff", "AP8=", "AP8="),
        ("json", b'{"a" : [1, null],\n"b":"\xc3\xa9"}', '{"a":[1,null],"b":"é"}',
         {"a": [1, None], "b": "é"}),
        ("json", b'"text"', '"text"', "text"),
        ("json", b"{no", "{no", "{no"),
        ("json", b"\xff", "\ufffd", {"base64": "/w=="}),
        ("json", b'"\\ud800"', '"\\ud800"', "\ud800"),
        ("json", b"[" * 100_000, "[" * 100_000, "[" * 100_000),
        ("json", b"1\x00", "1\x00", "1\x00"),
        ("int32", b"\xff\xff\xff\xfe!", "-2", -2),
        ("int32", b"\x01", "0x01", "0x01"),
        ("int64", b"\x00" * 7 + b"\x05", "5", 5),
    ],
)  # fmt: skip
def test_formats(name: str, data: bytes, text: str, json: object) -> None:
    assert FORMATS[name].to_text(data) == text
    assert FORMATS[name].to_json(data) == json


def test_key_and_value_have_formats_of_their_own() -> None:
    decoder = PlainDecoder("hex", "utf-8")
    assert decoder.show(Record(0, 0, b"k", b"v")) == ("6b", "v")
    assert decoder.show_json(Record(0, 0, None, None)) == (None, None)
    assert not decoder.is_plain
    assert PlainDecoder().is_plain


@pytest.mark.parametrize(
    ("name", "expected"),
    [("StringDecoder", "utf-8"), ("IntegerDecoder", "int32"), ("LongDecoder", "int64")],
)
def test_kafkas_decoder_classes(name: str, expected: str) -> None:
    new, old = f"org.apache.kafka.tools.api.{name}", f"kafka.serializer.{name}"
    assert format_of_class(new) == format_of_class(old) == expected
    assert deprecation_notice(new) is None
    assert deprecation_notice(old) == f"{old} is deprecated. Please use {new} instead"


@pytest.mark.parametrize("name", ["com.example.Avro", "StringDecoder", "", "kafka.serializer.X"])
def test_other_classes_cannot_be_run(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"use one of org\.apache\.kafka\.tools\.api\.S"):
        format_of_class(name)
    assert deprecation_notice(name) is None


OFFSET_KEY = bytes.fromhex("0001 0001 67 0001 74 00000003")


@pytest.mark.parametrize(
    ("record", "key", "payload"),
    [
        (Record(7, 0, OFFSET_KEY, None),
         '{"type":"1","data":{"group":"g","topic":"t","partition":3}}', "<DELETE>"),
        (Record(7, 0, None, b""),
         "Failed to decode message at offset 7 using offset topic decoder (message had a missing "
         "key)", None),
        (Record(7, 0, b"\x7f\xff", b""),
         "Unknown record type 32767 at offset 7, skipping.", None),
        (Record(7, 0, b"\x00", b""),
         "Error at offset 7, skipping. Could not read version from key's buffer.", None),
    ],
)  # fmt: skip
def test_offsets(record: Record, key: str, payload: str | None) -> None:
    assert OffsetsDecoder().show(record) == (key, payload)


TXN_VALUE = bytes.fromhex("0000 0000000000000005 0002 000927c0 00 ffffffff" + "00" * 16)


@pytest.mark.parametrize(
    ("record", "key", "payload"),
    [
        (Record(7, 0, bytes.fromhex("0000 0001 74"), None),
         "transaction_metadata::transactionalId=t", "<DELETE>"),
        (Record(7, 0, b"\x00\x05", b""), "unknown::version=5", None),
        (Record(7, 0, None, b""), "Error at offset 7, skipping. too short for a version", None),
        (Record(7, 0, bytes.fromhex("0000 0001 74"), b"\x00\x09"),
         "Error at offset 7, skipping. Unknown version 9 from the transaction log message value",
         None),
    ],
)  # fmt: skip
def test_transactions(record: Record, key: str, payload: str | None) -> None:
    assert TransactionLogDecoder().show(record) == (key, payload)


def test_transactions_in_json() -> None:
    key = bytes.fromhex("0000 0001 74")
    shown = TransactionLogDecoder().show_json(Record(7, 0, key, TXN_VALUE))
    assert shown == (
        {"transactionalId": "t"},
        {
            "producerId": 5,
            "producerEpoch": 2,
            "state": "Empty",
            "partitions": [],
            "txnLastUpdateTimestamp": 0,
            "txnTimeoutMs": 600_000,
        },
    )
    assert TransactionLogDecoder().show_json(Record(7, 0, key, None)) == (
        {"transactionalId": "t"},
        None,
    )
    assert "too short" in TransactionLogDecoder().show_json(Record(7, 0, None, None))[0]


def test_cluster_metadata() -> None:
    decoder = ClusterMetadataDecoder()
    assert decoder.show(Record(7, 0, b"ignored", bytes.fromhex("01 14 00 00"))) == (
        None, '{"type":"NO_OP_RECORD","version":0,"data":{}}',
    )  # fmt: skip
    assert decoder.show(Record(7, 0, None, None)) == (
        None, "Error at 7, skipping. Error while reading frame version",
    )  # fmt: skip
