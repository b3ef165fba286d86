"""All kernels ahead of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.cli.compile_kernels import module_names
from stratalog.format.kernels import jit
from tests.cli.command import inside, stratalog

SOURCES = Path(jit.__file__).parents[2]


def test_every_module_with_kernels_is_compiled() -> None:
    users = [path for path in SOURCES.rglob("*.py") if "\n@kernel(" in path.read_text()]
    names = {
        ".".join(["stratalog", *path.relative_to(SOURCES).with_suffix("").parts]) for path in users
    }
    assert "stratalog.format.kernels.crc" in names
    assert names <= set(module_names())


@pytest.mark.slow
def test_what_is_compiled_stays_compiled() -> None:
    (first,) = stratalog("compile-kernels", "--json").rows
    assert first["compiled"] + first["loaded"] >= 25
    done = stratalog("compile-kernels", "--json")
    assert done.stderr == ""
    (row,) = done.rows
    assert (row["compiled"], row["loaded"]) == (0, first["compiled"] + first["loaded"])
    assert Path(row["cacheDir"]).is_dir()
    assert stratalog("compile-kernels").lines[1] == f"cache: {row['cacheDir']}"


def test_it_fails_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_dir", lambda: None)
    done = inside("compile-kernels")
    assert done.status == 1
    assert "set NUMBA_CACHE_DIR" in done.stderr
