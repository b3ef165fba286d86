"""Copy captured conversations into tests/golden-wire, packed the way tests/golden_wire.py reads it.

Usage: python scripts/pack_golden_wire.py SOURCE

SOURCE has one directory per client with one `SCENARIO.jsonl.gz` per scenario, as
tests/golden-wire/README.md describes. Each client becomes one archive, in which the lines of a
scenario follow a line that names it: frames of one client resemble each other, so they compress
better together. The output is a function of SOURCE alone, byte for byte.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "tests" / "golden-wire"


def main() -> None:
    """Replace the archives in tests/golden-wire by what SOURCE holds."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for old in TARGET.glob("*.jsonl.xz"):
        old.unlink()
    sums = []
    for client in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        packed = lzma.compress(_lines(client), preset=9 | lzma.PRESET_EXTREME)
        (TARGET / f"{client.name}.jsonl.xz").write_bytes(packed)
        sums.append(f"{hashlib.sha256(packed).hexdigest()}  {client.name}.jsonl.xz\n")
    (TARGET / "SHA256SUMS").write_text("".join(sums))


def _lines(client: Path) -> bytes:
    parts = []
    for path in sorted(client.glob("*.jsonl.gz")):
        heading = {"scenario": path.name.removesuffix(".jsonl.gz")}
        parts.append(json.dumps(heading).encode() + b"\n" + gzip.decompress(path.read_bytes()))
    return b"".join(parts)


if __name__ == "__main__":
    main()
