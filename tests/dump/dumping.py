"""One run of the dump, for tests: what goes to either stream, and what was wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.dump.decoders import ClusterMetadataDecoder, OffsetsDecoder, TransactionLogDecoder
from stratalog.dump.files import absolute_path
from stratalog.dump.log_contents import DumpOptions, IndexChecks
from stratalog.dump.problems import DumpReport
from stratalog.dump.text import dump_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

# What was on the command line of Kafka's tool when a golden dump was made, by its kind.
OPTIONS = {
    "headers": DumpOptions(),
    "deep": DumpOptions(deep_iteration=True),
    "data": DumpOptions(deep_iteration=True, print_data=True),
    "plain": DumpOptions(),
    "sanity": DumpOptions(index_checks=IndexChecks(sanity_only=True)),
    "offsets": DumpOptions(print_data=True, decoder=OffsetsDecoder()),
    "txnlog": DumpOptions(print_data=True, decoder=TransactionLogDecoder()),
    "metadata": DumpOptions(print_data=True, decoder=ClusterMetadataDecoder()),
}


class Dump(NamedTuple):
    """What one run gave."""

    stdout: str
    findings: str
    """What Kafka's tool prints to standard error."""
    problems: list[str]
    remarks: list[str]

    @property
    def lines(self) -> list[str]:
        """Without the line that names the file."""
        return self.stdout.split("\n")[1:-1]


def dump(
    paths: Iterable[str | Path],
    options: DumpOptions,
    absolute: Callable[[str], str] = absolute_path,
) -> Dump:
    """All of `paths` in one run."""
    problems: list[str] = []
    remarks: list[str] = []
    report = DumpReport(on_problem=problems.append, on_remark=remarks.append, absolute=absolute)
    blocks = [block for path in paths for block in dump_text(str(path), options, report)]
    assert all(block.endswith(b"\n") for block in blocks)
    findings = "".join(f"{line}\n" for line in report.lines())
    assert report.problems == len(problems)
    return Dump(b"".join(blocks).decode(), findings, problems, remarks)
