"""Files into topics: every row once, however many tasks read them, or nothing."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import LogDir, open_dirs
from stratalog.bulk.export import FileSpec, export
from stratalog.bulk.ingest import ingest, plan_ingest, plan_tasks, run_ingest
from stratalog.bulk.input_files import FileSource, InputFile, RecordColumns
from stratalog.bulk.line_rows import TextRange
from stratalog.bulk.table_rows import RowGroups
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import (
    ConfigError,
    InputFileError,
    JobError,
    LogDirLockedError,
    StratalogError,
)
from stratalog.maintenance.verify.directory import verify_directory
from stratalog.maintenance.verify.findings import Severity
from tests.bulk.options import reading, writing
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.record import Record

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMES = [datetime(2026, 3, day + 1, 5, 6, 7, 123_456, UTC) for day in range(5)]
Case = tuple[dict[int, Counter[Any]], Counter[Any]]


def records_of(log_dir: Path, *, has_times: bool) -> dict[str, Case]:
    """Of each topic: keyed records by partition, others in any; in any order."""
    found: dict[str, Case] = {}
    dirs = open_dirs(log_dir)
    for topic in dirs.topics:
        keyed: dict[int, Counter[Any]] = {}
        others: Counter[Any] = Counter()
        for view in dirs.partitions_of(topic):
            own = keyed.setdefault(view.topic_partition.partition, Counter())
            for record in view.read():
                (others if record.key is None else own)[_facts(record, has_times=has_times)] += 1
        found[topic] = (keyed, others)
    return found


def _facts(record: Record, *, has_times: bool) -> tuple[Any, ...]:
    time = record.timestamp if has_times else None
    return record.key, record.value, time, record.headers


def values_of(log_dir: Path, topic: str) -> list[bytes | None]:
    """In the order of the partitions' logs."""
    dirs = open_dirs(log_dir)
    return [record.value for view in dirs.partitions_of(topic) for record in view.read()]


def write_parquet(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **settings)
    return path


def run_twice(
    root: Path, source: FileSource, *, has_times: bool = True, **given: Any
) -> dict[str, Case]:
    """What threads write, the same on one as on three."""
    options = {"topicPartitions": "3"}
    ingest(source, writing(root / "one", options=options, **given), workers=ThreadWorkers(1))
    done = ingest(
        source, writing(root / "three", options=options, **given), workers=ThreadWorkers(3)
    )
    assert done.size_bytes == sum(log.stat().st_size for log in (root / "three").rglob("*.log"))
    found = records_of(root / "three", has_times=has_times)
    assert found == records_of(root / "one", has_times=has_times)
    assert done.records == sum(
        rows.total() for keyed, others in found.values() for rows in (*keyed.values(), others)
    )
    assert verify_directory(root / "three").at_least(Severity.WARNING) == ()
    assert not list(root.rglob("*.staged"))
    return found


TEXTS = [
    b"a\n\nb\r\nc\rd",
    b"",
    b"\n",
    b"\xef\xbb\xbfwith a mark\n\xff\xfe\x00not text\r\r\n",
    b'{"a": 1}\n  {"b": 2}  \n',
]


@pytest.mark.parametrize("format_", ["text", "json"])
def test_lines(tmp_path: Path, format_: Any) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.txt").write_bytes(text)
    (tmp_path / "in" / "_SUCCESS").write_bytes(b"no data\n")
    (tmp_path / "in" / ".hidden").write_bytes(b"no data\n")
    (tmp_path / "more.txt").write_bytes(b"twice\n")
    more = tmp_path / "more.txt"
    source = FileSource([tmp_path / "in", more, str(more)], format=format_)
    found = run_twice(tmp_path, source, has_times=False, topic="t")
    values = Counter({value: n for (_, value, _, _), n in found["t"][1].items()})
    assert values[b""] == 3
    assert values[b"twice"] == 2
    assert values.total() == 5 + 1 + 3 + 2 + 2


def _columns(count: int = 5, **kinds: pa.DataType) -> dict[str, Any]:
    """All that the sink takes."""
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "key": ([b"k1", b"", None, b"k\xff", b"k1"], pa.binary()),
        "value": ([b"v", None, b"", b"\xfe", b"x" * 3000], pa.binary()),
        "timestamp": (TIMES, pa.timestamp("us", "UTC")),
        "headers": (
            [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None, [], None],
            HEADERS,
        ),
        "partition": ([None, 2, None, 0, None], pa.int32()),
        "topic": (["a", "b", "a", "a", "b"], pa.string()),
        "other": ([1, 2, 3, 4, 5], pa.int64()),
    }
    return {
        name: pa.array(values[:count], kinds.get(name, kind))
        for name, (values, kind) in columns.items()
    }


@pytest.mark.slow
def test_parquet_with_all_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "1.parquet", _columns(), row_group_size=2)
    write_parquet(tmp_path / "in" / "2.parquet", _columns(3), compression="zstd")
    write_parquet(tmp_path / "in" / "3.parquet", _columns(0))
    source = FileSource([tmp_path / "in"])
    found = run_twice(tmp_path, source)
    assert set(found) == {"a", "b"}
    (tmp_path / "only").mkdir()
    only = run_twice(tmp_path / "only", source, topic="only")
    assert set(only) == {"only"}
    keyed, others = only["only"]
    assert sum(rows.total() for rows in keyed.values()) == 4 + 2
    assert others.total() == 2


PLAIN = [b"k\xc3\xa4", b"k2", None]
SHAPES: dict[str, dict[str, Any]] = {
    "text": {"key": pa.array(["kä", "", None]), "value": pa.array(["v", None, "ü"])},
    "large": {
        "key": pa.array(PLAIN, pa.large_binary()),
        "value": pa.array(PLAIN, pa.large_binary()),
    },
    "no key": {"value": pa.array(PLAIN)},
    "milliseconds": {
        "value": pa.array(PLAIN),
        "timestamp": pa.array(TIMES[:3], pa.timestamp("ms")),
    },
    "microseconds": {
        "value": pa.array(PLAIN),
        "timestamp": pa.array([TIMES[0], None, TIMES[1]], pa.timestamp("us")),
    },
    "a zone": {
        "key": pa.array([b"a", b"b", b"c"]),
        "value": pa.array(PLAIN),
        "timestamp": pa.array(TIMES[:3], pa.timestamp("us", "Asia/Tokyo")),
    },
    "other names for what is not taken": {
        "value": pa.array(PLAIN),
        "Key": pa.array([1, 2, 3]),
        "offset": pa.array([7, 8, 9]),
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_parquet_of_many_shapes(tmp_path: Path, shape: str) -> None:
    file = write_parquet(tmp_path / "x.parquet", SHAPES[shape])
    has_times = "timestamp" in SHAPES[shape] and shape != "microseconds"  # one of these is null
    found = run_twice(tmp_path, FileSource([file]), has_times=has_times, topic="t")
    assert sum(rows.total() for rows in (*found["t"][0].values(), found["t"][1])) == 3


def test_times_as_old_files_have_them(tmp_path: Path) -> None:
    columns = {"value": pa.array(PLAIN), "timestamp": pa.array(TIMES[:3], pa.timestamp("us"))}
    file = write_parquet(tmp_path / "old.parquet", columns, use_deprecated_int96_timestamps=True)
    found = run_twice(tmp_path, FileSource([file]), topic="t")
    times = {time for _, _, time, _ in found["t"][1]}
    assert times == {round(time.timestamp() * 1000 - 0.5) for time in TIMES[:3]}


@pytest.mark.slow
def test_columns_by_other_names(tmp_path: Path) -> None:
    columns = {
        "id": pa.array(["a", "b", None]),
        "body": pa.array(PLAIN),
        "at": pa.array(TIMES[:3], pa.timestamp("ns", "UTC")),
        "at_ms": pa.array(TIMES[:3], pa.timestamp("ms", "UTC")),
        "topic": pa.array([1, 2, 3]),
    }
    source = FileSource(
        [write_parquet(tmp_path / "x.parquet", {**columns, "at": columns["at_ms"]})],
        mapping=RecordColumns("id", "body", "at_ms"),
    )
    found = run_twice(tmp_path, source, topic="t")
    assert {value for _, value, _, _ in found["t"][1]} == {None}
    # Nanoseconds are truncated.
    file = write_parquet(tmp_path / "ns.parquet", columns)
    source = FileSource([file], mapping=RecordColumns("id", "body", "at"))
    options = {"topicPartitions": "3"}
    ingest(source, writing(tmp_path / "ns", topic="t", options=options))
    assert records_of(tmp_path / "ns", has_times=True) == found


@pytest.mark.slow
def test_what_export_wrote_comes_back(tmp_path: Path) -> None:
    """Topics and dates are in the names of directories; the numbers of partitions in the rows."""
    with LogDir.open(tmp_path / "logs", background=False) as logs:
        for name in ("orders", "2026"):
            logs.create_topic(name, 3)
    columns = _columns()
    columns["topic"] = pa.array(["orders", "2026", "orders", "orders", "2026"])
    file = write_parquet(tmp_path / "in.parquet", columns)
    ingest(FileSource([file]), writing(tmp_path / "logs"))
    for by_date in (True, False):
        out = tmp_path / f"out-{by_date}"
        spec = FileSpec(has_headers=True, by_date=by_date)
        export(reading(tmp_path / "logs", {"includeHeaders": "true"}), out, spec)
        again = tmp_path / f"again-{by_date}"
        done = ingest(FileSource([out]), writing(again, options={"topicPartitions": "3"}))
        assert done.tasks
        assert done.records == 5
        kept = records_of(tmp_path / "logs", has_times=True)
        assert records_of(again, has_times=True) == kept
    case = GoldenCase("multiseg")
    export(reading(case.root, {"includeHeaders": "true"}), tmp_path / "golden")
    run_twice(tmp_path / "both", FileSource([tmp_path / "golden"]))


@pytest.mark.parametrize("mapping", [RecordColumns(), RecordColumns("user")], ids=["", "fields"])
def test_no_directory_is_left_out_unseen(tmp_path: Path, mapping: RecordColumns) -> None:
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "x.json").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"up/sub: nested directories are read only if"):
        plan_ingest(FileSource([tmp_path / "up"], mapping=mapping))


Refuse = Callable[..., StratalogError]


@pytest.fixture
def refusal(tmp_path: Path) -> Refuse:
    """The error for somebody who ingests a file into `logs`. Nothing is left behind."""

    def run(file: Path, **given: Any) -> object:
        source = FileSource([file], mapping=given.pop("mapping", RecordColumns()))
        return ingest(source, writing(tmp_path / "logs", **given), workers=ThreadWorkers(2))

    def refused(file: Path, **given: Any) -> StratalogError:
        with pytest.raises(StratalogError) as told:
            run(file, **given)
        assert "\n" not in str(told.value)
        assert not list(tmp_path.rglob("*.staged"))
        return told.value

    return refused


ONE = {"topicPartitions": "1"}


def test_a_wrong_setting_is_one_line(refusal: Refuse, tmp_path: Path) -> None:
    logs, file = tmp_path / "logs", tmp_path / "x.txt"
    missing = refusal(file, topic="t")
    assert str(missing) == f"{file}: No such file or directory"
    file.write_text("a\nb\n")
    assert str(refusal(file, topic="t")).startswith(f"{logs}: no such directory; set the option ")
    assert "topic option required" in str(refusal(file, options=ONE))
    wrong = refusal(file, topic="t", options={"topicPartition": "1"})
    assert isinstance(wrong, ConfigError)
    assert "in the format text have no fields" in str(refusal(file, mapping=RecordColumns("k")))
    rows = write_parquet(tmp_path / "rows.parquet", _columns())
    nameless = refusal(rows, mapping=RecordColumns("nowhere"))
    assert "no column 'nowhere'; it has key, value, timestamp" in str(nameless)
    with LogDir.open(logs, background=False) as held:
        held.create_topic("t", 1)
        locked = refusal(file, topic="t", options={"lockTimeout": "0ms"})
    assert isinstance(locked, LogDirLockedError)
    assert "'nowhere' does not exist" in str(refusal(file, topic="nowhere"))
    assert values_of(logs, "t") == []


def test_a_damaged_file_is_one_line(refusal: Refuse, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    whole = write_parquet(damaged, _columns(), compression="zstd").read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    no_footer = whole[:footer] + b"\xff" * 30 + whole[footer + 30 :]
    for data in (whole[:-9], b"", b"no Parquet at all", no_footer):
        damaged.write_bytes(data)
        error = refusal(damaged, topic="t", options=ONE)
        assert isinstance(error, InputFileError)
        assert str(error).startswith(f"{damaged}: cannot be read as Parquet: ")
    damaged.write_bytes(whole[:4] + bytes(56) + whole[60:])
    inside = refusal(damaged, topic="t", options=ONE)
    assert isinstance(inside, JobError)
    assert str(inside).startswith(f"{damaged}: cannot be read as Parquet: ")
    far = {"value": pa.array(PLAIN), "timestamp": pa.array([1 << 62] * 3, pa.timestamp("ms"))}
    write_parquet(damaged, far)
    assert "out of bounds" in str(refusal(damaged, topic="t", options=ONE))
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    assert str(refusal(pipe, topic="t", options=ONE)).startswith(f"{pipe}: not a regular file")
    long = tmp_path / "long.txt"
    long.write_bytes(b"short\n" + b"x" * 2_000_000)
    assert "max.message.bytes" in str(refusal(long, topic="t", options=ONE))
    assert not list((tmp_path / "logs").glob("t-*"))


def test_a_commit_that_came_before_is_not_made_again(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("a\nb\n")
    options = {"topicPartitions": "1", "txnAppId": "me", "txnVersion": "4"}
    plan = plan_ingest(FileSource([file]))
    for records in (2, 0):
        done = run_ingest(
            plan, writing(tmp_path / "logs", topic="t", options=options), ThreadWorkers(1)
        )
        assert done.records == records
    assert values_of(tmp_path / "logs", "t") == [b"a", b"b"]


def test_many_tasks_keep_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, and of lines in them, whichever task reads them."""
    monkeypatch.setattr("stratalog.bulk.ingest.TASK_BYTES_MIN", 10_000)
    monkeypatch.setattr("stratalog.bulk.ingest.FILE_COST_BYTES", 100)
    lines = [f"{number} {'x' * random.Random(number).randrange(40)}" for number in range(9000)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("\n".join(lines[:7000]))
    (tmp_path / "in" / "2.txt").write_text("\r\n".join(lines[7000:7001]) + "\r\n")
    (tmp_path / "in" / "3.txt").write_text("\r".join(lines[7001:]))
    plan = plan_ingest(FileSource([tmp_path / "in"]))
    options = {"topicPartitions": "1"}
    done = run_ingest(
        plan, writing(tmp_path / "logs", topic="t", options=options), ThreadWorkers(7)
    )
    assert done.tasks == 7
    assert values_of(tmp_path / "logs", "t") == [line.encode() for line in lines]


def test_tasks_are_even() -> None:
    mib = 1 << 20
    text = TextRange("big", 0, 1000 * mib)
    tasks = plan_tasks([text], 4)
    assert len(tasks) == 8
    assert {task.number for task in tasks} == set(range(8))
    sizes = [sum(piece.size_bytes for piece in task.parts) for task in tasks]
    assert max(sizes) - min(sizes) < mib
    groups = [RowGroups(InputFile(f"{n // 3}", 0), (n,), 30 * mib, 1) for n in range(12)]
    tasks = plan_tasks(groups, 2)
    assert [len(task.parts) for task in tasks] == [1, 1, 1, 1]
    assert [task.parts[0].numbers for task in tasks if isinstance(task.parts[0], RowGroups)] == [
        (0, 1, 2),
        (3, 4, 5),
        (6, 7, 8),
        (9, 10, 11),
    ]
    assert len(plan_tasks([TextRange("small", 0, 100)], 8)) == 1
    assert plan_tasks([], 8) == ()


def test_nothing_to_ingest(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "1.parquet", _columns(0))
    pq.ParquetWriter(tmp_path / "in" / "2.parquet", pa.table(_columns()).schema).close()
    options = writing(tmp_path / "logs", options={"topicPartitions": "1"})
    done = ingest(FileSource([tmp_path / "in"]), options)
    assert (done.records, done.size_bytes, done.tasks) == (0, 0, 0)


@pytest.mark.slow
def test_batches_are_small_whatever_row_groups_are(tmp_path: Path) -> None:
    large = [bytes([number]) * 20_000 for number in range(10)]
    file = write_parquet(tmp_path / "x.parquet", {"value": pa.array(large * 500)})  # a dictionary
    sizes = [batch.nbytes for batch in _batches(file)]
    assert sum(sizes) > 100_000_000
    assert max(sizes) < 20_000_000
    file = write_parquet(tmp_path / "x.parquet", {"value": pa.array(large * 200)}, **PLAINLY)
    sizes = [batch.nbytes for batch in _batches(file)]
    assert sum(sizes) > 40_000_000
    assert max(sizes) < 10_000_000
    assert min(sizes[:-1]) > 8 << 20  # enough to be encoded without waiting for more


PLAINLY = {"use_dictionary": False, "compression": "none"}


def _batches(file: Path) -> list[pa.RecordBatch]:
    plan = plan_ingest(FileSource([file]))
    (piece,) = plan.parts
    assert isinstance(piece, RowGroups)
    return [rows.batch for rows in plan.tables.read(piece)]


def test_tasks_that_write_to_the_same_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.bulk.ingest.TASK_BYTES_MIN", 1000)
    topics = [f"topic-{number % 5}" for number in range(400)]
    with LogDir.open(tmp_path / "logs", background=False) as logs:
        for topic in set(topics):
            logs.create_topic(topic, 1)
    for number in range(4):
        values = pa.array([f"{number} {row} {'x' * 100}" for row in range(400)])
        columns = {"topic": pa.array(topics), "value": values}
        write_parquet(tmp_path / "in" / f"{number}.parquet", columns, **PLAINLY)
    plan = plan_ingest(FileSource([tmp_path / "in"]))
    done = run_ingest(plan, writing(tmp_path / "logs"), ThreadWorkers(4))
    assert (done.records, done.tasks) == (1600, 4)
    for topic in set(topics):
        order = [
            tuple(map(int, (v or b"").split()[:2])) for v in values_of(tmp_path / "logs", topic)
        ]
        assert order == sorted(order)
        assert len(order) == 320
