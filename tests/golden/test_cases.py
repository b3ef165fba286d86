"""The golden data is all there, is what was copied, and is read as it is meant."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import (
    GOLDEN_DIR,
    CompactionCase,
    GoldenCase,
    all_cases,
    compaction_cases,
    dump_cases,
    log_dir_case,
)
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_every_file_is_what_was_copied() -> None:
    sums = (GOLDEN_DIR / "SHA256SUMS").read_text().splitlines()
    listed = {path: digest for digest, path in (line.split("  ", 1) for line in sums)}
    present = {
        path.relative_to(GOLDEN_DIR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for case in GOLDEN_DIR.iterdir()
        if case.is_dir() and case.name != "__pycache__"
        for path in case.rglob("*")
        if path.is_file()
    }
    assert present == listed


def test_no_case_is_missing() -> None:
    assert len(all_cases()) == 54
    assert len(dump_cases()) == 55
    assert len(compaction_cases()) == 38
    assert sum(case.is_unclean for case in all_cases()) == 9
    assert sum(case.offsets_for_times is not None for case in all_cases()) == 42


@pytest.mark.slow
@for_each("case", all_cases())
def test_manifest_belongs_to_the_case(case: GoldenCase) -> None:
    topic, partition = case.manifest["topic"], case.manifest["partition"]
    assert case.manifest["case"] == case.name
    assert {path.name for path in case.partition_dirs()} == {f"{topic}-{partition}"}
    assert len(case.partition_dirs()) == (2 if case.is_unclean else 1)
    assert {"segments", "records", "logEndOffset"} <= case.loaddir.keys()


@pytest.mark.slow
@for_each("case", dump_cases())
def test_every_data_file_has_its_dumps(case: GoldenCase) -> None:
    kinds = {
        ".log": {"headers", "deep", "data"},
        ".index": {"plain", "sanity"},
        ".timeindex": {"plain", "sanity"},
        ".snapshot": {"plain"},
        ".txnindex": {"plain"},
    }
    decoders = {"offsets", "txnlog", "metadata"}
    for directory in case.partition_dirs():
        dumps = case.dumps(directory)
        files = {path for path in directory.iterdir() if path.suffix in kinds}
        assert {name for name, _ in dumps} == {path.name for path in files}
        for path in files:
            of_file = {kind for name, kind in dumps if name == path.name}
            assert of_file - decoders == kinds[path.suffix]
            for kind in of_file:
                first_line = dumps[path.name, kind].stdout.split("\n", 1)[0]
                assert first_line == f"Dumping {path.relative_to(GOLDEN_DIR).as_posix()}"


def test_absolute_paths_in_dumps_are_those_of_this_checkout() -> None:
    torn = GoldenCase("u-torn")
    before = torn.partition_dirs()[0]
    dump = torn.dumps(before)["00000000000000000212.timeindex", "sanity"]
    assert dump.exception is not None
    assert f"({before}/00000000000000000212.timeindex)" in dump.exception
    assert torn.dumps(before)["00000000000000000212.timeindex", "plain"].stderr != ""


def test_log_dir_keeps_its_root_files() -> None:
    assert {path.name for path in log_dir_case().root.iterdir() if path.is_file()} == {
        ".kafka_cleanshutdown",
        "bootstrap.checkpoint",
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    }


def test_copy_is_writable_and_apart(tmp_path: Path) -> None:
    case = GoldenCase("txn-simple")
    copied = case.copy_to(tmp_path) / "txn-simple-0" / "00000000000000000000.log"
    before = copied.read_bytes()
    copied.write_bytes(b"")
    assert (case.partition_dir / copied.name).read_bytes() == before != b""


@pytest.mark.slow
@for_each("case", compaction_cases())
def test_compaction_case_unpacks(
    case: CompactionCase, compaction_dir: Callable[[str], Path]
) -> None:
    root = compaction_dir(case.name)
    partition = f"{case.case['topic']}-{case.case['partition']}"
    for step in case.case["rounds"]:
        for moment in ("before", "after"):
            if step[moment] is not None:
                _check_state(case, root / step[moment] / partition, step, moment)


def _check_state(
    case: CompactionCase, directory: Path, step: dict[str, object], moment: str
) -> None:
    segments = step[f"segments_{moment}"]
    assert isinstance(segments, list)
    for segment in segments:
        log = (directory / f"{segment['base_offset']:020d}.log").stat()
        assert log.st_size == segment["size"]
        assert log.st_mtime_ns == segment["mtime_ms"] * 1_000_000
    name = directory.parent.name
    assert case.dumps(name)["log"].stdout.startswith(
        f"Dumping {case.name}/{name}/{directory.name}/"
    )
    assert [entry["base_offset"] for entry in case.records(name)["segments"]] == [
        segment["base_offset"] for segment in segments
    ]
