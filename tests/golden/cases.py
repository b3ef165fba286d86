"""The golden data as typed values: what Kafka wrote, and what Kafka says about it.

A case's partition directories are plain files in this directory; its JSON and Kafka's dumps are
read out of `facts/<case>.tar.xz` when first asked for. A compaction case is one archive and has to
be unpacked: `CompactionCase.unpack(into)` does it, or the `compaction_dir` fixture for a whole run.

Nothing here may be written to. A test that damages files takes `case.copy_to(tmp_path)`.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN_DIR = Path(__file__).resolve().parent
LOG_DIR_NAME = "_logdir-run1"

_FACTS = GOLDEN_DIR / "facts"
_COMPACTION = GOLDEN_DIR / "compaction"
_ARCHIVE_SUFFIX = ".tar.xz"
_ROOT_MARK = "@ROOT@"

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class KafkaDump:
    """What Kafka's DumpLogSegments printed in one run."""

    stdout: str
    stderr: str

    @property
    def exception(self) -> str | None:
        """The line that says the tool itself threw, where it did. A clear error is enough there."""
        lines = self.stdout.split("\n")
        return next((line for line in lines if line.startswith("EXCEPTION ")), None)


@dataclass(frozen=True)
class GoldenCase:
    """One directory a real Kafka wrote. Cheap to make: files are read when asked for."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def root(self) -> Path:
        """Holds the partition directories and only what Kafka wrote: usable as a log directory.

        In the `u-*` cases (killed broker, some damaged) `before/` and `after/` are such ones.
        """
        return GOLDEN_DIR / self.name

    def partition_dirs(self) -> list[Path]:
        """Every partition directory, `before` recovery ahead of `after`."""
        holders = [self.root / "before", self.root / "after"] if self.is_unclean else [self.root]
        return [path for holder in holders for path in sorted(holder.iterdir()) if path.is_dir()]

    @property
    def partition_dir(self) -> Path:
        """The only partition directory of a cleanly stopped case."""
        (only,) = self.partition_dirs()
        return only

    @property
    def is_unclean(self) -> bool:
        """Stopped by SIGKILL: `before/` is what was left, `after/` what Kafka made of that."""
        return (self.root / "before").is_dir()

    @property
    def manifest(self) -> Json:
        """What was produced, and what a real consumer read."""
        return self._json("manifest.json")

    @property
    def loaddir(self) -> Json:
        """What Kafka's own loader found; in an unclean case, what it made of `before/`."""
        return self._json("loaddir.json")

    @property
    def offsets_for_times(self) -> Json | None:
        """The broker's ListOffsets answers, where a broker was asked."""
        present = "offsets_for_times.json" in _members(_FACTS / (self.name + _ARCHIVE_SUFFIX))
        return self._json("offsets_for_times.json") if present else None

    def dumps(self, partition_dir: Path) -> Mapping[tuple[str, str], KafkaDump]:
        """Kafka's dump of each file, by (file name, kind).

        Kind: `.log` has `headers`, `deep` and `data`; the indexes `plain` and `sanity`; the rest
        `plain`; internal topics also the decoder used: `offsets`, `txnlog` or `metadata`. The tool
        ran in the directory above the case and was given relative paths, so the text begins
        `Dumping <case>/<partition>/<file>`: to compare, run with `GOLDEN_DIR` as working directory.
        Where Kafka prints an absolute path it is below `GOLDEN_DIR` here.
        """
        prefix = f"{partition_dir.relative_to(self.root).as_posix()}.dumps/"
        members = _members(_FACTS / (self.name + _ARCHIVE_SUFFIX))
        found = {}
        for path, raw in members.items():
            if path.startswith(prefix) and path.endswith(".dump.txt"):
                file_name, kind = path[len(prefix) :].removesuffix(".dump.txt").rsplit(".", 1)
                stderr = members.get(path.removesuffix("txt") + "stderr.txt", b"")
                found[file_name, kind] = _dump(raw, stderr, root=GOLDEN_DIR)
        return found

    def copy_to(self, directory: Path) -> Path:
        """A writable copy of `root` as `directory/<name>`."""
        return Path(shutil.copytree(self.root, directory / self.name))

    def _json(self, file_name: str) -> Json:
        content: Json = json.loads(_members(_FACTS / (self.name + _ARCHIVE_SUFFIX))[file_name])
        return content


@dataclass(frozen=True)
class CompactionCase:
    """One log through one or more rounds of Kafka's own cleaner, under a controlled clock."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def case(self) -> Json:
        """Config, clock, offsets and statistics of each round; a round names its directories."""
        return self._json("case.json")

    def records(self, directory: str) -> Json:
        """Batches and records of `directory`, such as "before" or "after2", as Kafka reads them."""
        return self._json(f"records_{directory}.json")

    def dumps(self, directory: str) -> Mapping[str, KafkaDump]:
        """Kafka's dump of all files of `directory` with one suffix (`log`, `index` ...), by suffix.

        One run per suffix, files in name order; `.log` with `--print-data-log --deep-iteration`.
        The tool ran in the directory above the case; where it prints an absolute path, `@ROOT@`
        stands for that directory.
        """
        members, prefix = self._members(), f"{directory}.dumps/"
        found = {}
        for path, raw in members.items():
            if path.startswith(prefix) and not path.endswith(".stderr.txt"):
                suffix = path[len(prefix) :].removesuffix(".txt")
                stderr = members.get(f"{prefix}{suffix}.stderr.txt", b"")
                found[suffix] = _dump(raw, stderr, root=None)
        return found

    def unpack(self, into: Path) -> Path:
        """Write the files below `into/<name>` and return that directory.

        Holds `before/<topic>-0`, `after/<topic>-0` and so on. Segments get back the modification
        times that Kafka saw, which git and the archive do not keep: the horizon of tombstones in
        old formats hangs on them.
        """
        target = into / self.name
        for path, content in self._members().items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self._restore_times(target)
        return target

    def _restore_times(self, target: Path) -> None:
        case = self.case
        partition = f"{case['topic']}-{case['partition']}"
        for step in case["rounds"]:
            for moment in ("before", "after"):
                if step[moment] is None:  # not selected for cleaning
                    continue
                for segment in step[f"segments_{moment}"]:
                    log = target / step[moment] / partition / f"{segment['base_offset']:020d}.log"
                    os.utime(log, ns=(segment["mtime_ms"] * 1_000_000,) * 2)

    def _members(self) -> Mapping[str, bytes]:
        return _members(_COMPACTION / (self.name + _ARCHIVE_SUFFIX))

    def _json(self, path: str) -> Json:
        content: Json = json.loads(self._members()[path])
        return content


def all_cases() -> list[GoldenCase]:
    """Every case with a manifest, by name. For parametrize: reads only a directory listing."""
    return [case for case in _with_facts() if case.name != LOG_DIR_NAME]


def log_dir_case() -> GoldenCase:
    """Root files and internal topics of a broker's log directory: it has dumps but no manifest."""
    return GoldenCase(LOG_DIR_NAME)


def dump_cases() -> list[GoldenCase]:
    """Every case that has Kafka's dumps: all of them, and the log directory."""
    return _with_facts()


def compaction_cases() -> list[CompactionCase]:
    """Every compaction case, by name. For parametrize: reads only a directory listing."""
    return [CompactionCase(name) for name in _archive_names(_COMPACTION)]


def _with_facts() -> list[GoldenCase]:
    return [GoldenCase(name) for name in _archive_names(_FACTS)]


def _archive_names(directory: Path) -> list[str]:
    return sorted(path.name.removesuffix(_ARCHIVE_SUFFIX) for path in directory.glob("*.tar.xz"))


def _dump(stdout: bytes, stderr: bytes, *, root: Path | None) -> KafkaDump:
    # Bytes, not text files, all the way: record values may hold "\r", which must not become "\n".
    texts = (stdout.decode(), stderr.decode())
    if root is not None:
        texts = (texts[0].replace(_ROOT_MARK, str(root)), texts[1].replace(_ROOT_MARK, str(root)))
    return KafkaDump(*texts)


@cache
def _members(archive: Path) -> Mapping[str, bytes]:
    """Path to content of every file in `archive`. Small enough to hold: 35 MB in all."""
    found = {}
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                found[member.name] = content.read()
    return found
