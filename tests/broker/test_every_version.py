"""Every version of every request that is served, with any values: a whole answer, and no error that
the handlers did not expect. Captured conversations have few of the older versions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.broker.broker import Broker
from stratalog.format.messages.schema import Array
from stratalog.format.record import Record, encode_batch
from stratalog.wire.apis import SERVED
from stratalog.wire.message_tables import ZERO_UUID
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.messages.schema import Field, Kind

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "group.min.session.timeout.ms": 1,
}
VALUES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [0, 1, 2, 4, 32],
    "int16": [1, -1, 2],
    "int32": [0, 1, -1, 5],
    "int64": [0, -1, 5],
    "string": ["t", "", "x"],
    "bytes": [b"", b"\0\1\0\0"],
    "records": [bytes(encode_batch([Record(0, 1000, b"k", b"v")])), b""],
    "uuid": [ZERO_UUID, "AAAAAAAAAAAAAAAAAAAAAQ"],
}
SHORT_TIMES = {"maxWaitMs", "timeoutMs", "sessionTimeoutMs", "rebalanceTimeoutMs"}


class Bodies:
    """Random requests of one version."""

    def __init__(self, version: int, seed: str) -> None:
        self._version = version
        self._random = random.Random(seed)

    def struct(self, fields: tuple[Field, ...]) -> dict[str, Any]:
        present = (each for each in fields if each.since <= self._version <= each.until)
        return {each.name: self._value(each) for each in present}

    def _value(self, field: Field) -> Any:
        if self._version >= field.nullable_since and self._random.random() < 0.25:
            return None
        if field.name in SHORT_TIMES:
            return self._random.choice([1, 20])
        if field.name.startswith("clientSoftware"):
            return "raw"
        return self._of_kind(field.kind)

    def _of_kind(self, kind: Kind) -> Any:
        if isinstance(kind, Array):
            return [self._of_kind(kind.element) for _ in range(self._random.choice([0, 1, 2]))]
        return self._random.choice(VALUES[kind]) if isinstance(kind, str) else self.struct(kind)


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "denied"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_every_version_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_allowed: bool, read_only: bool
) -> None:
    with Broker(tmp_path) as broker:
        broker.log_dir.create_topic("t", 2)
    config = {**AUTHORIZER, "super.users": "User:ANONYMOUS" if is_allowed else ""}
    with Broker(tmp_path, config=config, read_only=read_only) as broker:
        for api, versions in SERVED.items():
            with RawClient(broker.bootstrap_servers) as client:
                for version in range(versions.first, versions.last + 1):
                    bodies = Bodies(version, f"{api.title} {version}")
                    body = bodies.struct(api.request.fields)
                    client.call(api, version, body)
    unexpected = [record.getMessage() for record in caplog.records if record.exc_info]
    assert unexpected == []
