"""Run retention and compaction in the background.

    python examples/maintenance.py [DIRECTORY]

A broker does this as soon as it starts. Here, nothing is deleted before `maintenance.start()`: the
settings of topics in a copied directory may be unknown, and deleted records do not come back.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from stratalog import LogDir

HOUR_MS = 3600 * 1000
BROKER = {  # by default, the cleaner runs every 15 s and retention every 5 min
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.initial.task.delay.ms": 0,
}
SEGMENT = {"segment.bytes": 1 << 20}


def fill(logs: LogDir) -> None:
    """A day of visits, kept for six hours; and prices, of which only the last one counts."""
    logs.create_topic("visits", 1, config={**SEGMENT, "retention.ms": 6 * HOUR_MS})
    logs.create_topic("prices", 1, config={**SEGMENT, "cleanup.policy": "compact"})
    day_ago_ms = time.time_ns() // 1_000_000 - 24 * HOUR_MS
    with logs.producer() as producer:
        for number in range(5_000):
            at_ms = day_ago_ms + number * 24 * HOUR_MS // 5_000
            producer.append("visits", b"v" * 1_000, timestamp=at_ms)
            key = b"product-%d" % (number % 50)
            producer.append("prices", b"%d" % number + b"." * 1_000, key=key, timestamp=at_ms)


def show_sizes(logs: LogDir) -> None:
    """Print the sizes of the topics."""
    for topic in ("visits", "prices"):
        log = logs.partition(topic, 0)
        records = sum(1 for _ in log.read("earliest"))
        size_bytes = sum(segment.size_bytes for segment in log.segments)
        print(f"  {topic}: {records} records, {size_bytes / 1e6:.1f} MB")


def is_done(logs: LogDir) -> bool:
    """`maintenance.state()` returns what was done so far, and what has failed."""
    state = logs.maintenance.state()
    for failing in state.failing:
        raise SystemExit(f"{failing.topic_partition}: {failing.failures[-1]}")
    deleted = sum(partition.deleted_segments for partition in state.partitions)
    cleaned = [each.cleaning for each in state.partitions if each.cleaning is not None]
    return deleted > 0 and all(cleaning.passes > 0 for cleaning in cleaned)


def run(directory: Path) -> None:
    """Fill, start the service, and watch."""
    with LogDir.open(directory, config=BROKER) as logs:
        fill(logs)
        print("before:")
        show_sizes(logs)
        with logs.maintenance:  # or logs.maintenance.start(), until the directory is closed
            while not is_done(logs):
                time.sleep(0.05)
        print("after:")
        show_sizes(logs)
        last = {record.key: record.value for record in logs.partition("prices", 0).read("earliest")}
        price = (last[b"product-7"] or b"").rstrip(b".")
        print(f"  {len(last)} products, the last price of product-7: {price.decode()}")


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary))


if __name__ == "__main__":
    main()
