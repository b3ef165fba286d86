"""The output of the demo: sections, progress, checks, and figures at the end.

A terminal shows colours and a progress bar; a file or pipe gets plain lines.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

PLAIN_WIDTH = 120


class CheckFailedError(Exception):
    """A claim of the demo is not true."""


@dataclass
class Figure:
    """A row of the closing table. A step fills it in as it goes."""

    step: str
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def cells(self) -> list[str]:
        rate = self.size_bytes / self.seconds / 1e6 if self.seconds else 0.0
        return [
            self.step,
            f"{self.records:,}" if self.records else "",
            f"{self.size_bytes / 1e6:,.1f}" if self.size_bytes else "",
            f"{self.seconds:.1f}",
            f"{rate:,.0f}" if self.size_bytes else "",
        ]


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width: let lines be as long as they are
        console = Console(highlight=False, width=PLAIN_WIDTH)
    return console


@dataclass
class Narrator:
    """Prints, measures and checks."""

    console: Console = field(default_factory=_console)
    figures: list[Figure] = field(default_factory=list)
    checks: int = 0
    started: float = field(default_factory=time.perf_counter)

    def section(self, title: str, why: str) -> None:
        characters = "\u2500" if self.console.is_terminal else "-"
        self.console.print()
        self.console.rule(f"[bold]{escape(title)}", align="left", characters=characters)
        self.console.print(f"[dim]{escape(why)}[/]\n")

    def say(self, text: str) -> None:
        self.console.print(escape(text))

    def fail(self, text: str) -> None:
        self.console.print(f"[bold red]{escape(text)}[/]", soft_wrap=True)

    def command(self, text: str) -> None:
        """Print a command that the reader can run as well."""
        self.console.print(f"[green]$ {escape(text)}[/]", soft_wrap=True)

    def check(self, claim: str, is_so: bool, otherwise: object = "") -> None:
        """Print the claim if it is true; otherwise, end the demo."""
        if not is_so:
            raise CheckFailedError(f"this is not true: {claim} {otherwise}".rstrip())
        self.checks += 1
        self.console.print(f"  [green]ok[/] {escape(claim)}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """The first column holds names, the others numbers."""
        edges = box.HEAVY_HEAD if self.console.is_terminal else box.ASCII
        table = Table(title=title or None, title_justify="left", title_style="bold", box=edges)
        for at, name in enumerate(columns):
            table.add_column(name, justify="right" if at else "left")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    @contextmanager
    def step(self, name: str, spark: SparkSession | None = None) -> Iterator[Figure]:
        """Measure what happens inside; with a session, show the progress of its tasks."""
        figure = Figure(name)
        started = time.perf_counter()
        with self._moving_bar(name, spark):
            yield figure
        figure.seconds = time.perf_counter() - started
        self.figures.append(figure)
        _, records, megabytes, seconds, rate = figure.cells()
        facts = [f"{records} records"] if records else []
        facts += [f"{megabytes} MB"] if megabytes else []
        facts += [f"{seconds} s"]
        facts += [f"{rate} MB/s"] if rate else []
        self.console.print(f"  [cyan]{escape(name)}:[/] {', '.join(facts)}")

    @contextmanager
    def _moving_bar(self, name: str, spark: SparkSession | None) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        columns = (TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn())
        is_over = threading.Event()
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task(name, total=None)

            def watch() -> None:
                with suppress(Exception):  # Spark is gone; the step itself raises
                    while spark is not None and not is_over.wait(0.2):
                        done, total = _tasks(spark)
                        progress.update(bar, completed=done, total=total or None)

            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            try:
                yield
            finally:
                is_over.set()
                watcher.join()

    def close(self) -> None:
        """The table of figures."""
        columns = ("step", "records", "MB of log", "seconds", "MB/s")
        self.console.print()
        self.table(columns, [figure.cells() for figure in self.figures], "What it took")
        seconds = time.perf_counter() - self.started
        self.console.print(f"{self.checks} claims checked, {seconds:.0f} seconds in all.")


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the running stages are done, of how many."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
