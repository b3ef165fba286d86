"""Write a log and read it: topics, keys, headers, offsets, times; then look at the files.

    python examples/write_and_read.py [DIRECTORY]

Without DIRECTORY, it uses a temporary directory. The result is a Kafka log directory: a broker can
open it, and `stratalog ls DIRECTORY` lists it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stratalog import LogDir, open_dirs


def write(directory: Path) -> None:
    """Append to a topic: one record at a time, and many."""
    with LogDir.open(directory) as logs:
        logs.create_topic("orders", partitions=3, config={"retention.ms": "86400000"})

        stored = logs.append(
            "orders",
            b"2 apples",
            key=b"alice",
            headers={"source": b"web"},
            timestamp=1_700_000_000_000,
        )
        print(f"alice's order is in partition {stored.partition} at offset {stored.offset}")

        # A producer collects records in batches, which is much faster for many records.
        with logs.producer(compression="zstd", linger_ms=20) as producer:
            for number in range(1000):
                customer = b"customer-%d" % (number % 10)
                timestamp = 1_700_000_000_000 + number * 1000
                producer.append("orders", b"%d pears" % number, key=customer, timestamp=timestamp)

        logs.flush()  # from here on it survives a power failure


def read(directory: Path) -> None:
    """Read by offset and by time. This takes no lock, so it works while another process writes."""
    for partition in open_dirs(directory).partitions_of("orders"):
        print(f"{partition.topic_partition}: {partition.log_end_offset} records")
        for record in partition.read("earliest", max_records=2):
            print(f"  offset {record.offset}: {record.key!r} wants {record.value!r}")
        found = partition.find_time(1_700_000_500_000)
        if found is not None:
            record = next(partition.read(found.offset))
            print(f"  at 500 seconds or later: offset {record.offset}, {record.value!r}")


def main() -> None:
    """Write, then read."""
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
        read(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        read(Path(temporary))


if __name__ == "__main__":
    main()
