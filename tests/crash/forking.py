"""A process that forks a child for every request, so that killing one costs no imports.

Requests come as lines of JSON on standard input. For each, the child's number is told at once and
its exit status when it has ended, on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(work: Callable[[dict[str, Any], int], NoReturn]) -> None:
    """`work` is called in the child with the request and the descriptor to report to."""
    report = int(sys.argv[1])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(json.loads(line), report)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
