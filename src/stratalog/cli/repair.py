"""`stratalog repair`: repair partitions, or show what would be done; undo a repair.

Nothing is changed without `--yes`. What is replaced is kept in the partition directory.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from stratalog.cli.arguments import JsonOption, LocalLogDirOption, WhereArgument, flag, repeatable
from stratalog.cli.output import Progress, corrupt_row, json_line, json_names, report_error
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import is_partition_dir, targets_of
from stratalog.errors import LogDirLockedError, NotALogDirError, StratalogError, command_line
from stratalog.format.names import CLUSTER_METADATA_TOPIC
from stratalog.log.partition_view import identity_of
from stratalog.partitions.inventory import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.maintenance.repair.journal import Repair
    from stratalog.maintenance.repair.plan import RepairPlan

FAILS_WHEN: Final = (
    "records are lost, an error remains, something could not be done, or there is something to "
    "repair and --yes is not given"
)


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LocalLogDirOption = None,
    yes: Annotated[
        bool, flag("--yes", "Carry out the plan. Default: only show it.", short="-y")
    ] = False,
    copies: Annotated[
        list[Path] | None,
        repeatable(
            "--from",
            "DIR",
            "A copy of the partition, or a log directory that contains one: a backup, or a "
            "replica of another broker. Its valid batches replace what is corrupt or missing.",
        ),
    ] = None,
    undo: Annotated[bool, flag("--undo", "Undo the last repair of each partition.")] = False,
    forget: Annotated[
        bool,
        flag(
            "--forget",
            "Delete the files kept by earlier repairs. These repairs can then no longer be undone.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Repair partitions: remove corrupt bytes, restore records from copies, rebuild indexes.

    Without --yes, the command only shows the plan: it takes no lock and writes nothing. A corrupt
    range in the middle of a segment is removed (quarantined), and the batches after it are kept. A
    torn tail is truncated. Indexes, transaction indexes, producer snapshots and leader epochs that
    are wrong or missing are rebuilt from the log. Every loss is listed by offset. (`stratalog
    recover` does what a broker does: it truncates the log at the first corrupt batch.)

    With --from, valid batches of copies replace what is corrupt or missing. If copies have
    different batches for an offset, the newest leader epoch wins, then the majority. A copy is used
    only up to the offset at which its leader epochs diverge from those of the log; a follower would
    truncate it there. Gaps left by compaction are kept.

    The files that a repair replaces are kept as hard links in a directory repair-TIME inside the
    partition directory. Brokers ignore this directory. --undo restores the files, unless the log
    was written to since; --forget deletes them.

    \b
    Examples:
      stratalog repair /var/lib/kafka/data
      stratalog repair /var/lib/kafka/data/orders-3 --yes
      stratalog repair /var/lib/kafka/data/orders-3 --from /mnt/broker2/data --from /backup --yes
      stratalog repair /var/lib/kafka/data/orders-3 --undo

    With --json, each object has a kind: quarantined, corrected, restored, lost, missing (offsets
    between segments), diverging, rebuilt, removed, checkpoint, left (an error that a repair does
    not change), open-transaction, partition or summary.
    """
    if undo and (yes or forget or copies):
        raise typer.BadParameter("--undo cannot be combined with --yes, --from or --forget")
    partitions = [
        path
        for path in targets_of(where, log_dir).all_partitions(with_empty=bool(copies))
        if identity_of(path)[0].topic != CLUSTER_METADATA_TOPIC  # controllers repair it
    ]
    if undo or forget:
        _undo_or_forget(partitions, is_undo=undo, as_json=as_json)
        return
    printer = RepairPrinter(as_json=as_json, is_done=yes)
    failed = 0
    with _Locks("stop that process first, or leave out --yes to see the plan") as locks:
        for path, plan in _plans(partitions, copies or []):
            if plan is None or (yes and not plan.is_empty and not locks.take(path)):
                failed += 1
                continue
            try:
                is_wanted = yes and not plan.is_empty
                printer.show(plan, _apply(path, copies or []) if is_wanted else None)
            except StratalogError as error:
                failed += 1
                report_error(f"{label_of(plan.topic_partition)}: {error}")
    printer.sum_up(failed, [*(where or ["."]), *_options(log_dir, copies)])
    if failed or printer.is_failure:
        raise typer.Exit(1)


class _Locks:
    """The locks of log directories, each taken when it is first needed. One that another process
    holds is reported once."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._stack = ExitStack()
        self._is_held: dict[Path, bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, partition: Path) -> bool:
        """Whether the lock of the partition's log directory is held by us now."""
        from stratalog.partitions.lock import lock_dirs  # noqa: PLC0415
        from stratalog.storage.disk import Disk  # noqa: PLC0415

        root = partition.absolute().parent
        if root not in self._is_held:
            try:
                self._stack.enter_context(lock_dirs(Disk(), [root]))
                self._is_held[root] = True
            except LogDirLockedError as error:
                self._is_held[root] = False
                report_error(f"{error.what}; {self._advice}")
        return self._is_held[root]


def _options(log_dirs: Sequence[Path] | None, copies: Sequence[Path] | None) -> Iterator[str]:
    for name, paths in (("-d", log_dirs), ("--from", copies)):
        for path in paths or ():
            yield from (name, str(path))


def _plans(
    partitions: Sequence[Path], copies: Sequence[Path]
) -> Iterator[tuple[Path, RepairPlan | None]]:
    """The plan for each partition; None, and an error, if it cannot be read."""
    from stratalog.maintenance.repair.plan import plan_repair  # noqa: PLC0415 - kernels

    sizes = [sum(log.stat().st_size for log in path.glob("*.log")) for path in partitions]
    progress, done = Progress(sum(sizes), is_output_last=True), 0
    for path, size_bytes in zip(partitions, sizes, strict=True):
        try:
            plan = plan_repair(path, copies_of(path, copies))
        except StratalogError as error:
            progress.clear()
            report_error(f"{path}: {error}")
            yield path, None
        else:
            progress.clear()
            yield path, plan
        done += size_bytes
        progress.update(done)
    progress.clear()


def copies_of(partition: Path, given: Sequence[Path]) -> list[Path]:
    """The copies of this partition: directories of partitions, or log directories that have it."""
    found = []
    for path in given:
        if not path.is_dir():
            raise NotALogDirError(f"{path}: --from takes a directory")
        inside = path / str(identity_of(partition)[0])
        if is_partition_dir(path):
            found.append(path)
        elif inside.is_dir() and is_partition_dir(inside):
            found.append(inside)
    return [path for path in found if path.resolve() != partition.resolve()]


def _apply(path: Path, copies: Sequence[Path]) -> Repair | None:
    """Plan again under the lock, and do it. None if an interrupted repair was dropped, and nothing
    else is to be done."""
    from stratalog.maintenance.repair.files import apply_repair, finish_interrupted  # noqa: PLC0415
    from stratalog.maintenance.repair.plan import plan_repair  # noqa: PLC0415
    from stratalog.storage.disk import Disk  # noqa: PLC0415

    disk = Disk()
    finished = finish_interrupted(path, disk)
    plan = plan_repair(path, copies_of(path, copies))
    return finished if plan.is_empty else apply_repair(plan, disk)


def _undo_or_forget(partitions: Sequence[Path], *, is_undo: bool, as_json: bool) -> None:
    from stratalog.maintenance.repair.files import forget_repairs, undo_repair  # noqa: PLC0415
    from stratalog.maintenance.repair.journal import repairs_of  # noqa: PLC0415
    from stratalog.storage.disk import Disk  # noqa: PLC0415

    disk, done, failed = Disk(), 0, 0
    with _Locks("stop that process first") as locks:
        for path in partitions:
            repairs = repairs_of(path)
            if not repairs:
                continue
            try:
                if not locks.take(path):
                    failed += 1
                    continue
                if is_undo:
                    undo_repair(repairs[0], disk)
                else:
                    forget_repairs(path, disk)
            except StratalogError as error:
                failed += 1
                report_error(str(error))
                continue
            done += 1
            _print_undone(path, repairs, is_undo=is_undo, as_json=as_json)
    if not done and not failed:
        report_error("there is no repair to undo" if is_undo else "no files of repairs are kept")
    if failed or not done:
        raise typer.Exit(1)


def _print_undone(path: Path, repairs: Sequence[Repair], *, is_undo: bool, as_json: bool) -> None:
    names = [change.name for change in repairs[0].changes]
    if as_json:
        kind = "undone" if is_undo else "forgotten"
        row = {"kind": kind, "path": str(path), "repair": str(repairs[0].directory)}
        print(json_line({**row, "files": names}))
    elif is_undo:
        print(f"{path}: {counted(len(names), 'file')} as before {repairs[0].directory.name}")
    else:
        print(f"{path}: the kept files of {counted(len(repairs), 'repair')} were removed")


class RepairPrinter:
    """Prints plans and what was done, as text or JSON."""

    def __init__(self, *, as_json: bool, is_done: bool) -> None:
        self._as_json = as_json
        self._is_done = is_done
        self._plans: list[RepairPlan] = []
        self._left = 0

    @property
    def is_failure(self) -> bool:
        is_open = not self._is_done and any(not plan.is_empty for plan in self._plans)
        return is_open or bool(self._left) or any(plan.lost for plan in self._plans)

    def show(self, plan: RepairPlan, repair: Repair | None) -> None:
        self._plans.append(plan)
        self._left += len(plan.left)
        if self._as_json:
            for row in _rows(plan, repair):
                print(json_line(row))
        elif not plan.is_empty or plan.left or plan.lost or plan.missing:
            print("\n".join(_lines(plan, repair)))

    def sum_up(self, failed: int, words: Sequence[str]) -> None:
        plans = [plan for plan in self._plans if not plan.is_empty]
        lost = sum(len(plan.lost) for plan in plans)
        partitions = len(self._plans) + failed
        if self._as_json:
            row = {
                "kind": "summary", "isDryRun": not self._is_done, "partitions": partitions,
                "repaired": len(plans), "failed": failed, "lostRanges": lost, "left": self._left,
            }  # fmt: skip
            print(json_line(row))
            return
        parts = []
        if plans:
            verb = "repaired" if self._is_done else "to repair"
            parts.append(f"{len(plans)} {verb}, {counted(lost, 'range')} of offsets lost")
        if failed:
            parts.append(f"{failed} failed")
        total = counted(partitions, "partition")
        print(f"{total}: {', '.join(parts) or 'nothing to repair'}", end="")
        if plans and not self._is_done:
            repair = command_line("repair", *words, "--yes")
            print(f"; nothing was changed. To repair: {repair}", end="")
        print()


def _lines(plan: RepairPlan, repair: Repair | None) -> Iterator[str]:
    yield f"{label_of(plan.topic_partition)} ({plan.path}):"
    steps = [*_log_steps(plan), *_file_steps(plan)]
    if repair is not None:
        steps += [("OPEN", _open_text(*each)) for each in repair.open_transactions]
    for verb, text in steps:
        yield f"  {verb:<11} {text}"
    if repair is not None:
        kept = [change.name for change in repair.changes if change.existed]
        kept_bytes = sum((repair.directory / "old" / name).stat().st_size for name in kept)
        undo = command_line("repair", plan.path, "--undo")
        yield (
            f"  done; {counted(len(kept), 'file')} ({human_size(kept_bytes)}) kept in "
            f"{repair.directory.name}. To undo: {undo}"
        )


def _log_steps(plan: RepairPlan) -> Iterator[tuple[str, str]]:
    for name in plan.interrupted:
        yield "finish", f"{name} was interrupted; it is completed or rolled back first"
    for corrupt in plan.quarantined:
        position, size_bytes, reason, is_torn = corrupt.place
        where = f"{corrupt.path.name} at byte {position}, {counted(size_bytes, 'byte')}"
        yield "truncate" if is_torn else "quarantine", f"{where}: {reason}"
    for batch in plan.corrected:
        place = f"{batch.path.name} at byte {batch.position}"
        span = f"offsets {batch.first_offset} to {batch.last_offset}"
        yield "correct", f"{place}: the batch has {span}, leader epoch {batch.leader_epoch}"
    for restored in plan.restored:
        batches = counted(restored.batches, "batch")
        span = f"offsets {restored.first_offset} to {restored.next_offset - 1}"
        yield "restore", f"{span} ({batches}) from {restored.path}"
    yield from (("not used", str(each)) for each in plan.diverging)
    yield from (("LOST", str(each)) for each in plan.lost)
    yield from (("missing", str(each)) for each in plan.missing)


def _file_steps(plan: RepairPlan) -> Iterator[tuple[str, str]]:
    yield from (("rebuild", f"{name}: {why}") for name, why in plan.rebuilt)
    yield from (("remove", f"{name}: {why}") for name, why in plan.removed)
    for name, before, after in plan.checkpoints:
        yield "lower", f"offset in {name}: {before} to {after}, the new end of the log"
    for finding in plan.left:
        yield "not fixed", f"{finding.path}: {finding.what}; {finding.advice}"


def _open_text(producer_id: int, first_offset: int) -> str:
    return (
        f"transaction of producer {producer_id} from offset {first_offset} on: its marker may be "
        "lost, so read_committed consumers wait there; to end it, run kafka-transactions.sh "
        "abort"
    )


def _rows(plan: RepairPlan, repair: Repair | None) -> Iterator[dict[str, Any]]:
    names = plan.topic_partition._asdict()
    for corrupt in plan.quarantined:
        yield {"kind": "quarantined", **names, **corrupt_row(corrupt)}
    for kind, found in (
        ("corrected", plan.corrected),
        ("restored", plan.restored),
        ("diverging", plan.diverging),
        ("lost", plan.lost),
        ("missing", plan.missing),
        ("left", plan.left),
    ):
        for each in found:
            row = json_names({**each._asdict(), "path": str(each.path)})
            yield {"kind": kind, **names, **row}
    for kind, files in (("rebuilt", plan.rebuilt), ("removed", plan.removed)):
        for name, why in files:
            yield {"kind": kind, **names, "path": str(plan.path / name), "reason": why}
    for name, before, after in plan.checkpoints:
        root = plan.path.absolute().parent
        row = {"path": str(root / name), "offset": before, "newOffset": after}
        yield {"kind": "checkpoint", **names, **row}
    for producer_id, first_offset in repair.open_transactions if repair is not None else ():
        transaction = {"producerId": producer_id, "firstOffset": first_offset}
        yield {"kind": "open-transaction", **names, **transaction}
    yield {
        "kind": "partition",
        **names,
        "path": str(plan.path),
        "logEndOffset": plan.log_end_offset,
        "isChanged": repair is not None,
        "keptIn": None if repair is None else str(repair.directory),
    }
