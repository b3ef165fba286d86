"""`stratalog report`: write an HTML page about log directories."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stratalog.bulk.workers import Clock
from stratalog.cli.arguments import (
    JsonOption,
    NowOption,
    SettingsFiles,
    flag,
    local_path,
    now_or,
    option,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, report_line, summary_row
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import TargetOptions, log_bytes_of
from stratalog.cli.workers import SparkOptions, result_text

OutputOption = Annotated[
    Path,
    option("--output", "FILE", "The HTML file to write.", short="-o", parser=local_path),
]


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    output: OutputOption,
    *,
    targets: TargetOptions,
    quick: Annotated[
        bool, flag("--quick", "Read batch headers only: no keys, no record sizes, no CRCs.")
    ] = False,
    now: NowOption = None,
    settings_files: SettingsFiles,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Write a report about log directories: one HTML page with charts and tables.

    The page shows topics and partitions by size and growth, segments over time, gaps in offsets,
    timestamps out of order, index density, compression, batch and record sizes, keys, compaction
    and retention, producers and transactions (open and overdue ones first), the findings of
    `stratalog verify` and the advice of `stratalog tune`.

    The page is self-contained: it needs no other file and no network. It is written completely or
    not at all. The command takes no lock and does not change the logs.

    \b
    Examples:
      stratalog report /var/lib/kafka/data -o report.html
      stratalog report orders -d /data -o orders.html --quick
      stratalog report /data -o report.html --master 'local[*]'

    With --json a summary is printed as one JSON object.
    """
    clock = Clock()
    from stratalog.bulk.report_data import collect  # noqa: PLC0415 - heavy
    from stratalog.report.page import render  # noqa: PLC0415

    spark.check()
    if output.is_dir():
        raise typer.BadParameter(f"{output} is a directory; name a file", param_hint="--output")
    if not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"{output.parent} does not exist", param_hint="--output")
    partitions = targets.partitions()
    finder = Overrides.parse((), *settings_files).finder(targets.log_dir, partitions)
    with ExitStack() as stack:
        progress = stack.enter_context(JobProgress(log_bytes_of(partitions)))
        workers = stack.enter_context(spark.workers("stratalog report", progress))
        facts = collect(
            partitions,
            finder,
            now_ms=now_or(now, "--now"),
            is_quick=quick,
            workers=workers,
            on_phase=progress.begin_phase,
        )
    page = render(facts)
    partial = output.with_name(f"{output.name}.partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(output)
    for problem in facts.problems:
        report_line(f"stratalog: warning: {problem}")
    facts = replace(facts, seconds=clock.seconds)
    if as_json:
        more = {
            "page": str(output),
            "pageBytes": len(page.encode()),
            "partitions": len(facts.partitions),
            "problems": list(facts.problems),
        }
        print(json_line(summary_row(facts.records, facts.size_bytes, facts.seconds, **more)))
    else:
        found = counted(len(facts.partitions), "partition")
        print(f"{output}: {human_size(len(page.encode()))}, {found}")
        print(result_text(facts))
