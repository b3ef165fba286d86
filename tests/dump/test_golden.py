"""Every dump that Kafka's own tool made of the golden files, byte for byte, by both paths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.dump.dumping import OPTIONS, dump
from tests.golden.cases import (
    GOLDEN_DIR,
    CompactionCase,
    GoldenCase,
    compaction_cases,
    dump_cases,
)
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATHS = [pytest.param(False, id="readable"), pytest.param(True, id="compiled")]

# Kafka's tool lists what it found in several files in the order of a hash map over their absolute
# names, and the golden data does not tell the directory it ran in. With this one, the hash order of
# all 26 such lists is the one it printed.
COMPACTION_ROOT = "/data/kafka2240248"


@pytest.mark.slow
@pytest.mark.parametrize("is_bulk", PATHS)
@for_each("case", dump_cases())
def test_dump_is_kafkas(case: GoldenCase, is_bulk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN_DIR)
    compared = 0
    for directory in case.partition_dirs():
        for (name, kind), expected in case.dumps(directory).items():
            if is_bulk and not name.endswith(".log"):
                continue
            path = (directory / name).relative_to(GOLDEN_DIR)
            found = dump([path], replace(OPTIONS[kind], is_bulk=is_bulk))
            if expected.exception is not None:
                before, _, _ = expected.stdout.partition(expected.exception)
                assert found.stdout == before
                assert len(found.problems) == 1
            else:
                assert found.stdout == expected.stdout
                assert found.findings == expected.stderr
                assert found.problems == []
            compared += 1
    assert compared


@pytest.mark.slow
@pytest.mark.parametrize("is_bulk", PATHS)
@for_each("case", compaction_cases())
def test_dump_of_a_whole_directory_is_kafkas(
    case: CompactionCase,
    is_bulk: bool,
    compaction_dir: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = compaction_dir(case.name)
    monkeypatch.chdir(root.parent)
    moments = {step[moment] for step in case.case["rounds"] for moment in ("before", "after")}
    for moment in sorted(moments - {None}):
        for suffix, expected in case.dumps(moment).items():
            if is_bulk and suffix != "log":
                continue
            files = sorted(root.glob(f"{moment}/*/*.{suffix}"))
            options = OPTIONS["data"] if suffix == "log" else OPTIONS["plain"]
            found = dump(
                [file.relative_to(root.parent) for file in files],
                replace(options, is_bulk=is_bulk),
                absolute=lambda path: f"{COMPACTION_ROOT}/{path}",
            )
            assert found.stdout == expected.stdout
            assert found.findings == expected.stderr.replace("@ROOT@", COMPACTION_ROOT)
            assert found.problems == []
