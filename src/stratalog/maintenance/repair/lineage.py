"""Leader epochs as batches show them: where two copies of a log diverge.

An epoch has one leader, and a leader assigns an offset to one batch only. So up to where their
epochs differ, two copies have the same batches; from there on one of them has what a follower must
truncate. Between the last batch on which both agree and the first on which they do not, it is not
known where that begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stratalog.format.checkpoint import EpochEntry


class Divergence(NamedTuple):
    """The first offset at which two copies have batches of different leader epochs."""

    offset: int
    epochs: tuple[int, int]
    agreed_offset: int
    """Below it the copies are known to be the same."""


def divergence(a: NDArray[Any], b: NDArray[Any]) -> Divergence | None:
    """Where the batches of two copies part ways; None if they do not. Batches without an epoch,
    as old brokers wrote them, say nothing."""
    _, at_a, at_b = np.intersect1d(a["first_offset"], b["first_offset"], return_indices=True)
    left, right = a["leader_epoch"][at_a], b["leader_epoch"][at_b]
    is_known = (left >= 0) & (right >= 0)
    different = np.flatnonzero(is_known & (left != right))
    if not len(different):
        return None
    first = int(different[0])
    agreed = at_a[:first][is_known[:first]]
    return Divergence(
        int(a["first_offset"][at_a[first]]),
        (int(left[first]), int(right[first])),
        int(a["last_offset"][agreed[-1]]) + 1 if len(agreed) else 0,
    )


def fits(rows: NDArray[Any], known: Sequence[EpochEntry]) -> bool:
    """Whether batches have the epochs of a leader-epoch-checkpoint, which has some."""
    if not known:
        return False
    numbers, starts = np.array(known, np.int64).T
    rows = rows[rows["leader_epoch"] >= 0]
    at = np.searchsorted(starts, rows["first_offset"], "right") - 1
    return bool(((at < 0) | (numbers[np.maximum(at, 0)] == rows["leader_epoch"])).all())
