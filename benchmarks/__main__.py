"""Run benchmarks: `python -m benchmarks [names] [--quick] [--json]`. Exits 1 if a promise fails.

A benchmark is any module of this package with a function `run(report)`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.report import Report

if TYPE_CHECKING:
    from types import ModuleType

    from benchmarks.report import Requirement, Timing


def main() -> int:
    found = _benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(found)}")
    parser.add_argument("--quick", action="store_true", help="small inputs, three rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in found]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]}; choose from {', '.join(found)}")
    _pin_to_one_core()
    report = Report(is_quick=options.quick, rounds=3 if options.quick else 5)
    console = Console(stderr=options.json)
    for name in options.names or found:
        with console.status(f"{name} …"):
            report.benchmark = name
            found[name].run(report)
    if options.json:
        json.dump(report.as_json(), sys.stdout, indent=2)
        print()
    else:
        _print(report, console)
    return 0 if all(requirement.is_met for requirement in report.requirements) else 1


def _benchmarks() -> dict[str, ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    modules = {
        name: importlib.import_module(f"benchmarks.{name}") for name in names if name != "__main__"
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def _pin_to_one_core() -> None:
    """All sides are measured on the same single core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _print(report: Report, console: Console) -> None:
    if report.timings:
        console.print(_timings(report))
    console.print(_promises(report))


def _timings(report: Report) -> Table:
    timings = Table(
        title=f"median of {report.rounds} rounds; one core, where a case does not say otherwise"
    )
    for heading in ("case", "who"):
        timings.add_column(heading)
    for heading in ("time", "records/s", "MB/s"):
        timings.add_column(heading, justify="right")
    previous = ""
    for timing in report.timings:
        if previous not in ("", timing.case):
            timings.add_section()
        timings.add_row(*_row(timing, is_first=timing.case != previous))
        previous = timing.case
    return timings


def _promises(report: Report) -> Table:
    promises = Table(title="promises")
    promises.add_column("what")
    for heading in ("measured", "promised"):
        promises.add_column(heading, justify="right")
    promises.add_column("")
    for requirement in report.requirements:
        promises.add_row(*_promise(requirement))
    return promises


def _row(timing: Timing, *, is_first: bool) -> tuple[str, ...]:
    seconds = timing.seconds
    return (
        timing.case if is_first else "",
        timing.who,
        f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.2f} µs",
        f"{timing.records_per_second / 1e6:,.2f} M" if timing.records else "",
        f"{timing.megabytes_per_second:,.0f}" if timing.size_bytes else "",
    )


def _promise(requirement: Requirement) -> tuple[str, ...]:
    unit = requirement.unit
    bounds = []
    if requirement.at_least is not None:
        bounds.append(f">= {requirement.at_least:g}{unit}")
    if requirement.at_most is not None:
        bounds.append(f"<= {requirement.at_most:g}{unit}")
    verdict = "[green]kept[/green]" if requirement.is_met else "[red]broken[/red]"
    if requirement.misses_aim:
        verdict += f", misses its aim of {requirement.aim:g}{unit}"
    return requirement.what, f"{requirement.value:.2f}{unit}", " and ".join(bounds), verdict


if __name__ == "__main__":
    sys.exit(main())
