"""Copy golden data into tests/golden, packed the way tests/golden/cases.py reads it.

Usage: python scripts/pack_golden.py SOURCE

SOURCE is laid out as tests/golden/README.md describes. Partition directories stay plain files, so
that commands can be pointed at them; everything only tests read (JSON, Kafka's dumps) goes into
one archive per case, and every compaction case into one archive as a whole: thousands of tiny files
would take more room than their bytes. The output is a function of SOURCE alone, byte for byte.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
COMPACTION = "compaction"
PACKED_DIRS = ("facts", COMPACTION)


def main() -> None:
    """Replace the data in tests/golden by what SOURCE holds."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    source = Path(sys.argv[1])
    for old in GOLDEN.iterdir():
        if old.is_dir() and old.name != "__pycache__":
            shutil.rmtree(old)
    for name in PACKED_DIRS:
        (GOLDEN / name).mkdir()
    for case in sorted(path for path in source.iterdir() if path.is_dir()):
        if case.name == COMPACTION:
            _pack_compaction(case)
        else:
            _pack_case(case)
    _write_checksums()


def _pack_case(case: Path) -> None:
    facts = []
    for path in _files_under(case):
        relative = path.relative_to(case)
        if path.suffix == ".json" or any(part.endswith(".dumps") for part in relative.parts):
            facts.append(path)
        else:
            _copy(path, GOLDEN / case.name / relative)
    if facts:
        _write_archive(GOLDEN / "facts" / f"{case.name}.tar.xz", facts, relative_to=case)


def _pack_compaction(source: Path) -> None:
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            archive = GOLDEN / COMPACTION / f"{entry.name}.tar.xz"
            _write_archive(archive, _files_under(entry), relative_to=entry)
        else:
            _copy(entry, GOLDEN / COMPACTION / entry.name)


def _files_under(directory: Path) -> list[Path]:
    """Every file below `directory`, sorted. An empty directory would be lost, so it is an error."""
    found = sorted(directory.rglob("*"))
    for path in found:
        if path.is_dir() and not any(path.iterdir()):
            raise SystemExit(f"empty directory would be lost: {path}")
    return [path for path in found if path.is_file()]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def _write_archive(target: Path, files: list[Path], *, relative_to: Path) -> None:
    with tarfile.open(target, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            content = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(relative_to).as_posix())
            member.size = len(
                content
            )  # the other fields keep their fixed defaults: mtime 0, mode 644
            archive.addfile(member, io.BytesIO(content))


def _write_checksums() -> None:
    """SHA256SUMS over every data file, in the format of sha256sum."""
    lines = []
    for path in sorted(GOLDEN.rglob("*")):
        relative = path.relative_to(GOLDEN)
        if path.is_file() and len(relative.parts) > 1 and "__pycache__" not in relative.parts:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{digest}  {relative.as_posix()}\n")
    (GOLDEN / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    main()
