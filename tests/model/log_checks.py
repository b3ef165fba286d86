"""Whether a log is what the model says."""

from __future__ import annotations

from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.model.driven_log import DrivenLog
from tests.model.index_checks import check_indexes
from tests.model.log_model import Producer


class CheckedLog(DrivenLog):
    """A log that can be held against its model."""

    def check(self) -> None:
        """Everything that can be asked of a log."""
        log, model = self.log, self.model
        assert log.log_end_offset == model.end
        assert log.high_watermark == model.end
        assert log.log_start_offset == model.log_start_offset
        assert list(log.read()) == model.records(model.log_start_offset)
        assert log.recovery_point <= model.end
        self._check_epochs()
        self._check_transactions()

    def check_lookups(self, offset: int, timestamp: int) -> None:
        """Of one offset and one timestamp."""
        log, model = self.log, self.model
        if model.log_start_offset <= offset <= model.end:
            expected = model.records(offset)[:3]
            assert list(log.read(offset, max_records=3)) == expected
        hit = log.find_time(timestamp)
        assert (None if hit is None else tuple(hit)) == model.find_time(timestamp)

    def check_files(self) -> None:
        """What another reader finds in the directory, and whether the indexes are right."""
        with PartitionView(self.path, log_start_offset=self.model.log_start_offset) as view:
            records = self.model.records(self.model.log_start_offset)
            assert list(view.read()) == records
        check_indexes(self.path)

    def _check_epochs(self) -> None:
        for batch in self.model.batches:
            if batch.first_offset >= self.known_from:
                epoch = self.log.epochs.epoch_for_offset(batch.first_offset)
                assert epoch == batch.leader_epoch, (self.log.epochs.entries, batch)

    def _check_transactions(self) -> None:
        """A reload begins at the log start, and may know less of what began before it."""
        log, model = self.log, self.model
        start, stable = model.log_start_offset, model.last_stable_offset()
        expected = model.producers()
        is_open_below = False
        for producer_id, producer in expected.items():
            if 0 <= producer.open_txn_first_offset < self.known_from:
                is_open_below = True
            elif producer.last_offset >= self.known_from:
                assert self._known(producer_id) == producer
        if is_open_below:
            return
        assert log.last_stable_offset == stable
        start = max(start, self.known_from)
        committed = list(log.read(start, isolation=IsolationLevel.READ_COMMITTED))
        assert committed == model.committed(start, stable)
        aborted = [txn for txn in model.aborted() if txn.last_offset >= start]
        began_below = {txn.last_offset for txn in aborted if txn.first_offset < self.known_from}
        assert [
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in log.aborted_transactions(start)
            if txn.last_offset not in began_below
        ] == [txn for txn in aborted if txn.last_offset not in began_below]

    def _known(self, producer_id: int) -> Producer:
        found = self.log.producers.producers[producer_id]
        newest = found.batches[-1] if found.batches else None
        return Producer(
            found.producer_epoch,
            -1 if newest is None else newest.last_sequence,
            -1 if newest is None else newest.last_offset,
            found.open_txn_first_offset,
        )
