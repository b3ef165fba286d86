"""Write constraints.txt: every package that any extra pulls in, at one version.

pyproject.toml has the ranges that a user's environment may have; here are the versions that we
develop and test with. pip is asked for the newest that fit all ranges. Without an argument versions
that constraints.txt already has stay as they are, if they still fit; `--upgrade` renews all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = "spark,test,lint,dist"
HEADER = "# Every package at one version, for all extras: pip -c. Renewed by `make lock`.\n"


def main() -> None:
    """Resolve without installing, and keep name and version of each."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", f"{ROOT}[{EXTRAS}]", *build]
    if "--upgrade" not in sys.argv[1:]:
        command += ["--constraint", str(CONSTRAINTS)]
    answer = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        sys.exit("lock: pip found no versions that fit; `make lock ARGS=--upgrade` renews them all")
    packages = (item["metadata"] for item in json.loads(answer.stdout)["install"])
    pins = {
        package["name"].lower().replace("_", "-"): package["version"]
        for package in packages
        if package["name"] != "stratalog"
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    CONSTRAINTS.write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
