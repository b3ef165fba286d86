from __future__ import annotations

import pytest

from stratalog.broker.security.listeners import (
    Listener,
    SecurityProtocol,
    check_exposure,
    parse_listeners,
)
from stratalog.errors import ConfigError
from tests.looping import for_each

SASL_SSL = SecurityProtocol.SASL_SSL


def test_without_settings_there_is_one_on_loopback() -> None:
    (listener,) = parse_listeners({})
    assert (str(listener), listener.protocol) == (
        "PLAINTEXT://127.0.0.1:0",
        SecurityProtocol.PLAINTEXT,
    )
    assert listener.is_loopback


def test_several_listeners_with_names_of_their_own() -> None:
    inside, outside = parse_listeners(
        {
            "listeners": "internal://127.0.0.1:9092, EXTERNAL://[::]:9093,CONTROLLER://:9094",
            "advertised.listeners": "External://kafka.example.org:19093",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
            "controller.listener.names": "CONTROLLER",
            "ssl.keystore.location": "general.pem",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            "listener.name.external.ssl.keystore.location": "own.pem",
        }
    )
    assert (inside.name, inside.host, inside.port) == ("INTERNAL", "127.0.0.1", 9092)
    assert inside.advertised_host is None
    assert inside.setting("ssl.keystore.location") == "general.pem"
    assert (outside.name, outside.protocol, outside.host) == ("EXTERNAL", SASL_SSL, "::")
    assert (outside.advertised_host, outside.advertised_port) == ("kafka.example.org", 19093)
    assert outside.setting("ssl.keystore.location") == "own.pem"
    assert outside.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert str(outside) == "EXTERNAL://[::]:9093"


def test_users_of_a_jaas_config() -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        ' username="admin" password="x" user_admin="admin-secret" user_alice=plain\\\n;'
    )
    text = jaas.replace("\\\n", " ")
    (listener,) = parse_listeners(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": text,
        }
    )
    assert listener.plain_users == {"admin": "admin-secret", "alice": "plain"}


@for_each(
    "case",
    [
        ({"listeners": "127.0.0.1:9092"}, "'127.0.0.1:9092' is not NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://host:99999"}, "is not NAME://HOST:PORT"),
        ({"listeners": "FOO://:1"}, "add it to listener.security.protocol.map"),
        ({"listeners": "SSL://:1,ssl://:2"}, "SSL is listed twice"),
        ({"listeners": "SSL://:1,PLAINTEXT://:1"}, "port 1 is listed twice"),
        (
            {"listeners": "CONTROLLER://:1", "controller.listener.names": "CONTROLLER"},
            "no listener",
        ),
        ({"listener.security.protocol.map": "A:B"}, "'A:B' is not NAME:PROTOCOL"),
        ({"advertised.listeners": "SSL://h:1"}, "SSL is not among the listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "no host that a client can connect"),
    ],
)
def test_wrong_settings_are_named(case: tuple[dict[str, str], str]) -> None:
    settings, reason = case
    with pytest.raises(ConfigError) as caught:
        parse_listeners(settings)
    assert reason in str(caught.value)
    assert caught.value.name in settings


def test_wrong_values_of_a_listener() -> None:
    listener = Listener("X", settings={"sasl.enabled.mechanisms": "GSSAPI"})
    with pytest.raises(ConfigError, match="'GSSAPI' is not supported; use PLAIN"):
        _ = listener.mechanisms
    listener = Listener("X", settings={"ssl.client.auth": "maybe"})
    with pytest.raises(ConfigError, match=r"ssl\.client\.auth: 'maybe' must be none"):
        _ = listener.client_auth


@for_each(
    "case",
    [
        (Listener("A", host="127.0.0.1"), True),
        (Listener("A", host="127.9.9.9"), True),
        (Listener("A", host="::1"), True),
        (Listener("A", host="localhost"), True),
        (Listener("A", host=""), False),
        (Listener("A", host="0.0.0.0"), False),
        (Listener("A", host="10.1.2.3"), False),
        (Listener("A", SecurityProtocol.SSL, host=""), False),
        (Listener("A", SecurityProtocol.SSL, "", settings={"ssl.client.auth": "requested"}), False),
        (Listener("A", SecurityProtocol.SSL, "", settings={"ssl.client.auth": "required"}), True),
        (
            Listener("A", SecurityProtocol.PLAINTEXT, "", settings={"ssl.client.auth": "required"}),
            False,
        ),
        (Listener("A", SecurityProtocol.SASL_PLAINTEXT, host=""), True),
        (Listener("A", SASL_SSL, host=""), True),
    ],
)
def test_other_machines_need_authentication(case: tuple[Listener, bool]) -> None:
    listener, is_accepted = case
    if is_accepted:
        check_exposure([listener])
    else:
        with pytest.raises(ConfigError, match="allow it with --allow-anonymous"):
            check_exposure([Listener("B"), listener])
