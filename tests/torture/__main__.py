"""`make torture`: see `run`."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.torture.run import torture


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="random if not given")
    parser.add_argument("--dir", type=Path, default=None, help="where to work")
    parser.add_argument("--no-mount", action="store_true", help="never mount a small disk")
    parser.add_argument("--without", default="", help="operations to leave out: fork,verify,...")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that it cleans up
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    base = options.dir or Path(tempfile.gettempdir())
    work = Path(tempfile.mkdtemp(prefix=f"stratalog-torture-{seed}-", dir=base)) / "run"
    without = tuple(options.without.split(","))
    torture(work, seed, options.seconds, _say, mount=not options.no_mount, without=without)
    work.parent.rmdir()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
