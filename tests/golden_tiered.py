"""Tiered topics as a real Kafka and Aiven's plugin wrote them, and what a consumer read of them."""

from __future__ import annotations

import json
import tarfile
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stratalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.partitions.view import LogDirsView

ARCHIVE = Path(__file__).parent / "golden-tiered" / "cases.tar.xz"


def unpack(into: Path) -> list[TieredCase]:
    """All cases."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(into, filter="data")
    found = sorted(path for path in (into / "golden-tiered").iterdir() if path.is_dir())
    return [TieredCase(path) for path in found]


@dataclass(frozen=True)
class TieredCase:
    """One run."""

    path: Path

    def __str__(self) -> str:
        return self.path.name

    @property
    def is_aiven(self) -> bool:
        return self.path.name.startswith("aiven")

    @property
    def remote(self) -> Path:
        return self.path / "remote"

    @property
    def keys(self) -> list[str]:
        return [str(path) for path in self.path.glob("keys/*private.pem")]

    @property
    def log_dirs(self) -> list[Path]:
        """Of the last leader, and the one with the metadata."""
        names = ["logdir-2", "logdir-1"] if (self.path / "logdir-2").is_dir() else ["logdir"]
        return [self.path / name for name in names]

    def open(self) -> LogDirsView:
        return stratalog.open_dirs(*self.log_dirs, remote=self.remote, remote_keys=self.keys)

    def partitions(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Topic, partition and what the broker said of it."""
        for path in sorted(self.path.glob("manifests/*.json")):
            manifest = json.loads(path.read_text())
            for number, facts in manifest["partitions"].items():
                yield manifest["topic"], int(number), facts

    @property
    def remote_segments(self) -> list[dict[str, Any]]:
        """What Kafka's own classes make of the metadata."""
        found: list[dict[str, Any]] = json.loads((self.path / "remote_segments.json").read_text())
        return found


Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def consumed(facts: dict[str, Any], isolation: str) -> list[Row]:
    """What Kafka's consumer read through the broker, from beginning to end."""
    return [
        (
            each["offset"],
            each["timestamp"],
            _bytes(each["key"]),
            _bytes(each["value"]),
            tuple((header[0], _bytes(header[1])) for header in map(_pair, each["headers"])),
        )
        for each in facts[f"consumed_{isolation}"]["records"]
    ]


def _pair(header: Any) -> tuple[str, str | None]:
    return (header["key"], header["value"]) if isinstance(header, dict) else tuple(header)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
