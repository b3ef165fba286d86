from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from numba import types
from numba.core import config

from stratalog.format.kernels import jit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package directory with one source file, and a home directory."""
    here = tmp_path / "package"
    here.mkdir()
    (here / "a.py").write_text("one")
    monkeypatch.setattr(jit, "_HERE", here)
    monkeypatch.setattr(jit, "_SOURCES", (here,))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return here


def test_every_module_with_kernels_counts_as_a_source() -> None:
    package = jit._HERE.parents[1]
    compiled = re.compile(r"^@(kernel|inlined|not_inlined|ast_inlined)\b", re.MULTILINE)
    users = [path for path in package.rglob("*.py") if compiled.search(path.read_text())]
    assert jit._HERE / "crc.py" in users
    assert {path.parent for path in users} == set(jit._SOURCES)


def make_unwritable(directory: Path) -> None:
    """In a way that stops root as well: what should be a directory is a file."""
    directory.write_text("")


def test_machine_code_is_kept_beside_the_source(package: Path) -> None:
    chosen = jit._cache_dir()
    assert chosen is not None
    assert chosen.parent == package / "__pycache__"
    assert jit._cache_dir() == chosen


def test_another_source_gets_another_place_and_the_old_one_goes(package: Path) -> None:
    before = jit._cache_dir()
    (package / "a.py").write_text("two")
    after = jit._cache_dir()
    assert before is not None
    assert after is not None
    assert before != after
    assert after.is_dir()
    assert not before.exists()


def test_in_the_users_cache_where_the_package_is_read_only(package: Path, tmp_path: Path) -> None:
    make_unwritable(package / "__pycache__")
    chosen = jit._cache_dir()
    assert chosen is not None
    assert chosen.parent == tmp_path / "home" / ".cache" / "stratalog"


def test_nowhere_is_no_error(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unwritable(package / "__pycache__")
    make_unwritable(tmp_path / "home")
    assert jit._cache_dir() is None
    monkeypatch.setattr(jit, "_CACHE", None)

    @jit.kernel(types.int64(types.int64))
    def double(number: int) -> int:
        return number * 2

    assert double(21) == 42


def test_the_setting_of_other_users_of_numba_is_left_alone() -> None:
    given = config.CACHE_DIR

    @jit.kernel(types.int64(types.int64))
    def triple(number: int) -> int:
        return number * 3

    assert triple(5) == 15
    assert given == config.CACHE_DIR


def test_compiling_for_long_is_logged_once(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jit, "_CACHE", jit._cache_dir())
    monkeypatch.setattr(jit, "compilation", jit.Compilation())
    caplog.set_level("INFO", "stratalog.format.kernels")

    def compile_one() -> None:
        @jit.kernel(types.int64(types.int64))
        def fourfold(number: int) -> int:
            return number * 4

    compile_one()
    assert caplog.messages == []
    assert jit.compilation.compiled == 1
    monkeypatch.setattr(jit, "REPORTED_AFTER_S", 0.0)
    for _ in range(2):  # from the cache
        compile_one()
    assert (jit.compilation.loaded, jit.compilation.compiled, caplog.messages) == (2, 1, [])
    monkeypatch.setattr(jit, "_CACHE", None)
    for _ in range(2):
        compile_one()
    assert caplog.messages == [
        "compiling kernels for this machine: "
        "they cannot be cached, because no directory for them is writable"
    ]


@pytest.mark.slow
def test_the_way_without_the_instruction(tmp_path: Path) -> None:
    """A CPU without it, or code compiled for another CPU, falls back to tables."""
    code = (
        "from stratalog.format import batch_table as t\n"
        "from stratalog.format.kernels import crc\n"
        "from stratalog.format.record import Record, encode_batch\n"
        "assert not crc.HAS_INSTRUCTION\n"
        "raw = b''.join(encode_batch([Record(0, 0, None, bytes(n))]) for n in (0, 5, 500, 5000))\n"
        "assert t.check_crcs(raw, t.scan_batches(raw)).all()\n"
        "raw = raw[:-1] + b'x'\n"
        "assert t.check_crcs(raw, t.scan_batches(raw)).tolist() == [True, True, True, False]\n"
    )
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
