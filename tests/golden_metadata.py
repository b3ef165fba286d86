"""A broker's log directory with its cluster metadata, and what the broker answered about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent / "golden-metadata" / "run1"
LOG_DIR = ROOT / "logdir"
"""As the broker left it. Not to be written to: take a `broker_dir`."""


def expected_topics() -> dict[str, dict[str, Any]]:
    """What the broker answered, by topic."""
    topics: dict[str, dict[str, Any]] = json.loads((ROOT / "expected.json").read_text())["topics"]
    return topics


def broker_dir(path: Path) -> Path:
    """A copy to work with."""
    return shutil.copytree(LOG_DIR, path)
