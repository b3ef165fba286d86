"""The order of Scala's hash tables. The golden lists over several files bear it out as well."""

from __future__ import annotations

import pytest

from stratalog.dump.decoders import TransactionLogDecoder
from stratalog.dump.problems import (
    DumpReport,
    Pairs,
    in_table_order,
    partition_hash,
    slots_after,
    string_hash,
)
from stratalog.format.record import Record


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("", 0),
        ("hello", 99162322),
        ("/data/orders-0/00000000000000000000.log", -983640825),
        ("ключ", 33309882),
        ("😀 é", 1703757164),
    ],
)
def test_string_hash_is_javas(text: str, java: int) -> None:
    assert string_hash(text) == java % (1 << 32)


@pytest.mark.parametrize(
    ("partition", "java"), [(0, -1008769370), (1, -1008769339), (7, -1008769153)]
)
def test_partition_hash_is_javas(partition: int, java: int) -> None:
    assert partition_hash("orders", partition) == java % (1 << 32)


@pytest.mark.parametrize(
    ("lots", "announced", "slots"),
    [
        ([], True, 16),
        ([11], False, 16),
        ([12], False, 32),
        ([23], False, 32),
        ([24], False, 64),
        ([11], True, 16),
        ([12], True, 32),
        ([6, 5], True, 16),
        ([6, 6], True, 32),
        ([24], True, 64),
    ],
)
def test_tables_grow_when_three_quarters_full(lots: list[int], announced: bool, slots: int) -> None:
    assert slots_after(lots, announced=announced) == slots


def test_elements_lie_by_slot_and_then_by_signed_hash() -> None:
    hashes = [0x0000_0012, 0x0000_0002, 0xFFFF_FFFD, 0x0001_0000, 0x0000_0001]
    names = ["b", "a", "c", "d", "e"]
    # Folded: 0x12, 0x02, 0xFFFF0002, 0x00010001, 0x01; of the first three, c's is negative.
    assert in_table_order(names, hashes, 16) == ["e", "d", "c", "a", "b"]


def test_partitions_of_a_transaction() -> None:
    value = bytes.fromhex(
        "0000 0000000000000005 0002 000927c0 01 00000001 0006 6f7264657273 00000003"
        "00000000 00000001 00000007 0000000000000007 0000000000000008"
    )
    record = Record(0, 0, bytes.fromhex("0000 0001 74"), value)
    key, payload = TransactionLogDecoder().show(record)
    assert key == "transaction_metadata::transactionalId=t"
    # Slots of orders-0, -1 and -7 in a table of 16: 15, 14 and 8.
    folded = [(h ^ (h >> 16)) & 15 for h in (partition_hash("orders", p) for p in (0, 1, 7))]
    order = [
        name for _, name in sorted(zip(folded, ("orders-0", "orders-1", "orders-7"), strict=True))
    ]
    assert payload == (
        f"producerId:5,producerEpoch:2,state=Ongoing,partitions=[{','.join(order)}],"
        "txnLastUpdateTimestamp=7,txnTimeoutMs=600000"
    )


def test_pairs() -> None:
    pairs = Pairs()
    assert not pairs
    pairs.add(1, 5)
    pairs.add(-1, 1 << 62)
    assert list(pairs) == [(1, 5), (-1, 1 << 62)]
    assert list(reversed(pairs)) == [(-1, 1 << 62), (1, 5)]
    assert len(pairs) == 2


def test_findings_of_no_file_are_not_listed() -> None:
    report = DumpReport()
    report.gaps_of("a.log")
    assert list(report.lines()) == []
