"""docs/format says what the code does: every layout table and every worked example is compared."""

from __future__ import annotations

import inspect
import re
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.format import (
    batch,
    checkpoint,
    control,
    legacy,
    names,
    offset_index,
    producer_snapshot,
    time_index,
    txn_index,
    varint,
)
from stratalog.format.directory_metadata import (
    PartitionMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_partition_metadata,
)
from stratalog.format.java_text import decode_properties
from stratalog.format.record import Record, decode_records
from stratalog.log.epochs import LeaderEpochCache

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "format"

TYPE_NAMES = {"q": "int64", "i": "int32", "I": "uint32", "h": "int16", "b": "int8", "B": "uint8"}


class Table(NamedTuple):
    heading: str
    columns: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]


class Block(NamedTuple):
    language: str
    text: str


@cache
def text_of(page: str) -> str:
    return (PAGES / f"{page}.md").read_text()


@cache
def tables_of(page: str) -> list[Table]:
    """Every table with the heading above it. Backquotes around a cell are dropped."""
    heading, tables = "", []
    table: Table | None = None
    for line in re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            table = None
            continue
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if table is None:
            table = Table(heading, cells, [])
            tables.append(table)
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            assert len(cells) == len(table.columns), line
            table.rows.append(cells)
    return tables


def table_of(page: str, heading: str, columns: str) -> Table:
    """The only table below `heading` with these columns."""
    (table,) = (
        table
        for table in tables_of(page)
        if table.heading == heading and " ".join(table.columns) == columns
    )
    return table


def blocks_of(page: str) -> list[Block]:
    return [
        Block(*found) for found in re.findall(r"^```(\S*)\n(.*?)^```$", text_of(page), re.M | re.S)
    ]


def block_of(page: str, language: str) -> bytes:
    (text,) = (block.text for block in blocks_of(page) if block.language == language)
    return text.encode()


class Example(NamedTuple):
    raw: bytes
    rows: list[tuple[bytes, str, str]]

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [(field, value) for _, field, value in self.rows]


def example_of(page: str) -> Example:
    table = table_of(page, "Worked example", "bytes field value")
    rows = [(bytes.fromhex(raw), field, value) for raw, field, value in table.rows]
    return Example(b"".join(raw for raw, _, _ in rows), rows)


def struct_fields(module: ModuleType, name: str) -> list[tuple[str, str]]:
    """Name and type code of each field, from the table in the source that the struct is."""
    source = inspect.getsource(module)
    definition = re.search(rf"^{name} = struct\.Struct\(\n(.*?)^\)", source, re.M | re.S)
    assert definition is not None, name
    return re.findall(r'^ +">?(\w)" +# (\w+)', definition[1], re.M)


LAYOUTS = [
    ("record-batch", "Header", batch, "_HEADER"),
    ("record-batch", "Control key", control, "_KEY"),
    ("record-batch", "End marker", control, "_END_MARKER_VALUE"),
    ("legacy-messages", "Magic 0", legacy, "_HEADER_0"),
    ("legacy-messages", "Magic 1", legacy, "_HEADER_1"),
    ("offset-index", "Entry", offset_index, "_ENTRY"),
    ("time-index", "Entry", time_index, "_ENTRY"),
    ("txn-index", "Entry", txn_index, "_ENTRY"),
    ("producer-snapshot", "Header", producer_snapshot, "_HEADER"),
    ("producer-snapshot", "Entry", producer_snapshot, "_ENTRY"),
]
LAYOUT_COLUMNS = "at size field type legal values meaning"


@pytest.mark.parametrize(("page", "heading", "module", "name"), LAYOUTS)
def test_layout_tables_are_the_structs(
    page: str, heading: str, module: ModuleType, name: str
) -> None:
    layout: struct.Struct = getattr(module, name)
    expected, at = [], 0
    for code, field in struct_fields(module, name):
        size = struct.calcsize(">" + code)
        expected.append([str(at), str(size), field, TYPE_NAMES[code]])
        at += size
    assert at == layout.size
    table = table_of(page, heading, LAYOUT_COLUMNS)
    assert [row[:4] for row in table.rows] == expected


def test_every_layout_table_is_compared() -> None:
    found = {
        (path.stem, table.heading)
        for path in PAGES.glob("*.md")
        for table in tables_of(path.stem)
        if table.columns[:2] == ["at", "size"]
    }
    assert found == {(page, heading) for page, heading, _, _ in LAYOUTS}


@pytest.mark.parametrize(
    ("page", "heading", "fields"),
    [
        ("record-batch", "Header", batch.BatchHeader._fields),
        ("txn-index", "Entry", txn_index.AbortedTxn._fields),
        ("producer-snapshot", "Header", producer_snapshot.SnapshotHeader._fields),
        ("producer-snapshot", "Entry", producer_snapshot.ProducerEntry._fields),
    ],
)
def test_values_have_the_fields_of_the_layout(
    page: str, heading: str, fields: tuple[str, ...]
) -> None:
    assert table_of(page, heading, LAYOUT_COLUMNS).column("field") == list(fields)


def test_the_index_lists_every_page() -> None:
    linked = re.findall(r"\]\((.+?)\.md\)", text_of("README"))
    assert sorted(linked) == sorted(
        path.stem for path in PAGES.glob("*.md") if path.stem != "README"
    )


@pytest.mark.parametrize(
    "page", ["legacy-messages", "offset-index", "time-index", "txn-index", "producer-snapshot"]
)
def test_examples_are_what_kafka_wrote(page: str) -> None:
    section = text_of(page).split("## Worked example")[1]
    named = re.search(r"`(tests/golden/\S+)`", section)
    assert named is not None
    assert (ROOT / named[1]).read_bytes().startswith(example_of(page).raw)


# -- record-batch


def test_attribute_bits() -> None:
    table = table_of("record-batch", "Attributes", "bits field values")
    bits = dict(zip(table.column("field"), table.column("bits"), strict=True))
    values = dict(zip(table.column("field"), table.column("values"), strict=True))
    codecs = ", ".join(f"{codec.value} {codec.name.lower()}" for codec in batch.Codec)
    assert (bits.pop("codec"), values["codec"]) == ("0-2", codecs)
    assert bits.pop("unused") == "7-15"
    log_append_time = batch.TimestampType.LOG_APPEND_TIME
    assert {field: 1 << int(bit) for field, bit in bits.items()} == {
        "timestamp_type": batch.attributes_of(timestamp_type=log_append_time),
        "is_transactional": batch.attributes_of(is_transactional=True),
        "is_control": batch.attributes_of(is_control=True),
        "has_delete_horizon": batch.attributes_of(has_delete_horizon=True),
    }


def test_control_types() -> None:
    table = table_of("record-batch", "Control key", "type name value")
    known = {str(kind.value): kind.name for kind in control.ControlType if kind.value >= 0}
    assert dict(zip(table.column("type"), table.column("name"), strict=True)) == known


def decoded(raw: bytes, kind: str) -> str:
    """One field of a record, read on its own."""
    if kind == "bytes":
        return raw.decode()
    if kind == "int8":
        return str(int.from_bytes(raw, signed=True))
    read = {"varint": varint.read_int, "varlong": varint.read_long}[kind]
    value, end = read(raw, 0, len(raw))
    assert end == len(raw)
    return str(value)


def test_batch_example() -> None:
    example = example_of("record-batch")
    header = batch.read_header(example.raw, 0)
    batch.check_crc(example.raw, 0, header)
    assert header.size_bytes == len(example.raw)
    fields = [(name, str(value)) for name, value in header._asdict().items()]
    assert example.fields[: len(fields)] == fields

    types = table_of("record-batch", "Record", "order field type legal values meaning")
    kinds = dict(zip(types.column("field"), types.column("type"), strict=True))
    for raw, field, value in example.rows[len(fields) :]:
        assert decoded(raw, kinds[field]) == value

    shown = table_of("record-batch", "Worked example", "offset timestamp key value headers")
    records = decode_records(example.raw, 0, header)
    assert [record_row(record) for record in records] == shown.rows


def record_row(record: Record) -> list[str]:
    headers = " ".join(f"{key}={(value or b'').decode()}" for key, value in record.headers)
    key, value = ("null" if raw is None else raw.decode() for raw in (record.key, record.value))
    return [str(record.offset), str(record.timestamp), key, value, headers]


def test_the_order_of_record_fields_is_that_of_the_example() -> None:
    types = table_of("record-batch", "Record", "order field type legal values meaning")
    assert types.column("order") == [str(order) for order in range(1, len(types.rows) + 1)]
    shown = [field for _, field, _ in example_of("record-batch").rows]
    first_record = len(batch.BatchHeader._fields)
    assert shown[first_record : first_record + len(types.rows)] == types.column("field")


def test_marker_example() -> None:
    raw = bytes.fromhex(block_of("record-batch", "hex").decode())
    header = batch.read_header(raw, 0)
    batch.check_crc(raw, 0, header)
    (record,) = decode_records(raw, 0, header)
    marker = control.read_end_marker(record)
    assert marker is not None
    said = re.search(
        r"producer (\d+) aborts; offset (\d+), leader epoch (\d+), coordinator epoch (\d+), (\d+)",
        text_of("record-batch"),
    )
    assert said is not None
    assert marker.type is control.ControlType.ABORT
    assert tuple(map(int, said.groups())) == (
        header.producer_id,
        header.base_offset,
        header.partition_leader_epoch,
        marker.coordinator_epoch,
        len(raw),
    )


# -- legacy-messages


def test_legacy_example() -> None:
    example = example_of("legacy-messages")
    header = legacy.read_legacy_header(example.raw, 0)
    legacy.check_legacy_crc(example.raw, 0, header)
    assert header.size_bytes == len(example.raw)
    (record,) = legacy.decode_legacy_records(example.raw, 0, header)
    assert record.key is not None
    assert record.value is not None
    layout = table_of("legacy-messages", "Magic 1", LAYOUT_COLUMNS).column("field")
    fields = list(zip(layout, map(str, header), strict=True))
    assert example.fields == [
        *fields,
        ("key_length", str(len(record.key))),
        ("key", record.key.decode()),
        ("value_length", str(len(record.value))),
        ("value", record.value.decode()),
    ]


# -- indexes and snapshot


def base_offset_of(page: str) -> int:
    said = re.search(r"base offset (\d+)\.", text_of(page))
    assert said is not None
    return int(said[1])


def test_offset_index_example() -> None:
    example, base = example_of("offset-index"), base_offset_of("offset-index")
    entries = offset_index.count_valid_entries(example.raw)
    assert example.fields == [
        (name, str(value))
        for entry in offset_index.read_entries(example.raw, entries, base)
        for name, value in (
            ("relative_offset", entry.offset - base),
            ("position", entry.position),
        )
    ]
    shown = table_of("offset-index", "Worked example", "look up slot offset position")
    for target, *hit in shown.rows:
        found = offset_index.lookup(example.raw, entries, base, int(target))
        assert list(map(str, found)) == hit


def test_time_index_example() -> None:
    example, base = example_of("time-index"), base_offset_of("time-index")
    entries = time_index.count_valid_entries(example.raw)
    assert example.fields == [
        (name, str(value))
        for entry in time_index.read_entries(example.raw, entries, base)
        for name, value in (
            ("timestamp", entry.timestamp),
            ("relative_offset", entry.offset - base),
        )
    ]
    shown = table_of("time-index", "Worked example", "look up slot timestamp offset")
    for target, *hit in shown.rows:
        found = time_index.lookup(example.raw, entries, base, int(target))
        assert list(map(str, found)) == hit


def test_txn_index_example() -> None:
    example = example_of("txn-index")
    assert example.fields == [
        (name, str(value))
        for txn in txn_index.read_entries(example.raw)
        for name, value in txn._asdict().items()
    ]
    shown = table_of("txn-index", "Worked example", "from to producers found search ends here")
    for start, end, producers, ends in shown.rows:
        found = txn_index.collect_aborted(example.raw, int(start), int(end))
        assert ", ".join(str(txn.producer_id) for txn in found.txns) == producers
        assert found.is_complete == (ends == "yes")


def test_snapshot_example() -> None:
    example = example_of("producer-snapshot")
    entries = producer_snapshot.decode_snapshot(example.raw)
    header = example.fields[:3]
    assert header == [
        ("version", str(producer_snapshot.VERSION)),
        ("crc", str(int.from_bytes(example.raw[2:6]))),
        ("entry_count", str(len(entries))),
    ]
    assert example.fields[3:] == [
        (name, str(value)) for entry in entries for name, value in entry._asdict().items()
    ]


# -- checkpoints


def test_checkpoint_examples() -> None:
    epochs = checkpoint.decode_leader_epochs(block_of("checkpoints", "leader-epoch-checkpoint"))
    said = re.search(r"The epoch of offset (\d+) is (\d+)", text_of("checkpoints"))
    assert said is not None
    assert LeaderEpochCache(epochs).epoch_for_offset(int(said[1])) == int(said[2])
    raw = block_of("checkpoints", "recovery-point-offset-checkpoint")
    assert checkpoint.decode_offsets(raw) == {names.TopicPartition("orders", 3): 1024}
    golden = ROOT / "tests/golden/compact-delete/compact-delete-0/leader-epoch-checkpoint"
    assert golden.read_bytes() == block_of("checkpoints", "leader-epoch-checkpoint")


def test_metadata_examples() -> None:
    raw = block_of("checkpoints", "partition.metadata").removesuffix(b"\n")
    topic_id = decode_partition_metadata(raw).topic_id
    assert f"`{topic_id}`" in text_of("checkpoints")
    assert encode_partition_metadata(PartitionMetadata(topic_id)) == raw

    raw = block_of("checkpoints", "meta.properties")
    assert raw == (ROOT / "tests/golden/_logdir-run1/meta.properties").read_bytes()
    assert decode_meta_properties(raw).node_id == 1

    raw = block_of("checkpoints", "kafka_cleanshutdown").removesuffix(b"\n")
    assert encode_clean_shutdown(decode_clean_shutdown(raw) or 0) == raw
    raw = block_of("checkpoints", "quorum-state").removesuffix(b"\n")
    golden = ROOT / "tests/golden/_logdir-run1/__cluster_metadata-0/quorum-state"
    assert raw == golden.read_bytes()


def test_properties_example() -> None:
    shown = table_of("checkpoints", "meta.properties", "key value")
    expected = dict(zip(shown.column("key"), shown.column("value"), strict=True))
    assert decode_properties(block_of("checkpoints", "properties")) == expected


def test_checkpoint_files_exist_by_these_names() -> None:
    listed = table_of("checkpoints", "Checkpoints", "file where entry meaning")
    for file, where in zip(listed.column("file"), listed.column("where"), strict=True):
        if where == "root":
            assert names.parse_root_file(file) is not None
        else:
            assert names.parse_partition_file(file) is not None


# -- directory-layout


def test_file_names() -> None:
    table = table_of("directory-layout", "Files of a partition", "name kind state offset")
    for name, kind, state, offset in table.rows:
        file = names.parse_partition_file(name)
        assert file is not None
        shown = "" if file.base_offset is None else str(file.base_offset)
        assert (file.kind.name, file.state.name, shown) == (kind, state, offset)
    assert {kind.name for kind in names.FileKind} == set(table.column("kind"))


def test_file_states() -> None:
    table = table_of("directory-layout", "Files of a partition", "state meaning after a crash")
    assert table.column("state") == [state.name for state in names.FileState if state.value]


def test_directory_names() -> None:
    table = table_of("directory-layout", "Directories", "name topic partition state")
    for name, topic, partition, state in table.rows:
        found = names.parse_partition_dir(name)
        assert found is not None
        assert found.topic_partition == (topic, int(partition))
        assert found.state.name == state
    assert {state.name for state in names.DirState} == set(table.column("state"))


def test_root_file_names() -> None:
    table = table_of("directory-layout", "Files at the root", "name file page")
    expected = [[file.value, file.name] for file in names.RootFile]
    assert [row[:2] for row in table.rows] == expected
