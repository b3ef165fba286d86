"""How few entries an offset index may have."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stratalog.maintenance.verify.findings import Findings, Severity
from stratalog.maintenance.verify.index_checks import SPARSE_BYTES, OffsetIndexCheck

ENTRY = struct.pack(">ii", 5, 1000)


@pytest.mark.parametrize(
    ("data", "is_compacted", "severity"),
    [
        (ENTRY, True, Severity.NOTE),
        (ENTRY, False, Severity.WARNING),
        (b"", True, Severity.WARNING),  # emptied: no cleaner leaves so long a log without any
        (b"", False, Severity.WARNING),
    ],
)
def test_a_long_stretch_without_an_entry(
    data: bytes, is_compacted: bool, severity: Severity
) -> None:
    findings = Findings()
    check = OffsetIndexCheck(Path("0.index"), data, 0, findings)
    check.finish(SPARSE_BYTES + 1000, is_compacted=is_compacted)
    assert [finding.severity for finding in findings.close()] == [severity]
