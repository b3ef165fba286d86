"""Logs in stores: the same records as on a disk, and few requests for them."""

from __future__ import annotations

import gc
import pickle
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import stratalog
from stratalog.bulk.options import ReadOptions, Subscription
from stratalog.bulk.read_planning import plan_read
from stratalog.bulk.read_task import ReadTask
from stratalog.cli.main import app
from stratalog.errors import (
    AccessDeniedError,
    CorruptBatchError,
    SegmentGoneError,
    StoreError,
    StratalogError,
)
from stratalog.log.partition_view import PartitionView, read_topic_id
from stratalog.log.reader import IsolationLevel
from stratalog.storage import remote_file, segment_view
from stratalog.storage import store as stores
from stratalog.storage.log_file import open_file
from stratalog.storage.remote_file import ranges_of
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store import noted_fetches
from tests.golden.cases import GoldenCase, all_cases
from tests.stores import Answer, FaultyProxy, file_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores import CountingServer, Request, S3Server

FIRST_MS = 1_700_000_000_000
LEVELS = tuple(IsolationLevel)


def logs_of(case: GoldenCase) -> list[Path]:
    return [path for path in case.partition_dirs() if any(path.glob("*.log"))]


def assert_equal_logs(local: PartitionView, remote: PartitionView) -> None:
    """Offsets, records and columns, or the same error."""
    assert remote.log_start_offset == local.log_start_offset
    assert remote.log_end_offset == local.log_end_offset
    assert remote.last_stable_offset == local.last_stable_offset
    for isolation in LEVELS:
        expected = _read(local, isolation)
        assert _read(remote, isolation) == expected
        if not isinstance(expected, str):
            columns = remote.read_columns(isolation=isolation).read_all()
            assert columns.equals(local.read_columns(isolation=isolation).read_all())


def _read(view: PartitionView, isolation: IsolationLevel) -> object:
    try:
        return list(view.read(isolation=isolation))
    except StratalogError as error:
        return str(error).rpartition("/")[2]


@pytest.fixture(scope="module")
def golden_uris(seaweed: S3Server) -> dict[GoldenCase, str]:
    """Where every golden log directory is in the store."""
    return {case: seaweed.upload(case.root, f"golden/{case.name}") for case in all_cases()}


@pytest.mark.slow
def test_golden_logs_are_the_same_in_s3(
    seaweed: S3Server, golden_uris: dict[GoldenCase, str]
) -> None:
    for case, uri in golden_uris.items():
        for local in logs_of(case):
            path = location(f"{uri}/{local.relative_to(case.root)}", seaweed.options)
            with PartitionView(local) as disk, PartitionView(path) as remote:
                assert_equal_logs(disk, remote)


@pytest.mark.slow
def test_splits_of_golden_logs_are_the_same_in_s3(
    seaweed: S3Server, golden_uris: dict[GoldenCase, str]
) -> None:
    compared = 0
    for case, uri in golden_uris.items():
        for isolation, count in zip(LEVELS, (None, 7), strict=True):
            places = (case.root, location(uri, seaweed.options))
            expected, found = (_split_rows(path, isolation, count) for path in places)
            assert found == expected, (case, isolation, count)
            compared += not isinstance(found, str)
    assert compared > 50


def _split_rows(path: Path, isolation: IsolationLevel, count: int | None) -> object:
    """As tasks on workers read them."""
    schema = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
    options = ReadOptions((path,), Subscription(pattern=".*"), isolation=isolation)
    try:
        splits = plan_read(replace(options, min_partitions=count)).splits
        task = ReadTask(schema)
        read = [batch for split in pickle.loads(pickle.dumps(splits)) for batch in task.read(split)]
    except StratalogError as error:
        return type(error).__name__
    return sorted(
        (
            (row["topic"], row["offset"], row["value"])
            for batch in read
            for row in batch.to_pylist()
        ),
        key=lambda row: row[:2],
    )


def test_a_golden_log_is_the_same_through_fsspec(golden: object) -> None:
    import fsspec  # noqa: PLC0415

    case = GoldenCase("txn")
    store = fsspec.filesystem("memory")
    for local in logs_of(case):
        for file in local.iterdir():
            store.pipe_file(f"/fsspec-logs/{local.name}/{file.name}", file.read_bytes())
        path = location(f"memory://fsspec-logs/{local.name}", {})
        with PartitionView(local) as disk, PartitionView(path) as remote:
            assert_equal_logs(disk, remote)


def test_a_file_uri_is_a_local_path() -> None:
    case = GoldenCase("txn")
    local = logs_of(case)[0]
    found = location(local.as_uri())
    assert found == local
    assert type(found) is type(local)
    with stratalog.open_partition(local.as_uri()) as one, stratalog.open_partition(local) as other:
        assert list(one.read()) == list(other.read())


# -- requests


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of a hundred segments and more, a record a second."""
    tmp_path = tmp_path_factory.mktemp("hundred")
    with stratalog.LogDir.open(tmp_path / "data") as logs:
        logs.create_topic("orders", partitions=1, config={"segment.bytes": "8000"})
        with logs.producer(batch_bytes=1500) as producer:
            for number in range(6500):
                key = b"%d" % number
                producer.append("orders", b"v" * 100, key=key, timestamp=FIRST_MS + number * 1000)
    return tmp_path / "data"


@pytest.fixture(scope="module", params=["small", "large"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker has: a topic of a hundred segments of 8 KB or of 600 KB, and checkpoints."""
    is_small = request.param == "small"
    config = {"segment.bytes": "8000" if is_small else "600000"}
    value, batch_bytes, count = (b"v" * 100, 1500, 6500) if is_small else (b"v" * 4000, 4500, 14800)
    root = tmp_path_factory.mktemp(request.param)
    with stratalog.LogDir.open(root) as logs:
        logs.create_topic("orders", partitions=1, config=config)
        with logs.producer(batch_bytes=batch_bytes, linger_ms=60_000) as producer:
            for number in range(count):
                time = FIRST_MS + number * 1000
                producer.append("orders", value, key=b"%d" % number, timestamp=time)
    for name in ("recovery-point-offset", "replication-offset", "cleaner-offset"):
        (root / f"{name}-checkpoint").write_text(f"0\n1\norders 0 {count}\n")
    (root / "log-start-offset-checkpoint").write_text("0\n2\norders 0 0\nother 3 17\n")
    (root / "meta.properties").write_text("version=1\nbroker.id=1\n")
    (root / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (root / "stratalog-state.json").unlink()
    (root / ".kafka_cleanshutdown").unlink()
    return root


REQUESTS_MAX = 12


def test_a_point_query_takes_few_requests(counting: CountingServer, broker: Path) -> None:
    uri = counting.upload(broker, "broker")
    local = stratalog.open_dirs(broker).partition("orders", 0)
    bases = local.segments.bases
    assert len(bases) >= 100
    middle = bases[50] + 3
    for number in (0, bases[1], middle, bases[-1] - 1, local.log_end_offset - 1):
        for ask in (_by_offset, _by_time, _by_time_only, _one_record):
            with _few_requests(counting):
                remote = stratalog.open_dirs(uri, storage_options=counting.options)
                with remote.partition("orders", 0) as view:
                    assert ask(view, number) == number
    for when in (5, FIRST_MS + 10**12):
        with _few_requests(counting):
            remote = stratalog.open_dirs(uri, storage_options=counting.options)
            with remote.partition("orders", 0) as view:
                assert view.find_time(when) == local.find_time(when)


def test_a_point_query_of_larger_segments_takes_few_requests(
    counting: CountingServer, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are not fetched whole."""
    for module in (remote_file, segment_view):
        monkeypatch.setattr(module, "WHOLE_FILE_BYTES", 4096)
    uri = counting.upload(broker, "larger")
    local = stratalog.open_dirs(broker).partition("orders", 0)
    bases, end = local.segments.bases, local.log_end_offset
    for number in (0, bases[1], bases[50] + 3, bases[-1] - 1, bases[-1], end - 1):
        for ask in (_by_offset, _by_time_only, _one_record):
            with _few_requests(counting):
                remote = stratalog.open_dirs(uri, storage_options=counting.options)
                with remote.partition("orders", 0) as view:
                    assert ask(view, number) == number


def test_a_point_query_of_the_command_line_takes_few_requests(
    counting: CountingServer, broker: Path
) -> None:
    uri = counting.upload(broker, "command")
    bases = stratalog.open_dirs(broker).partition("orders", 0).segments.bases
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    for number in (bases[1], bases[-1] + 1):
        offset, when = str(number), str(FIRST_MS + number * 1000)
        for command in (
            ["find", "--offset", offset],
            ["find", "--time", when],
            ["explain", "--offset", offset],
            ["explain", "--time", when],
            ["read", "--json", "-n", "1", "--from", offset],
            ["read", "--json", "-n", "1", "--from", f"@{when}"],
        ):
            with _few_requests(counting):
                result = CliRunner().invoke(app, [*command, "orders:0", "-d", uri, *options])
                assert not result.exit_code, result.output
                assert str(number) in result.output


@contextmanager
def _few_requests(counting: CountingServer) -> Iterator[None]:
    """Of a process that has not asked the store before."""
    stores.store_of.cache_clear()
    counting.requests.clear()
    with noted_fetches() as noted:
        yield
    asked = [f"{each.what} {each.path} {each.position} {each.size_bytes}" for each in noted]
    assert len(counting.requests) <= REQUESTS_MAX, "\n".join(map(str, [*counting.requests, *asked]))


def _by_offset(view: PartitionView, number: int) -> int:
    found = view.locate(number)
    assert found is not None
    return found.record.offset


def _by_time_only(view: PartitionView, number: int) -> int:
    found = view.find_time(FIRST_MS + number * 1000)
    assert found is not None
    return found.offset


def _by_time(view: PartitionView, number: int) -> int:
    return _by_offset(view, _by_time_only(view, number))


def _one_record(view: PartitionView, number: int) -> int:
    (record,) = view.read(number, max_records=1)
    return record.offset


def test_planning_a_thousand_segments_lists_only(counting: CountingServer, tmp_path: Path) -> None:
    case = GoldenCase("multiseg")
    log = max(logs_of(case)[0].glob("*.log"), key=lambda path: path.stat().st_size)
    content = log.read_bytes()
    batch = content[8 : 12 + int.from_bytes(content[8:12])]
    for number in range(1000):
        base = 1000 * number
        counting.put(f"many/orders-0/{base:020d}.log", base.to_bytes(8) + batch)
        counting.put(f"many/orders-0/{base:020d}.index", b"")
        counting.put(f"many/orders-0/{base:020d}.timeindex", b"")
    counting.put("many/meta.properties", b"version=1\n")
    counting.requests.clear()
    path = location(counting.uri("many"), counting.options)
    options = ReadOptions(paths=(path,), subscription=Subscription(topics=("orders",)))
    plan = plan_read(options)
    assert plan.summary.segments == 1000
    assert counting.count("HEAD") <= 3
    assert counting.count("GET") <= 5
    assert plan.summary.requests >= 1000


@pytest.mark.slow
def test_a_scan_takes_large_ranges(tmp_path: Path) -> None:
    """One segment of 256 MiB: at most a request per 8 MiB, and five."""
    size_bytes = 256 << 20
    with stratalog.LogDir.open(tmp_path / "data") as logs:
        logs.create_topic("big", partitions=1, config={"segment.bytes": str(1 << 30)})
        with logs.producer(batch_bytes=1 << 20) as producer:
            for number in range(size_bytes // (1 << 18)):
                producer.append("big", b"%6d" % number * ((1 << 18) // 6), timestamp=FIRST_MS)
    local = stratalog.open_dirs(tmp_path / "data").partition("big", 0)
    (segment,) = local.segments
    with file_server(tmp_path) as server, noted_fetches() as noted:
        uri = server.uri("data")
        remote = stratalog.open_dirs(uri, storage_options=server.options).partition("big", 0)
        count = sum(batch.num_rows for batch in remote.read_columns(columns=["offset", "value"]))
    assert count == local.log_end_offset
    assert server.count("GET") <= segment.size_bytes / (8 << 20) + 5
    assert server.count("HEAD") <= 8
    log = remote.segments[0].path
    ranges = [each for each in noted if each.what == "range" and each.path == log]
    assert max(each.size_bytes for each in ranges) == 16 << 20
    assert ranges_of(0, segment.size_bytes) <= len(ranges) <= ranges_of(0, segment.size_bytes) + 4
    gc.collect()


def test_reading_a_few_records_does_not_fetch_the_segment(
    counting: CountingServer, tmp_path: Path
) -> None:
    with stratalog.LogDir.open(tmp_path / "data") as logs:
        logs.create_topic("big", partitions=1)
        with logs.producer(batch_bytes=1 << 16) as producer:
            for number in range(40 << 4):
                producer.append("big", b"%6d" % number * (1 << 14), timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "data", "few")
    remote = stratalog.open_dirs(uri, storage_options=counting.options).partition("big", 0)
    with noted_fetches() as noted:
        assert [record.offset for record in remote.read(100, max_records=3)] == [100, 101, 102]
    assert sum(each.size_bytes for each in noted) < 12 << 20 < remote.size_bytes


def test_late_records_of_a_long_log_are_found(counting: CountingServer, tmp_path: Path) -> None:
    """What `since` leaves out is decided by timestamp, not by position, in a store as well."""
    with stratalog.LogDir.open(tmp_path / "data") as logs:
        logs.create_topic("late", partitions=1, config={"segment.bytes": "400"})
        with logs.producer(batch_bytes=100) as producer:
            for number in range(200):
                late_by = -10_000_000 if number == 13 else 0
                time = FIRST_MS + number * 1000 - late_by
                producer.append("late", b"v" * 60, timestamp=time)
    uri = counting.upload(tmp_path / "data", "late")
    remote = stratalog.open_dirs(uri, storage_options=counting.options).partition("late", 0)
    assert len(remote.segments) > 32
    since = FIRST_MS + 190 * 1000
    assert [each.offset for each in remote.read(since=since)] == [13, *range(190, 200)]


# -- faults


@pytest.fixture
def proxy(counting: CountingServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    monkeypatch.setattr(stores, "FIRST_DELAY_S", 0.01)
    found = FaultyProxy(counting)
    yield found
    found.close()


def uploaded(counting: CountingServer, hundred: Path, key: str) -> str:
    return f"{counting.upload(hundred, key)}/orders-0"


class Once:
    """A fault for the first request of each object."""

    def __init__(self, answer: Answer, of: str = ".log") -> None:
        self._answer, self._of = answer, of
        self._seen: set[str] = set()

    def __call__(self, request: Request) -> Answer | None:
        if self._of not in request.target or request.target in self._seen:
            return None
        self._seen.add(request.target)
        return self._answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Once(Answer(status=503)),
        Once(Answer(status=500), of="list-type"),
        Once(Answer(cut_after=100)),
        Once(Answer(delay_s=0.3), of="0000500"),
    ],
    ids=["503", "500-on-list", "cut", "slow"],
)
def test_passing_faults_are_retried(
    counting: CountingServer, proxy: FaultyProxy, hundred: Path, fault: Once
) -> None:
    uri = uploaded(counting, hundred, "passing")
    local = stratalog.open_partition(hundred / "orders-0")
    proxy.fault = fault
    remote = stratalog.open_partition(uri, storage_options=proxy.server.options)
    assert [record.offset for record in remote.read(5000)] == list(range(5000, 6500))
    assert remote.read_columns(5000).read_all().equals(local.read_columns(5000).read_all())


@pytest.mark.slow
def test_a_server_that_stays_down_is_a_typed_error(
    counting: CountingServer, proxy: FaultyProxy, hundred: Path
) -> None:
    uri = uploaded(counting, hundred, "down")
    remote = stratalog.open_partition(
        uri, storage_options={**proxy.server.options, "s3.attempts.maximum": "2"}
    )
    proxy.fault = lambda request: Answer(status=503) if ".log" in request.target else None
    with pytest.raises(StoreError, match=r"s3://logs/down/orders-0/\d{20}\.log.*2 attempts"):
        list(remote.read())


def test_a_denied_key_is_a_typed_error(
    counting: CountingServer, proxy: FaultyProxy, hundred: Path
) -> None:
    uri = uploaded(counting, hundred, "denied")
    remote = stratalog.open_partition(uri, storage_options=proxy.server.options)
    slot = len(remote.segments) // 2
    name = remote.segments[slot].path.name
    proxy.fault = lambda request: Answer(status=403) if name in request.target else None
    with pytest.raises(AccessDeniedError, match=name) as raised:
        list(remote.read())
    assert "strata-secret" not in str(raised.value)
    proxy.fault = lambda _: None
    assert sum(1 for _ in remote.read()) == 6500


@pytest.mark.parametrize("reads_columns", [False, True], ids=["records", "columns"])
def test_a_lost_object_is_a_typed_error(
    counting: CountingServer, hundred: Path, reads_columns: bool
) -> None:
    uri = uploaded(counting, hundred, "lost")
    remote = stratalog.open_partition(uri, storage_options=counting.options)
    lost = remote.segments[len(remote.segments) // 2].path
    counting.remove(f"lost/orders-0/{lost.name}")
    read = remote.read_columns().read_all if reads_columns else lambda: list(remote.read())
    with pytest.raises(SegmentGoneError, match=lost.name):
        read()


@pytest.mark.slow
def test_an_object_that_changes_while_it_is_scanned_is_a_typed_error(
    counting: CountingServer, tmp_path: Path
) -> None:
    """With the same size, in the same second, between two batches."""
    with stratalog.LogDir.open(tmp_path / "data") as logs:
        logs.create_topic("big", partitions=1)
        with logs.producer(batch_bytes=1 << 16) as producer:
            for number in range(1200):
                producer.append("big", b"%6d" % number * (1 << 13), timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "data", "changed")
    remote = stratalog.open_dirs(uri, storage_options=counting.options).partition("big", 0)
    (log,) = (tmp_path / "data" / "big-0").glob("*.log")
    other = bytearray(log.read_bytes())
    other[-1] ^= 1
    batches = remote.read_columns(columns=["offset"])
    next(batches)
    counting.put(f"changed/big-0/{log.name}", bytes(other))
    with pytest.raises((SegmentGoneError, StratalogError), match=log.name):
        batches.read_all()


@pytest.mark.parametrize("is_listed_again", [False, True])
def test_a_small_object_of_the_same_size_is_not_taken_for_the_listed_one(
    counting: CountingServer, hundred: Path, is_listed_again: bool
) -> None:
    place = f"same-size-{is_listed_again}"
    uri = uploaded(counting, hundred, place)
    remote = stratalog.open_partition(uri, storage_options=counting.options)
    path = remote.segments[3].path
    assert isinstance(path, RemotePath)
    file = open_file(path, remote.segments[3].identity)
    time.sleep(1.1)  # times of objects are in seconds
    other = bytes(remote.segments[3].size_bytes)
    counting.put(f"{place}/orders-0/{path.name}", other)
    if is_listed_again:  # what is kept for the new listing is not what the old one has
        path.parent.listed(age_max_s=0.0)
        assert path.read_bytes() == other
    for _ in range(2):
        with pytest.raises(SegmentGoneError, match=path.name):
            file.read(0, 10)
    with pytest.raises(SegmentGoneError, match=path.name):
        list(remote.read())
    path.parent.listed(age_max_s=0.0)
    assert open_file(path).read(0, 10) == bytes(10)


@pytest.mark.parametrize("reads_columns", [False, True], ids=["records", "columns"])
@pytest.mark.parametrize("value_bytes", [100, 2 << 20], ids=["whole", "range"])
def test_an_object_that_is_replaced_after_it_was_opened_is_a_typed_error(
    counting: CountingServer,
    proxy: FaultyProxy,
    tmp_path: Path,
    value_bytes: int,
    reads_columns: bool,
) -> None:
    """With the same size, in the same second, between the requests for its size and its bytes."""
    for key, value in ("before", b"1"), ("after", b"2"):
        with stratalog.LogDir.open(tmp_path / key) as logs:
            config = {"segment.bytes": f"{value_bytes + 100}", "max.message.bytes": f"{3 << 20}"}
            logs.create_topic("orders", partitions=1, config=config)
            for _ in range(2):  # each in its own segment
                logs.append("orders", value * value_bytes, timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "before", "opened")
    first = min((tmp_path / "after/orders-0").glob("*.log"))

    def replace(request: Request) -> None:
        if request.method == "GET" and request.target.endswith(first.name):
            counting.put(f"opened/orders-0/{first.name}", first.read_bytes())

    proxy.fault = replace
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    assert len(view.segments) == 2
    with pytest.raises(SegmentGoneError, match=first.name):
        _ = view.read_columns().read_all() if reads_columns else list(view.read())


@pytest.mark.parametrize("is_passing", [True, False])
@pytest.mark.parametrize("value_bytes", [100, 2 << 20], ids=["whole", "range"])
def test_a_short_response_is_not_taken_for_a_range(
    counting: CountingServer,
    proxy: FaultyProxy,
    tmp_path: Path,
    value_bytes: int,
    is_passing: bool,
) -> None:
    """With a Content-Length that is right: what is missing would be what the memory had before."""
    with stratalog.LogDir.open(tmp_path) as logs:
        logs.create_topic("orders", partitions=1, config={"max.message.bytes": f"{3 << 20}"})
        for number in range(3):
            logs.append("orders", b"%d" % number * value_bytes, timestamp=FIRST_MS)
    uri = counting.upload(tmp_path, f"short/{value_bytes}/{is_passing}")
    seen = set()

    def shorten(request: Request) -> Answer | None:
        if request.method != "GET" or ".log" not in request.target:
            return None
        if is_passing and request.target in seen:
            return None
        seen.add(request.target)
        return Answer(length=50)

    proxy.fault = shorten
    options = {**proxy.server.options, "s3.attempts.maximum": "3"}
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=options)
    if is_passing:
        assert [record.value for record in view.read()] == [
            b"%d" % number * value_bytes for number in range(3)
        ]
    else:
        with pytest.raises(StoreError, match=r"orders-0/0{20}\.log.*3 attempts"):
            list(view.read())


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    counting: CountingServer, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Of the longer content, the size of the shorter one would be a smaller number."""
    with stratalog.LogDir.open(tmp_path) as writer:
        for _ in range(2000):
            writer.append("orders", b"value")
        writer.delete_records("orders", 0, before_offset=15)
    uri = counting.upload(tmp_path, "torn")
    name = "log-start-offset-checkpoint"

    def replace(request: Request) -> None:
        if request.method == "GET" and request.target.endswith(name):
            counting.put(f"torn/{name}", b"0\n1\norders 0 1555\n")

    proxy.fault = replace
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    assert view.log_start_offset == 1555


def test_a_checkpoint_that_changes_each_time_is_a_typed_error(
    counting: CountingServer, proxy: FaultyProxy, tmp_path: Path
) -> None:
    with stratalog.LogDir.open(tmp_path) as writer:
        writer.append("orders", b"value")
        writer.delete_records("orders", 0, before_offset=1)
    uri = counting.upload(tmp_path, "restless")
    name = "log-start-offset-checkpoint"
    longer = (10**digits for digits in range(1, 19))  # what is cut off is not taken for complete

    def replace(request: Request) -> None:
        if request.method == "GET" and request.target.endswith(name):
            counting.put(f"restless/{name}", b"0\n1\norders 0 %d\n" % next(longer))

    proxy.fault = replace
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    with pytest.raises(StoreError, match=f"{name}.*replaced each time"):
        _ = view.log_start_offset


def test_a_limited_read_does_not_mix_versions(
    counting: CountingServer, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Replaced between two ranges of a read that ends inside the segment."""
    for key, value in ("before", b"1"), ("after", b"2"):
        with stratalog.LogDir.open(tmp_path / key) as logs:
            logs.create_topic("orders", partitions=1)
            for _ in range(40):
                logs.append("orders", value * (100 << 10), timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "before", "mixed")
    (log,) = (tmp_path / "after/orders-0").glob("*.log")
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    assert view.log_end_offset == 40
    records = view.read(max_records=35)
    assert (next(records).value or b"")[:1] == b"1"
    counting.put(f"mixed/orders-0/{log.name}", log.read_bytes())
    with pytest.raises(SegmentGoneError, match=log.name):
        list(records)


def test_a_lookup_does_not_mix_versions(
    counting: CountingServer, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Replaced between two ranges of a lookup, with the same size, in the same second."""
    for key, value in ("before", b"1"), ("after", b"2"):
        with stratalog.LogDir.open(tmp_path / key) as logs:
            logs.create_topic("orders", partitions=1, config={"segment.bytes": "4000000"})
            for _ in range(50):
                logs.append("orders", value * (100 << 10), timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "before", "lookup")
    log = min((tmp_path / "after/orders-0").glob("*.log"))
    view = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    assert len(view.segments) == 2
    first = view.locate(1)
    assert first is not None
    counting.put(f"lookup/orders-0/{log.name}", log.read_bytes())
    file = view.segments[0].file
    assert view.locate(30) is not None  # from a new listing
    assert view.segments[0].file is not file


def test_a_segment_that_was_looked_up_is_compared_when_it_is_scanned(
    counting: CountingServer, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """A lookup need not: what it returns came with one response."""
    for key, value in ("before", b"1"), ("after", b"2"):
        with stratalog.LogDir.open(tmp_path / key) as logs:
            logs.create_topic("orders", partitions=1, config={"segment.bytes": "1500"})
            for _ in range(2):
                logs.append("orders", value * 1000, timestamp=FIRST_MS)
    uri = counting.upload(tmp_path / "before", "kept")
    log = min((tmp_path / "after/orders-0").glob("*.log"))
    with stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options) as view:
        found = view.locate(0)
        assert found is not None
        assert found.record.value == b"1" * 1000
    counting.put(f"kept/orders-0/{log.name}", log.read_bytes())
    with pytest.raises(SegmentGoneError, match=log.name):
        list(view.read())
    again = stratalog.open_partition(f"{uri}/orders-0", storage_options=proxy.server.options)
    assert [record.value for record in again.read()] == [b"2" * 1000, b"1" * 1000]


def test_a_segment_with_the_content_of_another_is_not_found_by_time(
    counting: CountingServer, hundred: Path
) -> None:
    """The segments between the two would be passed over."""
    uri = uploaded(counting, hundred, "other")
    logs = sorted((hundred / "orders-0").glob("*.log"))
    counting.put(f"other/orders-0/{logs[2].name}", logs[9].read_bytes())
    view = stratalog.open_partition(uri, storage_options=counting.options)
    with pytest.raises(CorruptBatchError, match=logs[2].name):
        list(view.read(since=FIRST_MS + int(logs[2].stem) * 1000))


def test_a_log_does_not_shrink_in_silence(counting: CountingServer, hundred: Path) -> None:
    uri = uploaded(counting, hundred, "shrunk")
    view = stratalog.open_partition(uri, storage_options=counting.options)
    assert view.log_end_offset == 6500
    last = view.segments[len(view.segments) - 1]
    assert isinstance(last.path, RemotePath)
    view.close()
    older = (hundred / "orders-0" / last.path.name).read_bytes()[: last.size_bytes // 2]
    counting.put(f"shrunk/orders-0/{last.path.name}", older)
    with pytest.raises(SegmentGoneError, match=last.path.name):
        view.refresh_segments()


@pytest.mark.parametrize(
    "name", ["log-start-offset-checkpoint", "leader-epoch-checkpoint", "partition.metadata"]
)
def test_a_listed_file_that_is_not_found_does_not_count_as_absent(
    counting: CountingServer, tmp_path: Path, name: str
) -> None:
    with stratalog.LogDir.open(tmp_path) as writer:
        for _ in range(10):
            writer.append("orders", b"value")
        writer.delete_records("orders", 0, before_offset=5)
    uri = counting.upload(tmp_path, f"not-found/{name}")
    logs = stratalog.open_dirs(uri, storage_options=counting.options)
    view = logs.partition("orders", 0)
    place = "" if name.startswith("log-start") else "orders-0/"
    counting.remove(f"not-found/{name}/{place}{name}")
    with pytest.raises(StoreError, match=f"{name}.*has listed this object"):
        _ = view.log_start_offset, view.leader_epochs, read_topic_id(view.path)
    again = stratalog.open_dirs(location(uri, {**counting.options, "s3.attempts.maximum": "1"}))
    assert again.partition("orders", 0).log_start_offset == (0 if name.startswith("log") else 5)


def test_an_object_that_changed_since_it_was_listed_is_a_typed_error(
    counting: CountingServer, hundred: Path
) -> None:
    uri = uploaded(counting, hundred, "replaced")
    remote = stratalog.open_partition(uri, storage_options=counting.options)
    name = remote.segments[3].path.name
    counting.put(f"replaced/orders-0/{name}", b"another object")
    with pytest.raises(SegmentGoneError, match=name):
        list(remote.read())
