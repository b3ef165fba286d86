"""The pipeline behind `make demo`: a week of events of a shop, without a broker.

    python examples/demo.py [--dir DIRECTORY] [--records COUNT]

Its steps ingest, verify, look up, stream, compact, retain, export and query, on embedded Spark.
Each step checks its result. Every run creates the directory anew, and leaves it for you to look at.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from pipeline.cleanup import compact_customers, retain_orders
from pipeline.events import Shop
from pipeline.lake import export_and_ask
from pipeline.lookups import look_up
from pipeline.narration import CheckFailedError, Narrator
from pipeline.shop_log import CUSTOMERS, ShopLog
from pipeline.streaming import stream
from pipeline.writing import ingest, verify_all

import stratalog
from stratalog import StratalogError
from stratalog.spark.session import open_session

ROOT = Path(__file__).resolve().parent.parent
RECORDS = 1_000_000
INTERRUPTED = 130
"""The status of a command that Ctrl-C has ended."""
MARK = ".stratalog-demo"
"""Marks a directory that the demo created. No other directory is deleted."""
SPARK = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # a short run: compile little
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "100",
}


def main() -> int:
    """The exit status is 0 if all checks succeeded."""
    arguments = _parser().parse_args()
    directory = arguments.dir.absolute()
    tell = Narrator()
    try:
        _prepare(directory)
        _run(tell, ShopLog(_short(directory)), arguments.records)
    except (CheckFailedError, StratalogError) as error:
        tell.fail(f"The demo has failed: {error}")
        return 1
    except KeyboardInterrupt:
        tell.fail("The demo was interrupted; run it again to start again.")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C prints nothing
        return INTERRUPTED
    return 0


def _run(tell: Narrator, log: ShopLog, records: int) -> None:
    shop = Shop.of_size(records, time.time_ns() // 1_000_000)
    with ExitStack() as stack:
        with tell.step("start Spark"):
            opened = open_session("stratalog demo", master="local[2]", conf=SPARK)
            spark = stack.enter_context(opened)
        ingest(tell, spark, log, shop)
        verify_all(tell, spark, log)
        look_up(tell, spark, log, shop)
        stream(tell, spark, log, shop)
        compact_customers(tell, spark, log)
        retain_orders(tell, log)
        export_and_ask(tell, spark, log)
    tell.close()
    _next(tell, log)


def _next(tell: Narrator, log: ShopLog) -> None:
    tell.say(f"\nThe data is in {log.directory}; {log.path} is a Kafka log directory. Try next:\n")
    for command in next_commands(log):
        tell.command(f".venv/bin/stratalog {command}".rstrip())


def next_commands(log: ShopLog) -> list[str]:
    """Commands to try on the data."""
    path = log.path
    with stratalog.open_partition(log.partition(CUSTOMERS, 0)) as view:
        key = next(view.read(view.log_end_offset - 1)).key or b""
    return [
        f"ls {path} --all",
        f"explain {path}/orders-2 --time -1d",
        f"read {path}/revenue-0 --from -8",
        f"compact {path} --explain",
        f"compact {path} customers --key {key.decode()}",
        f"retain {path} --explain",
        f"stats {path}",
        f"verify {path}",
        f"report {path} -o {path.parent / 'report.html'}",
    ]


def _prepare(directory: Path) -> None:
    """An empty directory. What an earlier run left is deleted; anything else is not."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise CheckFailedError(f"{directory} is not empty, and not from an earlier run")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()


def _short(path: Path) -> Path:
    """Relative to the current directory if possible, as one would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--dir",
        type=Path,
        default=ROOT / "build" / "demo",
        help="directory for the data (default: build/demo); emptied if an earlier run created it",
    )
    parser.add_argument(
        "--records",
        type=int,
        default=RECORDS,
        help="number of records in total (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
