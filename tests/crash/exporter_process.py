"""Runs incremental exports that kill themselves with SIGKILL at a given step."""

from __future__ import annotations

import os
import signal
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stratalog.bulk.export import FileSet, FileSpec, plan_export, run_export
from stratalog.bulk.incremental import IncrementalTarget
from stratalog.bulk.options import ReadOptions
from stratalog.bulk.workers import ThreadWorkers
from stratalog.storage.disk import Disk, SystemCalls
from tests.cli.forking import LATE
from tests.crash.forking import serve

if TYPE_CHECKING:
    from collections.abc import Callable

SPECS = {"parquet": FileSpec(), "jsonl": FileSpec("jsonl"), "text": FileSpec(is_text=True)}
CHANGING = {"open", "pwrite", "fsync", "rename", "unlink", "mkdir", "rmdir"}


class Killer:
    """Counts steps; at the one that was asked for, the process dies."""

    def __init__(self, step: int) -> None:
        self._left = step

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return call(*args, **named)

        return counted

    def disk(self) -> Disk:
        calls = SystemCalls()
        changes = {
            each.name: self.before(getattr(calls, each.name))
            for each in fields(calls)
            if each.name in CHANGING
        }
        return Disk(replace(calls, **changes))


def work(request: dict[str, Any], report: int) -> NoReturn:
    """Export what is new, until the step. The exit status is 0 if there are fewer steps."""
    killer = Killer(request["step"])
    spec = SPECS[request["format"]]
    FileSet.add = killer.before(FileSet.add)  # type: ignore[method-assign]
    FileSet.__exit__ = killer.before(FileSet.__exit__)  # type: ignore[method-assign]
    Path.touch = killer.before(Path.touch)  # type: ignore[method-assign]
    try:
        with IncrementalTarget(request["target"], spec.layout, disk=killer.disk()) as target:
            plan = plan_export(ReadOptions((Path(request["logs"]),)), spec, target)
            run_export(plan, target, ThreadWorkers(1))
    except BaseException as error:
        os.write(report, f"X {error!r}\n".encode())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    for name in LATE:
        import_module(name)
    serve(work)
