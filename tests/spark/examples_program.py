"""Runs many programs one after the other, in one process, and examples in one session: a JVM and
Python workers take longer to start than most examples run.

Standard input is JSON: of each program its name, its arguments, and either the path of a script or
code. A line on standard output begins each.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession


def main() -> None:
    programs = json.load(sys.stdin)
    with patch.object(SparkSession, "stop"):  # the next script takes it over
        run([each for each in programs if not each["code"]])
    for session in filter(None, [SparkSession.getActiveSession()]):
        session.stop()
    run([each for each in programs if each["code"]])


def run(programs: list[dict[str, Any]]) -> None:
    for each in programs:
        sys.stdout.write(f"== {each['name']}\n")
        sys.stdout.flush()
        sys.argv = [each["name"], *each["arguments"]]
        if each["code"]:
            exec(each["code"], {"__name__": "__main__"})
        else:
            run_script(each["path"])


def run_script(path: str) -> None:
    sys.path.insert(0, str(Path(path).parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.path.pop(0)


if __name__ == "__main__":
    main()
