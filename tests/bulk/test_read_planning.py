"""Bounds by option and by filter read what filtering everything gives, and fewer bytes."""

from __future__ import annotations

import itertools
import pickle
import shutil
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.bulk import read_planning
from stratalog.bulk.predicates import LONG_MAX, Condition, Interval, Predicate
from stratalog.bulk.read_planning import pin_ranges
from stratalog.bulk.splits import OffsetRange, Split, segment_of
from stratalog.errors import (
    ConfigError,
    DataLossError,
    NotALogDirError,
    SourceError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.times import format_time
from stratalog.log.reader import IsolationLevel
from stratalog.spark.options import batch_read_options, plan_read
from stratalog.storage.log_file import LocalFile
from tests.bulk.options import reading
from tests.bulk.reading import read_options, read_plan
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed, visible
from tests.handmade import plain, write_segment
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.bulk.splits import SegmentRange
    from stratalog.format.record import Record
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.segment_view import SegmentView

TIMED = ["multiseg", "ooo-createtime", "logappend-none", "roll-by-time", "v1-none", "v0-none"]
over_timed = pytest.mark.parametrize("name", TIMED)


def _options(name: str, **more: str) -> dict[str, str]:
    return {"path": str(GoldenCase(name).root), "subscribe": name, "splitBytes": "2000", **more}


def _moments(records: tuple[Record, ...]) -> list[int]:
    """Times of a few records, one below all and one above all."""
    times = sorted({record.timestamp for record in records})
    return [times[0] - 1, *times[:: max(1, len(times) // 3)], times[-1], times[-1] + 1]


def _timed(records: tuple[Record, ...], low: int, high: int) -> dict[int, tuple[Record, ...]]:
    """By partition: those of these times, both included."""
    kept = tuple(record for record in records if low <= record.timestamp <= high)
    return {0: kept} if kept else {}


def _between(records: tuple[Record, ...], start: int, end: int) -> dict[int, tuple[Record, ...]]:
    """By partition: those of these offsets, the end excluded."""
    kept = tuple(record for record in records if start <= record.offset < end)
    return {0: kept} if kept else {}


@pytest.mark.slow
@over_timed
def test_times_by_filter(name: str) -> None:
    records = visible(GoldenCase(name))
    moments = _moments(records)
    for low in moments:
        for high in (low, low + 1, moments[len(moments) // 2], LONG_MAX // 1000):
            predicate = Predicate(times_us=Interval(low * 1000, high * 1000))
            plan, found = read_options(_options(name), predicate)
            assert found == _timed(records, low, high), (low, high)
            assert plan.summary.bytes_read <= plan.summary.bytes_total


@pytest.mark.parametrize("name", ["multiseg", "roll-by-time"])
def test_times_prune_bytes(name: str) -> None:
    records = visible(GoldenCase(name))
    late = records[len(records) * 3 // 4].timestamp
    whole = plan_read(_options(name)).summary
    by_filter = plan_read(_options(name), Predicate(times_us=Interval(low=late * 1000))).summary
    by_option = plan_read(_options(name, startingTimestamp=str(late))).summary
    assert by_filter.bytes_read == by_option.bytes_read < whole.bytes_read * 0.4
    assert whole.bytes_read <= whole.bytes_total == by_filter.bytes_total
    assert by_filter.segments_read < whole.segments_read
    # An upper bound needs the promise that timestamps are in order.
    early = Predicate(times_us=Interval(high=records[len(records) // 4].timestamp * 1000))
    assert plan_read(_options(name), early).summary.bytes_read == whole.bytes_read
    ordered = _options(name, timestampDisorder="0")
    plan, found = read_options(ordered, early)
    assert plan.summary.bytes_read < whole.bytes_read * 0.4
    assert found == _timed(records, 0, early.time_max_ms)


@pytest.mark.slow
@over_timed
def test_times_by_option(name: str) -> None:
    """Kafka's meaning: from the first record that is as late up to the first that is later."""
    records = visible(GoldenCase(name))
    for start in _moments(records)[1:-1]:
        for end in _moments(records):
            if start < 0 or end < 0:
                continue
            first = next((r.offset for r in records if r.timestamp >= start), LONG_MAX)
            stop = next((r.offset for r in records if r.timestamp >= end), LONG_MAX)
            times = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
            _, found = read_options(_options(name, **times))
            assert found == _between(records, first, stop), (start, end)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multiseg", "compact", "txn", "v0-gzip", "deleterecords"])
@pytest.mark.parametrize("isolation", IsolationLevel, ids=lambda level: level.value)
def test_offsets_by_option_and_by_filter(name: str, isolation: IsolationLevel) -> None:
    case = GoldenCase(name)
    is_old = name.startswith("v0")
    records = visible(case) if is_old else consumed(case, isolation)
    records = records if name != "deleterecords" else visible(case)
    level = {"kafka.isolation.level": isolation.value}
    offsets = [record.offset for record in records]
    for start in offsets[:: max(1, len(offsets) // 5)]:
        for size in (0, 1, 30, LONG_MAX):
            end = min(start + size, offsets[-1] + 1)
            wanted = _between(records, start, end)
            predicate = Predicate(offsets=Interval(start, end - 1))
            plan, found = read_options(_options(name, **level), predicate)
            assert found == wanted, (start, end)
            bounds = {
                "startingOffsets": f'{{"{name}":{{"0":{start}}}}}',
                "endingOffsets": f'{{"{name}":{{"0":{end}}}}}',
            }
            by_option, found = read_options(_options(name, **level, **bounds))
            assert found == wanted, (start, end)
            assert by_option.summary.bytes_read == plan.summary.bytes_read
            if end - start <= 1 and name == "multiseg":
                assert plan.summary.bytes_read < plan.summary.bytes_total * 0.05


def test_a_where_prunes_as_the_predicate_that_spark_pushes() -> None:
    options = _options("multiseg")
    records = visible(GoldenCase("multiseg"))
    late = format_time(records[1200].timestamp)
    pairs = [
        ("offset >= 100 and offset < 130", Predicate(offsets=Interval(100, 129))),
        ("offset = 7 AND partition = 0 and topic = 'multiseg'", Predicate(offsets=Interval(7, 7))),
        ("offset between 3 and 5", Predicate(offsets=Interval(3, 5))),
        ("offset in (9, 4)", Predicate(offsets=Interval(4, 9))),
        (f"timestamp >= '{late}'", Predicate(times_us=Interval(records[1200].timestamp * 1000))),
        ("topic in ('a', 'b')", Predicate((Condition("topic", "==", "a"),))),
        ("partition > 0", Predicate((Condition("topic", "==", "a"),))),
    ]
    whole = plan_read(options)
    for where, predicate in pairs:
        plan = plan_read(options, where)
        assert plan == plan_read(options, predicate), where
        assert plan.summary.bytes_read < whole.summary.bytes_read
    assert "offset >= 100 and offset <= 129" in str(pairs[0][1])


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ("value = 'x'", "at 'value'"),
        ("offset = 'x'", "at \"'x'\""),
        ("offset = 1 or offset = 2", "at 'or'"),
        ("offset >", "at its end"),
        ("offset ! 5", "at ' ! 5'"),
        ("topic like 'x%'", "at 'like'"),
        ("offset in (1; 2)", "at '; 2)'"),
        ("offset in (1 2)", "at '2'"),
        ("partition = offset", "at 'offset'"),
        ("timestamp > 'yesterday'", "'yesterday' is not a time"),
        ("", "at its end"),
    ],
)
def test_a_where_that_cannot_prune_is_an_error(where: str, at: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_read(_options("multiseg"), where)
    assert str(caught.value).startswith("where: ")
    assert at in str(caught.value)


def test_names_prune_directories(tmp_path: Path) -> None:
    for name in ("a-0", "a-1", "b-0"):
        (tmp_path / name).symlink_to(GoldenCase("multiseg").partition_dir)
    options = {"path": str(tmp_path), "subscribePattern": "[ab]"}
    assert plan_read(options).summary.partitions_read == 3
    predicate = Predicate((Condition("topic", "==", "a"), Condition("partition", "==", 1)))
    summary = plan_read(options, predicate).summary
    assert (summary.partitions, summary.partitions_read) == (3, 1)
    assert summary.bytes_read * 3 == summary.bytes_total
    assert "1 of 3 partitions" in str(summary)


# -- splits


@pytest.mark.parametrize(("asked", "given"), [(1, 4), (5, 4), (7, 8), (10, 12), (16, 16)])
def test_a_number_of_splits_is_met_as_the_connector_meets_it(
    tmp_path: Path, asked: int, given: int
) -> None:
    with open_logs(tmp_path, log_index_interval_bytes=10) as logs:
        logs.create_topic("t", 4)
        for number in range(4):
            for _ in range(50):
                logs.append("t", b"x" * 50, partition=number)
    plan = plan_read({"path": str(tmp_path), "subscribe": "t", "minPartitions": str(asked)})
    assert len(plan.splits) == given


@pytest.mark.slow
@pytest.mark.parametrize("asked", [2, 3, 300, 999, 1000, 5000])
def test_a_small_topic_is_divided_by_offsets(tmp_path: Path, asked: int) -> None:
    """One batch of 1,000 records: the index has no entry, the connector divides all the same."""
    write_segment(tmp_path / "t-0", 0, plain(0, 1000))
    given = {"path": str(tmp_path), "subscribe": "t", "minPartitions": str(asked)}
    plan, found = read_options(given)
    assert len(plan.splits) == min(asked, 1000)
    assert [record.offset for record in found[0]] == list(range(1000))
    sizes = [piece.offsets for split in plan.splits for piece in split.ranges]
    assert max(sizes) - min(sizes) <= 1


def test_shares_are_those_of_offsets(tmp_path: Path) -> None:
    """As the connector has it: 90 large records count as much as 90 small ones."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 2)
        for number in range(90):
            logs.append("t", b"x" * 5000, partition=0)
            logs.append("t", b"%d" % number, partition=1)
    plan, found = read_options({"path": str(tmp_path), "subscribe": "t", "minPartitions": "60"})
    taken = [split.ranges[0].topic_partition.partition for split in plan.splits]
    assert (taken.count(0), taken.count(1)) == (30, 30)
    assert [len(found[number]) for number in (0, 1)] == [90, 90]


def test_dividing_a_large_segment_looks_at_a_small_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the index has enough entries nothing is walked; where it has not, nothing twice."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        for _ in range(400):
            logs.append("t", b"x" * 50_000, partition=0)
    read = []
    original = LocalFile.read

    def counting(self: LocalFile, position: int, size_bytes: int) -> bytes:
        found = original(self, position, size_bytes)
        read.append(len(found))
        return found

    monkeypatch.setattr(LocalFile, "read", counting)
    options = {"path": str(tmp_path), "subscribe": "t"}
    whole = plan_read(options)
    for asked in (10, 400, 1000):
        read.clear()
        plan = plan_read({**options, "minPartitions": str(asked)})
        assert len(plan.splits) == min(asked, 400)
        # Each cut by the index is checked by reading its batch; headers are a few bytes.
        assert sum(read) < whole.summary.bytes_total * 1.2


@pytest.mark.parametrize(("parallelism", "tasks"), [(1, 1), (2, 2), (3, 3), (8, 3)])
def test_each_partition_has_a_task_as_far_as_tasks_run_at_once(
    tmp_path: Path, parallelism: int, tasks: int
) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 4)  # one of them stays empty
        for number, count in enumerate((50, 1, 1)):
            for _ in range(count):
                logs.append("t", b"x" * 100, partition=number)
    plan = read_planning.plan_read(replace(reading(tmp_path), parallelism=parallelism))
    assert len(plan.splits) == tasks
    assert sum(part.offsets for split in plan.splits for part in split.ranges) == 52
    # Neighbours share a task, and the large partition has one to itself.
    alone = [part.topic_partition.partition for part in plan.splits[0].ranges]
    assert alone == ([0, 1, 2] if parallelism == 1 else [0])


def test_a_task_of_many_partitions_has_its_share_of_bytes(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 20)
        for number in range(20):
            logs.append("t", b"x" * 1000, partition=number)
    plan = read_planning.plan_read(replace(reading(tmp_path), parallelism=6))
    assert [len(split.ranges) for split in plan.splits] == [4, 4, 3, 3, 3, 3]


def test_small_partitions_share_a_task_and_large_ones_are_cut(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"t-{number}").symlink_to(GoldenCase("multiseg").partition_dir)
    # Fifty segments, each at 4 MiB to open.
    assert len(read_planning.plan_read(reading(tmp_path)).splits) == 2
    plan = read_planning.plan_read(reading(tmp_path, {"splitBytes": "20000"}))
    assert max(split.size_bytes for split in plan.splits) < 21_000
    assert sum(split.size_bytes for split in plan.splits) == plan.summary.bytes_read


def test_splits_are_small_values() -> None:
    plan = plan_read(_options("txn", **{"kafka.isolation.level": "read_committed"}))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert len(pickle.dumps(plan)) < 1000 * len(plan.splits)
    assert "txn-0 offsets 0 to" in str(plan.splits[0])


# -- logs that change between planning and reading


def test_a_segment_that_was_replaced_is_read_by_offset(tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    plan = plan_read({"path": str(root), "subscribe": "multiseg"})
    for log in sorted((root / "multiseg-0").glob("*.log")):
        shutil.copy(log, log.with_suffix(".new"))  # another file under the same name
        log.with_suffix(".new").rename(log)
    assert read_plan(plan) == {0: visible(GoldenCase("multiseg"))}


@pytest.mark.parametrize(
    ("name", "limit"),
    [("splitBytes", "500"), ("minPartitions", "9"), ("maxRecordsPerPartition", "7")],
)
def test_a_partition_that_is_moved_before_it_is_divided(
    name: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, dirs = _movable(tmp_path)
    options[name] = limit
    expected = read_options(options)[1]

    def moved(view: PartitionView, part: SegmentRange) -> SegmentView:
        _move(dirs)
        return segment_of(view, part)

    monkeypatch.setattr(read_planning, "segment_of", moved)
    plan = plan_read(options)
    assert not (dirs[0] / "t-0").exists()
    assert read_plan(plan, paths=dirs) == expected


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_is_moved_before_its_range_is_pinned(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, dirs = _movable(tmp_path)
    options = batch_read_options({**given, "failOnDataLoss": fails})
    expected = pin_ranges(options)
    opened = read_planning.open_partitions

    def moved(*arguments: Any) -> Any:
        views = opened(*arguments)
        _move(dirs)
        return views

    monkeypatch.setattr(read_planning, "open_partitions", moved)
    assert pin_ranges(options) == expected
    assert [pinned.offsets for pinned in expected] == [OffsetRange(0, 60)]


def _movable(root: Path) -> tuple[dict[str, str], tuple[Path, Path]]:
    """Options that read a topic of one partition, and the log directories. It is in the first."""
    one, two = root / "one", root / "two"
    with open_logs(one, log_index_interval_bytes=100, log_segment_bytes=3000) as logs:
        for number in range(60):
            logs.append("t", b"%060d" % number)
    (two / "other-0").mkdir(parents=True)
    (two / "other-0" / "00000000000000000000.log").touch()
    return {"path": f"{one},{two}", "subscribe": "t"}, (one, two)


def _move(dirs: tuple[Path, Path]) -> None:
    """As a broker does it, if it has not done so yet."""
    source, target = (path / "t-0" for path in dirs)
    if source.exists():
        shutil.copytree(source, target)
        shutil.rmtree(source)


def test_a_segment_that_was_deleted_is_lost_data(tmp_path: Path) -> None:
    root = GoldenCase("multiseg").copy_to(tmp_path)
    plan = plan_read({"path": str(root), "subscribe": "multiseg"})
    first, second = sorted((root / "multiseg-0").glob("*.log"))[:2]
    first.unlink()
    with pytest.raises(DataLossError, match="Some data may have been lost"):
        read_plan(plan)
    found = read_plan(plan, fails_on_data_loss=False)
    start = int(second.stem)
    assert found == {0: tuple(r for r in visible(GoldenCase("multiseg")) if r.offset >= start)}


@pytest.mark.parametrize("in_place", [False, True])
def test_a_log_that_was_truncated_is_lost_data(in_place: bool, tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1)
        for number in range(10):
            logs.append("t", b"%d" % number, partition=0)
    plan = plan_read({"path": str(tmp_path), "subscribe": "t"})
    (log,) = (tmp_path / "t-0").glob("*.log")
    data = log.read_bytes()  # ten batches of one size
    other = log if in_place else log.with_suffix(".new")
    other.write_bytes(data[: len(data) * 6 // 10])
    other.rename(log)
    with pytest.raises(DataLossError, match="t-0 ends at offset 6, but was to be read up to 10"):
        read_plan(plan)
    found = read_plan(plan, fails_on_data_loss=False)
    assert [record.offset for record in found[0]] == list(range(6))


def test_a_live_log_gives_a_prefix_of_what_is_written(tmp_path: Path) -> None:
    """Whatever moment a query comes at: no gap, no torn batch, no error."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("t", 1, config={"segment.bytes": 3000})
        done = threading.Event()
        lengths: list[int] = []

        def write() -> None:
            for number in itertools.count():
                logs.append("t", b"%d" % number, partition=0)
                if number > 600:
                    time.sleep(0.001)  # until it was read often enough, however slow that is
                    if len(lengths) > 5:
                        break
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set():
            _, found = read_options({"path": str(tmp_path), "subscribe": "t", "splitBytes": "500"})
            values = [record.value for record in found.get(0, ())]
            assert values == [b"%d" % number for number in range(len(values))]
            lengths.append(len(values))
        writer.join()
    assert lengths == sorted(lengths)


# -- what cannot be read


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"subscribe": "no"}, UnknownTopicOrPartitionError, "no topic 'no'; topics here: multiseg"),
        ({"subscribePattern": "x.*"}, SourceError, r"no topic matches 'x\.\*'"),
        ({"assign": '{"multiseg":[0,3]}'}, UnknownTopicOrPartitionError, "multiseg-3: it has"),
        ({"startingOffsets": '{"multiseg":{"0":1,"1":1}}'}, ConfigError, "you must specify all"),
        ({"startingOffsets": '{"other":{"0":1}}'}, ConfigError, "Assigned: .multiseg-0"),
        (
            {"startingOffsetsByTimestamp": '{"other":{"0":1}}'},
            ConfigError,
            "^startingOffsetsByTimestamp: If startingOffsetsByTimestamp contains",
        ),
        ({"startingTimestamp": "9900000000000"}, SourceError, "multiseg-0 and timestamp 99000"),
        (
            {
                "startingOffsets": '{"multiseg":{"0":9}}',
                "endingOffsets": '{"multiseg":{"0":8}}',
            },
            SourceError,
            "starting offset 9 is beyond the ending offset 8",
        ),
        ({"endingOffsets": '{"multiseg":{"0":1501}}'}, DataLossError, "the log has 0 to 1500"),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, str], error: type[Exception], message: str) -> None:
    given = _options("multiseg")
    if "subscribePattern" in options or "assign" in options:
        del given["subscribe"]
    with pytest.raises(error, match=message) as caught:
        plan_read(given | options)
    assert "\n" not in str(caught.value)


def test_what_is_no_log_directory(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError, match="not a log directory"):
        plan_read({"path": str(tmp_path), "subscribe": "t"})
    with pytest.raises(NotALogDirError, match="no such directory"):
        plan_read({"path": str(tmp_path / "no"), "subscribe": "t"})


def test_an_end_that_is_not_there_yet_may_be_waived(caplog: pytest.LogCaptureFixture) -> None:
    end = {"endingOffsets": '{"multiseg":{"0":9999}}', "failOnDataLoss": "false"}
    _, found = read_options(_options("multiseg", **end))
    assert found == {0: visible(GoldenCase("multiseg"))}
    (warning,) = caplog.messages
    assert "lost: offsets 0 to 9999 of multiseg-0 were requested" in warning


def test_a_start_in_the_future_may_be_waived() -> None:
    late = {
        "startingTimestamp": "9900000000000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    plan, found = read_options(_options("multiseg", **late))
    assert (plan.splits, found) == ((), {})


def test_an_empty_split_reads_nothing() -> None:
    assert Split(()).size_bytes == 0
