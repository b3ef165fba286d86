"""Move money between accounts: both records of a transfer are committed, or neither.

python examples/transactions.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stratalog import IsolationLevel, LogDir
from stratalog.errors import ProducerFencedError


class NotEnoughError(Exception):
    """The account does not have that much."""


def transfer(logs: LogDir, source: bytes, target: bytes, amount: int) -> None:
    """The end of the block commits, an exception aborts. No reader sees one record alone."""
    with logs.transaction("transfers") as transaction:
        transaction.append("accounts", b"-%d" % amount, key=source)
        transaction.append("accounts", b"+%d" % amount, key=target)
        if balances(logs).get(source, 0) < amount:
            raise NotEnoughError(source.decode())


def balances(logs: LogDir) -> dict[bytes | None, int]:
    """Sums of the records that a consumer with isolation.level=read_committed sees."""
    sums: dict[bytes | None, int] = {}
    for partition in logs.partitions_of("accounts"):
        for record in partition.read("earliest", isolation=IsolationLevel.READ_COMMITTED):
            sums[record.key] = sums.get(record.key, 0) + int(record.value or 0)
    return sums


def run(directory: Path) -> None:
    """A deposit, two transfers, and a producer that comes too late."""
    with LogDir.open(directory, config={"num.partitions": 3}) as logs:
        with logs.transaction("deposits") as deposit:
            deposit.append("accounts", b"+100", key=b"alice")

        transfer(logs, b"alice", b"bob", 30)
        print("after a transfer:", balances(logs))

        try:
            transfer(logs, b"alice", b"bob", 1000)
        except NotEnoughError as error:
            print(f"{error} does not have that much; nothing has changed:", balances(logs))

        # One producer per transactional id: a second one fences the first.
        late = logs.transaction("transfers")
        transfer(logs, b"bob", b"alice", 5)
        try:
            late.append("accounts", b"+1000000", key=b"mallory").result()
        except ProducerFencedError:
            print("a producer that was replaced cannot write:", balances(logs))


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary))


if __name__ == "__main__":
    main()
