"""Real clients over TLS and SASL, with right and wrong certificates and passwords, and ACLs."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from stratalog.broker.broker import Broker
from tests.compat.certificates import certificates
from tests.compat.processes import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

api: Any = confluent_kafka.admin  # its types leave out half of the names

pytestmark = pytest.mark.slow

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS = ",".join(
    f"{name}://127.0.0.1:0" for name in ("SSL", "MUTUAL", "SASL_PLAINTEXT", "SASL_SSL")
)
TIMEOUT_S = 60


def _config() -> dict[str, object]:
    made = certificates()
    return {
        "listeners": LISTENERS,
        "listener.security.protocol.map": "MUTUAL:SSL",
        "ssl.keystore.location": str(made.server),
        "ssl.truststore.location": str(made.authority),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        **SMALL,
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    users = {"admin": "admin-secret", "alice": "alice-secret"}
    with Broker(tmp_path, users=users, config=_config()) as broker:
        yield broker


# -- the three libraries


def _confluent(broker: Broker, listener: str, **extra: Any) -> dict[str, Any]:
    protocol = "SSL" if listener == "MUTUAL" else listener
    return {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": protocol,
        "ssl.ca.location": str(certificates().authority),
        "error_cb": lambda _: None,
        "log_level": 0,
        **extra,
    }


def _confluent_user(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


def _kafka_python(broker: Broker, listener: str, **extra: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.address_of(listener),
        "security_protocol": "SSL" if listener == "MUTUAL" else listener,
        "ssl_cafile": str(certificates().authority),
        **extra,
    }


def _python_user(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def _aiokafka(broker: Broker, listener: str, **extra: Any) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(certificates().authority))
    if listener == "MUTUAL":
        context.load_cert_chain(certificates().client)
    return {
        "bootstrap_servers": broker.address_of(listener),
        "security_protocol": "SSL" if listener == "MUTUAL" else listener,
        "ssl_context": context if listener != "SASL_PLAINTEXT" else None,
        **extra,
    }


async def _aiokafka_topics(options: dict[str, Any]) -> list[str]:
    admin = AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        topics: list[str] = await admin.list_topics()
        return topics
    finally:
        await admin.close()


def _own_certificate() -> dict[str, str]:
    path = str(certificates().client)
    return {"ssl.certificate.location": path, "ssl.key.location": path}


def test_tls_of_one_and_of_two_sides(broker: Broker) -> None:
    broker.log_dir.create_topic("orders")
    for listener, extra in (("SSL", {}), ("MUTUAL", _own_certificate())):
        admin = api.AdminClient(_confluent(broker, listener, **extra))
        expected = {"orders"} if listener == "SSL" else set()  # alice has no rights
        assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == expected
    own = {"ssl_certfile": str(certificates().client), "ssl_keyfile": str(certificates().client)}
    for listener, files in (("SSL", {}), ("MUTUAL", own)):
        client = kafka.KafkaAdminClient(**_kafka_python(broker, listener, **files))
        assert client.list_topics() == (["orders"] if listener == "SSL" else [])
        client.close()
        topics = asyncio.run(_aiokafka_topics(_aiokafka(broker, listener)))
        assert topics == (["orders"] if listener == "SSL" else [])


def test_certificates_that_nobody_trusts(broker: Broker) -> None:
    stranger = str(certificates().stranger)
    for extra in ({}, {"ssl.certificate.location": stranger, "ssl.key.location": stranger}):
        admin = api.AdminClient(_confluent(broker, "MUTUAL", **extra))
        with pytest.raises(confluent_kafka.KafkaException):
            admin.list_topics(timeout=2)
    admin = api.AdminClient(_confluent(broker, "SSL"))
    assert admin.list_topics(timeout=TIMEOUT_S).brokers


def test_a_client_without_tls_on_a_listener_with_it(broker: Broker) -> None:
    host, port = broker.address_of("SSL").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        received = b""
        with suppress(ConnectionResetError):
            while data := client.recv(1000):
                received += data
        assert len(received) < 10  # an alert of TLS at most, no answer
    admin = api.AdminClient(_confluent(broker, "SSL"))
    assert admin.list_topics(timeout=TIMEOUT_S).brokers


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_log_ins_with_each_mechanism(broker: Broker, mechanism: str) -> None:
    broker.log_dir.create_topic("orders")
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        for user, topics in (("admin", ["orders"]), ("alice", [])):
            password = f"{user}-secret"
            admin = api.AdminClient(
                _confluent(broker, listener, **_confluent_user(mechanism, user, password))
            )
            assert list(admin.list_topics(timeout=TIMEOUT_S).topics) == topics
            who = _python_user(mechanism, user, password)
            client = kafka.KafkaAdminClient(**_kafka_python(broker, listener, **who))
            assert client.list_topics() == topics
            client.close()
            assert asyncio.run(_aiokafka_topics(_aiokafka(broker, listener, **who))) == topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_passwords(broker: Broker, mechanism: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    wrong = _confluent_user(mechanism, "admin", "wrong")
    admin = api.AdminClient(_confluent(broker, "SASL_SSL", **wrong) | {"error_cb": errors.append})
    end = time.monotonic() + 60  # a busy machine may take seconds to shake hands
    while confluent_kafka.KafkaError._AUTHENTICATION not in {error.code() for error in errors}:
        assert time.monotonic() < end, errors
        with pytest.raises(confluent_kafka.KafkaException):
            admin.list_topics(timeout=1)
        admin.poll(0)
    who = _python_user(mechanism, "nobody", "wrong")
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            **_kafka_python(broker, "SASL_PLAINTEXT", **who), bootstrap_timeout_ms=500
        )
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(_aiokafka_topics(_aiokafka(broker, "SASL_PLAINTEXT", **who)))


# -- rights, through an admin client


def _admin(broker: Broker, user: str, password: str | None = None) -> Any:
    who = _confluent_user("SCRAM-SHA-256", user, password or f"{user}-secret")
    return api.AdminClient(_confluent(broker, "SASL_PLAINTEXT", **who))


def _read_orders() -> Any:
    return api.AclBinding(
        api.ResourceType.TOPIC,
        "ord",
        api.ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        api.AclOperation.READ,
        api.AclPermissionType.ALLOW,
    )


def _any_acl() -> Any:
    return api.AclBindingFilter(
        api.ResourceType.ANY,
        None,
        api.ResourcePatternType.ANY,
        None,
        None,
        api.AclOperation.ANY,
        api.AclPermissionType.ANY,
    )


def test_acls_by_api_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    users = {"admin": "admin-secret", "alice": "alice-secret"}
    with Broker(tmp_path, users=users, config=_config()) as broker:
        broker.log_dir.create_topic("orders")
        alice = _admin(broker, "alice")
        assert list(alice.list_topics(timeout=TIMEOUT_S).topics) == []
        admin = _admin(broker, "admin")
        (created,) = admin.create_acls([_read_orders()]).values()
        assert created.result(TIMEOUT_S) is None
        assert list(alice.list_topics(timeout=TIMEOUT_S).topics) == ["orders"]
        (refused,) = alice.create_acls([_read_orders()]).values()
        with pytest.raises(confluent_kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            refused.result(TIMEOUT_S)
    with Broker(tmp_path, users=users, config=_config()) as broker:
        assert list(_admin(broker, "alice").list_topics(timeout=TIMEOUT_S).topics) == ["orders"]
        admin = _admin(broker, "admin")
        assert admin.describe_acls(_any_acl()).result(TIMEOUT_S) == [_read_orders()]
        (deleted,) = admin.delete_acls([_any_acl()]).values()
        assert deleted.result(TIMEOUT_S) == [_read_orders()]
        assert list(_admin(broker, "alice").list_topics(timeout=TIMEOUT_S).topics) == []


def test_acls_of_a_file_cannot_be_deleted_by_clients(tmp_path: Path) -> None:
    rules = tmp_path / "acls.txt"
    rules.write_text("allow User:alice Describe on topic prefix ord\n")
    users = tmp_path / "users.properties"
    users.write_text("# passwords\nadmin=admin-secret\nalice = alice-secret\n")
    config = {"super.users": "User:admin"}
    with Broker(
        tmp_path / "data",
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        users=users,
        acls=rules,
        config=config,
    ) as broker:
        broker.log_dir.create_topic("orders")
        admin = _admin(broker, "admin")
        assert len(admin.describe_acls(_any_acl()).result(TIMEOUT_S)) == 1
        (deleted,) = admin.delete_acls([_any_acl()]).values()
        with suppress(confluent_kafka.KafkaException):
            deleted.result(TIMEOUT_S)
        assert list(_admin(broker, "alice").list_topics(timeout=TIMEOUT_S).topics) == ["orders"]
        assert len(admin.describe_acls(_any_acl()).result(TIMEOUT_S)) == 1


def test_users_by_api_can_log_in_also_after_a_restart(tmp_path: Path) -> None:
    users = {"admin": "admin-secret"}
    with Broker(tmp_path, users=users, config=_config()) as broker:
        info = api.ScramCredentialInfo(api.ScramMechanism.SCRAM_SHA_256, 8192)
        changes = [api.UserScramCredentialUpsertion("dora", info, b"dora-secret")]
        admin = _admin(broker, "admin")
        futures = admin.alter_user_scram_credentials(changes)
        assert futures["dora"].result(TIMEOUT_S) is None
        assert _admin(broker, "dora").list_topics(timeout=TIMEOUT_S).brokers
    with Broker(tmp_path, users=users, config=_config()) as broker:
        assert _admin(broker, "dora").list_topics(timeout=TIMEOUT_S).brokers
        admin = _admin(broker, "admin")
        described = admin.describe_user_scram_credentials(["dora"])["dora"].result(TIMEOUT_S)
        (found,) = described.scram_credential_infos
        assert (found.mechanism, found.iterations) == (api.ScramMechanism.SCRAM_SHA_256, 8192)
        deletion = api.UserScramCredentialDeletion("dora", api.ScramMechanism.SCRAM_SHA_256)
        assert admin.alter_user_scram_credentials([deletion])["dora"].result(TIMEOUT_S) is None
        with pytest.raises(confluent_kafka.KafkaException):
            _admin(broker, "dora").list_topics(timeout=1)


# -- records


def _rights(broker: Broker) -> None:
    """What alice needs to produce with idempotence and to read in a group."""
    bindings = [
        api.AclBinding(
            kind,
            name,
            api.ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            operation,
            api.AclPermissionType.ALLOW,
        )
        for kind, name, operation in (
            (api.ResourceType.TOPIC, "orders", api.AclOperation.WRITE),
            (api.ResourceType.TOPIC, "orders", api.AclOperation.READ),
            (api.ResourceType.GROUP, "readers", api.AclOperation.READ),
        )
    ]
    admin = _admin(broker, "admin")
    for future in admin.create_acls(bindings).values():
        future.result(TIMEOUT_S)


def _produced(options: dict[str, Any], topic: str, count: int) -> set[int | None]:
    """Produce records; the errors."""
    codes: list[int | None] = []
    producer = confluent_kafka.Producer({**options, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(
            topic,
            b"x" * 100_000,
            on_delivery=lambda error, _: codes.append(None if error is None else error.code()),
        )
    producer.flush(TIMEOUT_S)
    assert len(codes) == count
    return set(codes)


def test_records_over_tls_and_sasl_with_rights(broker: Broker) -> None:
    for name in ("orders", "other"):
        broker.log_dir.create_topic(name, 3)
    _rights(broker)
    alice = _confluent(
        broker, "SASL_SSL", **_confluent_user("SCRAM-SHA-512", "alice", "alice-secret")
    )
    assert _produced(alice, "orders", 30) == {None}
    refused = confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert _produced(alice, "other", 1) == {refused}
    group = {**alice, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**group, "group.id": "readers"})
    consumer.subscribe(["orders"])
    values: list[bytes | None] = []
    while len(values) < 30:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert values == [b"x" * 100_000] * 30
    foreign = confluent_kafka.Consumer({**group, "group.id": "others"})
    foreign.subscribe(["orders"])
    message = foreign.poll(TIMEOUT_S)
    foreign.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED


def test_large_answers_over_tls_reach_every_client_as_they_were_written(broker: Broker) -> None:
    log_dir = broker.log_dir
    log_dir.create_topic("large")
    values = [bytes([number]) * 900_000 for number in range(20)]
    for value in values:
        log_dir.append("large", value)
    who = _python_user("PLAIN", "admin", "admin-secret")
    consumer = kafka.KafkaConsumer(
        "large",
        **_kafka_python(broker, "SASL_SSL", **who),
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    found = [next(consumer).value for _ in values]
    consumer.close()
    assert found == values
    assert asyncio.run(_aiokafka_values(_aiokafka(broker, "SASL_SSL", **who), 20)) == values


async def _aiokafka_values(options: dict[str, Any], count: int) -> list[bytes]:
    consumer = aiokafka.AIOKafkaConsumer("large", **options, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]
    finally:
        await consumer.stop()
