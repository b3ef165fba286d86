"""Write constraints.txt: every package that any extra pulls in, at one version.

Direct dependencies are pinned in pyproject.toml; pip is asked which versions of the rest fit them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "spark,test,lint"
HEADER = "# Every package at one version, for all extras: pip -c. Renewed by `make lock`.\n"


def main() -> None:
    """Resolve without installing, and keep name and version of each."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", f"{ROOT}[{EXTRAS}]"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    packages = (item["metadata"] for item in json.loads(answer.stdout)["install"])
    pins = {
        package["name"].lower().replace("_", "-"): package["version"]
        for package in packages
        if package["name"] != "stratalog"
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
