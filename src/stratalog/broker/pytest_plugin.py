"""A Kafka broker for tests: the fixture `kafka_broker`.

    def test_orders(kafka_broker):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})

Each test gets a broker of its own, with empty log directories, on a free port of loopback; it is
ready when the test starts. `@pytest.mark.kafka_broker(config={"num.partitions": 3})` passes
arguments to `Broker`. pytest finds the fixture once Stratalog is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.broker.broker import Broker

_MARKER = "kafka_broker(**arguments): arguments of the Broker of the fixture kafka_broker."


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def kafka_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A Kafka broker; `bootstrap_servers` is what clients need, `log_dir` what it writes to."""
    from stratalog.broker.broker import Broker  # noqa: PLC0415  # only where it is used

    marker = request.node.get_closest_marker("kafka_broker")
    if marker is not None and marker.args:
        reason = "the marker kafka_broker takes arguments by name, such as config={...}"
        raise pytest.UsageError(reason)
    arguments: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    directory = tmp_path_factory.mktemp("kafka-broker")
    with Broker(directory, **arguments) as broker:
        yield broker
