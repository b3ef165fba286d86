"""What comes before the first record: the config, the directories, the logs that need recovery."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.config import BrokerConfig
from stratalog.errors import InconsistentLogDirsError, NotALogDirError, StratalogError
from stratalog.log_dir.root import PartitionSlot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stratalog.storage.disk import Disk


def broker_config_of(
    config: BrokerConfig | Mapping[str, object] | Path | str | None,
) -> BrokerConfig:
    """A broker's config as an object, its properties, a `server.properties` file, or Kafka's own
    defaults."""
    if config is None:
        return BrokerConfig()
    if isinstance(config, BrokerConfig):
        return config
    if isinstance(config, Path | str):
        return BrokerConfig.from_properties_file(Path(config))
    return BrokerConfig.parse(config)


def prepare_dirs(disk: Disk, dirs: Sequence[Path], *, create: bool) -> None:
    """See that the log directories are there, each of them once. With `create`, those that are not
    are made, durably."""
    if not dirs:
        raise NotALogDirError("no log directory given")
    resolved = [path.resolve() for path in dirs]
    for path in resolved:
        if resolved.count(path) > 1:
            raise InconsistentLogDirsError(f"{path} is given twice")
    for path in dirs:
        if path.is_dir():
            continue
        if not create:
            raise NotALogDirError(f"{path}: no such directory")
        _make_with_parents(disk, path)


def _make_with_parents(disk: Disk, path: Path) -> None:
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        disk.mkdir(directory, exist_ok=True)
        disk.fsync_dir(directory.parent)


def load_all(slots: Iterable[PartitionSlot], threads: int) -> None:
    """Open the logs, several at a time. Raises what the first of them raises."""
    with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-load") as pool:
        for _ in pool.map(PartitionSlot.log, slots):
            pass


def give_up(slots: Iterable[PartitionSlot]) -> None:
    """Opening failed: close what is open. The next one recovers."""
    for slot in slots:
        log = slot.retire()
        if log is not None:
            with suppress(StratalogError):
                log.close()
