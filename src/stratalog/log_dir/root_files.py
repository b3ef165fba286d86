"""The root files of one log directory, as its writer reads and writes them.

Invariants:

* the clean-shutdown marker is gone, durably, before anything in the directory changes, and comes
  back last: a crash in between is an unclean stop, whatever else reached the disk;
* a checkpoint is replaced whole, so after a crash it has its old or its new content.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError, StratalogError
from stratalog.format.checkpoint import decode_offsets, encode_offsets
from stratalog.format.metadata import (
    MetaProperties,
    decode_clean_shutdown,
    decode_meta_properties,
    encode_clean_shutdown,
)
from stratalog.format.names import RootFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.storage.disk import Disk

NO_BROKER_EPOCH: Final = -1

_log = logging.getLogger(__name__)


class LastStop(NamedTuple):
    """How whoever wrote to the directory last has stopped."""

    was_clean: bool
    broker_epoch: int = NO_BROKER_EPOCH
    """Of the Kafka broker that stopped cleanly. To be handed on: its controller asks for it."""


class RootFiles:
    """The files at `path` that are about the directory as a whole."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    def meta_properties(self) -> MetaProperties | None:
        """Which cluster the directory belongs to; None if it was never part of one."""
        path = self.path / RootFile.META_PROPERTIES.value
        try:
            return decode_meta_properties(self._disk.read_bytes(path))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise error.located(path) from None

    def take_last_stop(self) -> LastStop:
        """Read the clean-shutdown marker and remove it."""
        path = self.path / RootFile.CLEAN_SHUTDOWN.value
        try:
            content = self._disk.read_bytes(path)
        except FileNotFoundError:
            return LastStop(was_clean=False)
        self._disk.unlink(path)
        self._disk.fsync_dir(self.path)
        try:
            epoch = decode_clean_shutdown(content)
        except StratalogError as error:  # that the file exists is the message
            _log.warning("%s: %s", path, error)
            epoch = None
        return LastStop(was_clean=True, broker_epoch=NO_BROKER_EPOCH if epoch is None else epoch)

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Say that everything is on disk. Nothing may be written afterwards."""
        path = self.path / RootFile.CLEAN_SHUTDOWN.value
        self._disk.write_atomically(path, encode_clean_shutdown(broker_epoch))

    def read_offsets(self, file: RootFile) -> dict[TopicPartition, int]:
        """One of the four offset files. Unreadable is as good as missing, as for Kafka: then
        recovery begins at 0, and a log starts with its first segment."""
        path = self.path / file.value
        try:
            return decode_offsets(self._disk.read_bytes(path))
        except FileNotFoundError:
            return {}
        except StratalogError as error:
            _log.warning("%s: ignored: %s", path, error)
            return {}

    def write_offsets(self, file: RootFile, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace one of the four offset files."""
        self._disk.write_atomically(self.path / file.value, encode_offsets(offsets))
