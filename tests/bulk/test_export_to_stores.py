"""Exports directly into an object store."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from stratalog.bulk.export import SUCCESS, FileSpec, export, plan_export, run_export
from stratalog.bulk.incremental import STAGING_PREFIX, STATE_FILE, IncrementalTarget
from stratalog.bulk.options import ReadOptions, Subscription
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import (
    AccessDeniedError,
    ConfigError,
    JobError,
    LockedError,
    StorageError,
)
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store import Store
from stratalog.storage.tiered_store import TieredStore
from tests.bulk.backups import Kill, KilledError, fill, kills_in_store
from tests.bulk.options import reading
from tests.golden.cases import GOLDEN_DIR
from tests.golden_tiered import consumed, unpack
from tests.stores import Answer, FaultyProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores import CountingServer, Request, S3Server

MULTISEG = GOLDEN_DIR / "multiseg"


def names(where: RemotePath) -> list[str]:
    """All objects below, but for those that stand for directories."""
    from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415

    selector = FileSelector(where.key, recursive=True, allow_not_found=True)
    found = where.store.filesystem.get_file_info(selector)
    files = [each.path for each in found if each.type == FileType.File]
    return sorted(each.lstrip("/").removeprefix(f"{where.key}/") for each in files)


def offsets(where: RemotePath) -> list[tuple[int, int]]:
    """Partition and offset of each record that readers see."""
    found: list[tuple[int, int]] = []
    for name in names(where):
        if not name.startswith("topic="):
            continue
        file = where / name
        if name.endswith(".jsonl"):
            lines = file.read_bytes().splitlines()
            found += [(row["partition"], row["offset"]) for row in map(json.loads, lines)]
        else:
            table = ds.dataset(file.key, filesystem=where.store.filesystem).to_table()
            columns = (table.column("partition").to_pylist(), table.column("offset").to_pylist())
            found += zip(*columns, strict=True)
    return sorted(found)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_same_as_on_a_disk(kind: str, tmp_path: Path, seaweed: S3Server) -> None:
    where = seaweed.path(f"export-{kind}")
    spec = FileSpec("parquet" if kind == "parquet" else "jsonl")
    local = export(reading(MULTISEG), tmp_path / "out", spec)
    result = export(reading(MULTISEG), where, spec)
    assert (result.records, result.output_bytes) == (local.records, local.output_bytes)
    assert offsets(where) == [(0, offset) for offset in range(1500)]
    assert names(where)[0] == SUCCESS
    assert len(names(where)) == 1 + len(result.files)
    assert {file.path for file in result.files} == set(names(where)[1:])
    with pytest.raises(ConfigError, match="is not empty"):
        export(reading(MULTISEG), where, spec)
    export(reading(MULTISEG), where, FileSpec(spec.format, appends=True))
    assert len(offsets(where)) == 3000


def test_tiered_topics_into_a_store(tmp_path: Path, seaweed: S3Server) -> None:
    (case,) = (each for each in unpack(tmp_path) if str(each) == "lts-unclean")
    tier = TieredStore.found_at(case.remote)
    options = ReadOptions(tuple(case.log_dirs), Subscription(("fork",)), remote=tier)
    where = seaweed.path("export-tiered")
    result = export(options, where)
    (facts,) = (facts for _, _, facts in case.partitions())
    expected = [(0, row[0]) for row in consumed(facts, "read_uncommitted")]
    assert offsets(where) == expected
    assert result.records == len(expected)


def test_through_fsspec(tmp_path: Path) -> None:
    logs, uri = tmp_path / "logs", f"memory://{tmp_path.name}/out"
    for count in (10, 6):
        fill(logs, count, start=100)
        assert export(reading(logs), uri, incremental=True).records == count
    where = location(uri)
    assert isinstance(where, RemotePath)
    assert offsets(where) == [(number, offset) for number in (0, 1) for offset in range(8)]


def test_each_record_once(tmp_path: Path, seaweed: S3Server) -> None:
    logs, where = tmp_path / "logs", seaweed.path("export-more")
    for count in (10, 0, 6):
        fill(logs, count, start=100)
        assert export(reading(logs), where, incremental=True).records == count
    assert offsets(where) == [(number, offset) for number in (0, 1) for offset in range(8)]
    assert not [name for name in names(where) if name.startswith(STAGING_PREFIX)]
    with pytest.raises(ConfigError, match="has incremental exports"):
        export(reading(logs), where)


@pytest.mark.slow
@pytest.mark.parametrize("is_done", [False, True])
def test_killed_at_any_request(
    is_done: bool, tmp_path: Path, counting: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, spec = tmp_path / "logs", FileSpec("jsonl")
    fill(logs, 8)
    for requests in range(100):
        where, kill = counting.path(f"kill-{requests}"), Kill(requests)
        with (
            kills_in_store(monkeypatch, kill, is_done=is_done),
            suppress(KilledError),
            IncrementalTarget(where, spec.layout) as target,
        ):
            plan = plan_export(reading(logs), spec, target)
            run_export(plan, target, ThreadWorkers(1))
        seen = set(offsets(where))
        export(reading(logs), where, spec, incremental=True)
        assert offsets(where) == [(number, offset) for number in (0, 1) for offset in range(4)]
        assert seen <= set(offsets(where))
        if not kill.has_struck:
            break
    assert 4 < requests < 99


def test_another_export_is_noticed(tmp_path: Path, counting: CountingServer) -> None:
    logs, where, spec = tmp_path / "logs", counting.path("two"), FileSpec()
    fill(logs, 8)
    with IncrementalTarget(where, spec.layout) as target:
        plan = plan_export(reading(logs), spec, target)
        assert export(reading(logs), where, spec, incremental=True).records == 8
        with pytest.raises(LockedError, match="another incremental export"):
            run_export(plan, target)
    assert len(offsets(where)) == 8
    assert (where / STATE_FILE).exists()


def test_another_export_is_noticed_by_one_without_records(
    tmp_path: Path, counting: CountingServer
) -> None:
    logs, where, spec = tmp_path / "logs", counting.path("none"), FileSpec()
    other = location(str(where), {**counting.options, "s3.attempts.maximum": "4"})  # not its cache
    fill(logs, 8)
    export(reading(logs), where, spec, incremental=True)
    with IncrementalTarget(where, spec.layout) as target:
        plan = plan_export(reading(logs), spec, target)
        fill(logs, 8, start=100)
        assert export(reading(logs), other, spec, incremental=True).records == 8
        with pytest.raises(LockedError, match="another incremental export"):
            run_export(plan, target)
    assert export(reading(logs), where, spec, incremental=True).records == 0
    assert len(offsets(where)) == 16


def test_a_server_that_refuses(tmp_path: Path, counting: CountingServer) -> None:
    proxy = FaultyProxy(counting)
    try:
        where = proxy.server.path("refused")

        def refuse(request: Request) -> Answer | None:
            return Answer(403) if request.method in {"PUT", "POST"} else None

        proxy.fault = refuse
        with pytest.raises(JobError, match=r"s3://logs/refused") as caught:
            export(reading(MULTISEG), where)
        assert isinstance(caught.value.error, AccessDeniedError)
        assert "strata-secret" not in str(caught.value)
    finally:
        proxy.close()
    assert SUCCESS not in names(counting.path("refused"))


@pytest.mark.parametrize("is_incremental", [False, True])
def test_a_staged_file_that_the_store_does_not_find(
    is_incremental: bool, counting: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = counting.path("unfound")

    def lose(_store: Store, key: str, _target: str, path: RemotePath) -> None:
        where.store.delete(key, path)
        raise FileNotFoundError(2, "No such file", str(path))

    monkeypatch.setattr(Store, "move", lose)
    with pytest.raises(StorageError, match=r"s3://logs/unfound/_stratalog-"):
        export(reading(MULTISEG), where, incremental=is_incremental)
    assert SUCCESS not in names(where)
