"""What verification reports: findings as values, and how much was verified.

There are three severities. An *error* is data that cannot be read, or a lookup that returns a wrong
result. A *warning* is something that Kafka repairs when it opens the log, or that may be right
under conditions that the files do not show. A *note* is an oddity that Kafka itself leaves.

The table `Fault` has the severity and the advice for each kind of fault, so a finding only adds a
place and a sentence.
"""

from __future__ import annotations

import enum
import shlex
from collections import Counter
from os import curdir
from posixpath import dirname
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import AccessDeniedError
from stratalog.format.counts import added

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

NO_POSITION: Final = -1
FINDINGS_OF_A_KIND_MAX: Final = 20
"""How many findings of a kind are listed for one file; more are only counted."""


class Severity(enum.StrEnum):
    """From the worst on."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


# What to do, for a reader of a finding.

# -- nothing
_NOTHING = "nothing to do: this is normal"
_BROKER_REPAIRS = "nothing to do: the broker repairs it when it opens the log"
_REBUILT = "nothing to do: the index is rebuilt when the log is opened after this unclean shutdown"
_TREATED_AS_EMPTY = "nothing to do: Kafka treats it as empty"
_OLD_BROKER = "nothing to do: older brokers write none"
_ENTRY_PER_APPEND = (
    "nothing to do: cleaners, followers and older brokers write one index entry per append"
)
_REMOVED = "nothing to do: a broker removed it meanwhile; verify again to be sure"

# -- what to run
_REINDEX = "to rebuild the index, run stratalog reindex {partition}"
_BROKER_REPAIRS_OR_REINDEX = f"{_BROKER_REPAIRS}; or run stratalog reindex {{partition}}"
_DENSER = "nothing to do, unless lookups are slow: then run stratalog reindex {partition} --force"
_ABORTED_VISIBLE = f"read_committed consumers see records of an aborted transaction; {_REINDEX}"
_RECOVER = (
    "a broker would truncate the log here; to keep the batches after it, run stratalog "
    "repair {partition}"
)
_REMOVE_BATCH = "readers fail here; to remove this batch, run stratalog repair {partition}"
_REBUILD = "to rebuild it from the log, run stratalog repair {partition}"
_CORRECT_OFFSET = (
    "the base offset is corrupt (no CRC covers it); to correct it, run stratalog repair {partition}"
)
_CORRECT_EPOCHS = (
    "followers may truncate their logs at a wrong offset; to correct it, run stratalog "
    "repair {partition}"
)

# -- what to restore, and what else to do by hand
_RESTORE = "restore the partition from a replica"
_COMPACTION = f"nothing to do if the topic is compacted; otherwise {_RESTORE}"
_TIMES_WRONG = f"the records are readable, but lookups by time may be wrong here; {_RESTORE}"
_WRONG_FILE = f"the batch is in the wrong file, or its base offset is corrupt; {_RESTORE}"
_EMPTY_LOG = f"a broker would create an empty log here; if there should be records, {_RESTORE}"
_BAD_DISK = f"check the disk, then {_RESTORE}"
_LOST = f"flushed records are missing; {_RESTORE}"
_RESTORE_FILE = "restore the file from another broker or copy"
_MOVE = "a broker does not start with it; move it elsewhere"
_NOT_VERIFIED = "it was not verified; run verify as a user who may read it"
_CORRECT_START = (
    "a broker would drop the whole log; correct log-start-offset-checkpoint before you start it"
)


class Fault(enum.Enum):
    """Every kind of finding: code, severity, and what to do."""

    # -- the log
    BAD_BATCH = ("bad-batch", Severity.ERROR, _RECOVER)
    BAD_RECORDS = ("bad-records", Severity.ERROR, _REMOVE_BATCH)
    BAD_RECORD_OFFSETS = ("bad-record-offsets", Severity.ERROR, _REMOVE_BATCH)
    BAD_MAX_TIMESTAMP = ("bad-max-timestamp", Severity.ERROR, _TIMES_WRONG)
    BAD_CONTROL_RECORD = ("bad-control-record", Severity.ERROR, _REMOVE_BATCH)
    OFFSETS_OUT_OF_ORDER = ("offsets-out-of-order", Severity.ERROR, _CORRECT_OFFSET)
    OFFSET_OUTSIDE_SEGMENT = ("offset-outside-segment", Severity.ERROR, _WRONG_FILE)
    OFFSET_GAP = ("offset-gap", Severity.WARNING, _COMPACTION)
    SEQUENCE_JUMP = ("sequence-jump", Severity.WARNING, _COMPACTION)
    TORN_TAIL = ("torn-tail", Severity.WARNING, _BROKER_REPAIRS)
    TRUNCATED_SEALED_LOG = ("truncated-sealed-log", Severity.ERROR, _RECOVER)
    ZERO_TAIL = ("zero-tail", Severity.NOTE, _NOTHING)
    GARBAGE_TAIL = ("garbage-tail", Severity.ERROR, _RECOVER)
    # -- its indexes
    MISSING_INDEX = ("missing-index", Severity.WARNING, _BROKER_REPAIRS_OR_REINDEX)
    INDEX_SIZE = ("index-size", Severity.WARNING, _REINDEX)
    INDEX_OUT_OF_ORDER = ("index-out-of-order", Severity.ERROR, _REINDEX)
    INDEX_MISMATCH = ("index-mismatch", Severity.ERROR, _REINDEX)
    INDEX_PAST_END = ("index-past-end", Severity.ERROR, _REINDEX)
    INDEX_GARBAGE = ("index-garbage", Severity.ERROR, _REINDEX)
    INDEX_SHORT = ("index-short", Severity.ERROR, _REINDEX)
    INDEX_UNTRIMMED = ("index-untrimmed", Severity.NOTE, _NOTHING)
    INDEX_COARSE = ("index-coarse", Severity.NOTE, _ENTRY_PER_APPEND)
    INDEX_SPARSE = ("index-sparse", Severity.NOTE, _DENSER)
    TXN_INDEX_BAD = ("txn-index-bad", Severity.ERROR, _REINDEX)
    TXN_INDEX_TORN = ("txn-index-torn", Severity.ERROR, _REINDEX)
    TXN_INDEX_MISMATCH = ("txn-index-mismatch", Severity.ERROR, _REINDEX)
    TXN_INDEX_MISSING_ENTRY = ("txn-index-missing-entry", Severity.ERROR, _ABORTED_VISIBLE)
    # -- producers and epochs
    BAD_SNAPSHOT = ("bad-snapshot", Severity.WARNING, _BROKER_REPAIRS)
    SNAPSHOT_MISMATCH = ("snapshot-mismatch", Severity.ERROR, _REBUILD)
    SNAPSHOT_AHEAD = ("snapshot-ahead", Severity.WARNING, _COMPACTION)
    SNAPSHOT_EXPIRED = ("snapshot-expired", Severity.NOTE, _NOTHING)
    STRAY_SNAPSHOT = ("stray-snapshot", Severity.NOTE, _BROKER_REPAIRS)
    SNAPSHOT_PAST_END = ("snapshot-past-end", Severity.WARNING, _BROKER_REPAIRS)
    BAD_EPOCHS = ("bad-epochs", Severity.ERROR, _REBUILD)
    EPOCH_MISMATCH = ("epoch-mismatch", Severity.ERROR, _CORRECT_EPOCHS)
    EPOCHS_PAST_END = ("epochs-past-end", Severity.WARNING, _BROKER_REPAIRS)
    MISSING_EPOCHS = ("missing-epochs", Severity.NOTE, _NOTHING)
    # -- files and directories
    NO_SEGMENT = ("no-segment", Severity.WARNING, _EMPTY_LOG)
    BAD_NAME = ("bad-name", Severity.ERROR, _MOVE)
    ORPHAN_INDEX = ("orphan-index", Severity.WARNING, _BROKER_REPAIRS)
    UNFINISHED_FILE = ("unfinished-file", Severity.NOTE, _BROKER_REPAIRS)
    DELETED_FILE = ("deleted-file", Severity.NOTE, _BROKER_REPAIRS)
    BAD_METADATA = ("bad-metadata", Severity.ERROR, _RESTORE_FILE)
    MISSING_METADATA = ("missing-metadata", Severity.NOTE, _OLD_BROKER)
    UNREADABLE = ("unreadable", Severity.ERROR, _BAD_DISK)
    NO_PERMISSION = ("no-permission", Severity.ERROR, _NOT_VERIFIED)
    GONE = ("gone", Severity.NOTE, _REMOVED)
    # -- root files
    BAD_CHECKPOINT = ("bad-checkpoint", Severity.WARNING, _TREATED_AS_EMPTY)
    CHECKPOINT_UNKNOWN_PARTITION = ("checkpoint-unknown-partition", Severity.NOTE, _BROKER_REPAIRS)
    CHECKPOINT_PAST_END = ("checkpoint-past-end", Severity.ERROR, _LOST)
    LOG_START_PAST_END = ("log-start-past-end", Severity.ERROR, _CORRECT_START)
    CHECKPOINT_STALE = ("checkpoint-stale", Severity.NOTE, _BROKER_REPAIRS)
    MOVED_DIRECTORY = ("moved-directory", Severity.NOTE, _NOTHING)

    def __init__(self, code: str, severity: Severity, advice: str) -> None:
        self.code = code
        self.severity = severity
        self.advice = advice
        """May name the `{partition}` and the `{log_dir}` of a finding, for a complete command."""


EXPLAINED_BY_COMPACTION: Final = frozenset(
    {Fault.OFFSET_GAP.code, Fault.SEQUENCE_JUMP.code, Fault.SNAPSHOT_AHEAD.code}
)


_EXPLAINED_BY_KILL: Final = {
    Fault.INDEX_SHORT.code: _REBUILT,
    Fault.INDEX_PAST_END.code: _REBUILT,
    Fault.TXN_INDEX_TORN.code: _REBUILT,
    Fault.TXN_INDEX_MISSING_ENTRY.code: (
        "read_committed consumers may see records of an aborted transaction until the log is "
        "recovered after this unclean shutdown; run stratalog recover {log_dir}"
    ),
}
"""What a killed process or a power loss may leave in segments that recovery reads, and what to
do."""


class Finding(NamedTuple):
    """One thing that is wrong, or may be."""

    severity: Severity
    code: str
    path: str
    position: int
    """Position of the fault in the file, in bytes; -1 if it is about the file as a whole."""
    what: str
    advice: str

    def __str__(self) -> str:
        where = self.path if self.position < 0 else f"{self.path} at byte {self.position}"
        return f"{self.severity}: {where}: {self.what} [{self.code}]"


class VerifyCounts(NamedTuple):
    """How much was verified."""

    partitions: int = 0
    segments: int = 0
    files: int = 0
    size_bytes: int = 0
    """Size of `.log` files."""
    batches: int = 0
    records: int = 0
    """Control records included; those of old compressed sets are not counted."""
    index_entries: int = 0


class VerifyReport(NamedTuple):
    """All findings, and how much was verified."""

    findings: tuple[Finding, ...] = ()
    counts: VerifyCounts = VerifyCounts()

    @classmethod
    def sum(cls, reports: Iterable[VerifyReport]) -> VerifyReport:
        found = list(reports)
        findings = tuple(finding for report in found for finding in report.findings)
        return cls(findings, added(VerifyCounts(), *(report.counts for report in found)))

    def count_of(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def has_errors(self) -> bool:
        return self.count_of(Severity.ERROR) > 0

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of this severity or a worse one."""
        grades = list(Severity)
        wanted = set(grades[: grades.index(severity) + 1])
        return tuple(finding for finding in self.findings if finding.severity in wanted)


class Findings:
    """Collects findings. Lists a limited number per kind and file; `close` adds how many more."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._seen: Counter[tuple[Fault, str]] = Counter()
        self._more: Counter[tuple[Fault, str]] = Counter()

    def add(
        self,
        fault: Fault,
        path: Path | str,
        what: str,
        *,
        position: int = NO_POSITION,
        severity: Severity | None = None,
    ) -> None:
        where = str(path)
        if self._seen[fault, where] >= FINDINGS_OF_A_KIND_MAX:
            self._more[fault, where] += 1
        else:
            self._seen[fault, where] += 1
            grade = fault.severity if severity is None else severity
            advice = _advice_at(fault.advice, where)
            self._found.append(Finding(grade, fault.code, where, position, what, advice))

    def add_os_error(self, error: OSError, path: Path | str) -> None:
        """A file or directory that could not be read, so it was not verified."""
        where = error.path if isinstance(error, AccessDeniedError) else error.filename or path
        if isinstance(error, PermissionError):
            self.add(Fault.NO_PERMISSION, where, "no permission to read it")
        else:
            self.add(Fault.UNREADABLE, where, error.strerror or str(error))

    def take_listed(self, fault: Fault, path: Path | str, places: NDArray[Any]) -> list[int]:
        """The places that will be listed; the others are only counted."""
        if not len(places):
            return []
        room = max(0, FINDINGS_OF_A_KIND_MAX - self._seen[fault, str(path)])
        self.count_more(fault, path, max(0, len(places) - room))
        listed: list[int] = places[:room].tolist()
        return listed

    def count_more(self, fault: Fault, path: Path | str, count: int) -> None:
        """Count findings that are not listed."""
        if count:
            self._more[fault, str(path)] += count

    def close(self) -> tuple[Finding, ...]:
        """All findings, and how many more there are of each kind."""
        for (fault, path), more in self._more.items():
            what = f"and {more} more of this kind in this file"
            advice = _advice_at(fault.advice, path)
            self._found.append(Finding(fault.severity, fault.code, path, NO_POSITION, what, advice))
        return tuple(self._found)


def _advice_at(advice: str, path: str) -> str:
    """The advice with the directories of the file, quoted for a shell."""
    partition = dirname(path) or curdir
    return advice.replace("{partition}", shlex.quote(partition)).replace(
        "{log_dir}", shlex.quote(dirname(partition) or curdir)
    )


def downgraded(findings: Iterable[Finding], *, codes: Collection[str]) -> tuple[Finding, ...]:
    """The same findings, those of these kinds as notes."""
    return _regraded(findings, Severity.NOTE, dict.fromkeys(codes, _NOTHING))


def downgraded_after_crash(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, for a segment whose indexes recovery will rebuild because the last writer
    did not close it."""
    return _regraded(findings, Severity.WARNING, _EXPLAINED_BY_KILL)


def _regraded(
    findings: Iterable[Finding], severity: Severity, advice: Mapping[str, str]
) -> tuple[Finding, ...]:
    return tuple(
        finding._replace(severity=severity, advice=_advice_at(advice[finding.code], finding.path))
        if finding.code in advice
        else finding
        for finding in findings
    )
