"""Many golden partitions as one log directory, so that one query reads them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.golden.expected import log_start_offset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.golden.cases import GoldenCase


def link_cases(into: Path, cases: Iterable[GoldenCase], moment: int = 0) -> Path:
    """Topic `golden`, whose partition N is case number N.

    Of a case that was stopped uncleanly, `moment` 0 is what was found and -1 what Kafka made of it.
    """
    lines = []
    for number, case in enumerate(cases):
        directory = case.partition_dirs()[moment]
        (into / f"golden-{number}").symlink_to(directory)
        if (start := log_start_offset(case)) is not None:
            # Links are followed: the checkpoint knows the partition by its own name.
            lines.append(f"{directory.name.replace('-0', ' 0')} {start}")
    text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
    (into / "log-start-offset-checkpoint").write_text(text)
    return into
