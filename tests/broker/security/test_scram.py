"""Log-ins by SASL: the vectors of the RFCs, and what real clients and a real Kafka said."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode

import pytest

from stratalog.broker.security.sasl import MECHANISMS, FixedUsers, SaslConversation, SaslState
from stratalog.broker.security.scram import (
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    ScramServer,
)
from stratalog.errors import AuthenticationError
from tests.golden_wire import Exchange, exchanges, read_with_kio
from tests.looping import for_each

CLIENTS = ("confluent", "kafka-python", "aiokafka")
PASSWORDS = {"admin": "admin-secret", "alice": "alice-secret", "carol": "carol-secret"}


class RfcVector:
    """RFC 7677, section 3: user "user", password "pencil"."""

    CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    SERVER_FIRST = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    CLIENT_FINAL = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_log_in_of_the_rfc() -> None:
    credential = ScramCredential.of_password(
        ScramMechanism.SHA_256, "pencil", salt=RfcVector.SALT, iterations=4096
    )
    server = ScramServer(ScramMechanism.SHA_256)
    assert server.user_of(RfcVector.CLIENT_FIRST) == "user"
    first = server.first(credential, server_nonce=RfcVector.SERVER_NONCE)
    assert first == RfcVector.SERVER_FIRST
    assert server.final(RfcVector.CLIENT_FINAL) == RfcVector.SERVER_FINAL


def test_any_changed_byte_of_the_last_message_is_refused() -> None:
    credential = ScramCredential.of_password(
        ScramMechanism.SHA_256, "pencil", salt=RfcVector.SALT, iterations=4096
    )
    for at in range(len(RfcVector.CLIENT_FINAL)):
        message = bytearray(RfcVector.CLIENT_FINAL)
        message[at] ^= 1
        server = ScramServer(ScramMechanism.SHA_256)
        server.user_of(RfcVector.CLIENT_FIRST)
        server.first(credential, server_nonce=RfcVector.SERVER_NONCE)
        with pytest.raises(AuthenticationError):
            server.final(bytes(message))


@for_each(
    "message",
    [
        b"",
        b"n",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=\xff,r=abc",
    ],
)
def test_malformed_first_messages_are_refused_with_one_text(message: bytes) -> None:
    with pytest.raises(AuthenticationError, match="invalid credentials with SASL mechanism"):
        ScramServer(ScramMechanism.SHA_512).user_of(message)


def test_names_are_unescaped_and_nobody_acts_as_another() -> None:
    server = ScramServer(ScramMechanism.SHA_256)
    assert server.user_of(b"n,,n=a=2Cb=3Dc,r=x") == "a,b=c"
    assert server.user_of(b"y,a=bob,n=bob,r=x") == "bob"
    with pytest.raises(AuthenticationError, match="authorization id"):
        server.user_of(b"n,a=admin,n=bob,r=x")


# -- captured log-ins


def _tokens(exchange: Exchange) -> tuple[bytes, bytes, int, str | None]:
    """Token of the request; token, error code and message of the response."""
    assert exchange.response is not None
    asked, answered = read_with_kio(exchange.request), read_with_kio(exchange.response)
    return asked.auth_bytes, answered.auth_bytes, int(answered.error_code), answered.error_message


@pytest.mark.parametrize("client", CLIENTS)
def test_captured_log_ins_end_as_they_did(client: str) -> None:
    carol = ScramCredential.of_password(
        ScramMechanism.SHA_256, "carol-secret", salt=b"saltsaltsaltsalt"
    )
    outcomes = set()
    servers: dict[int, ScramServer] = {}
    mechanisms: dict[int, str] = {}
    for exchange in exchanges(client, "sasl"):
        request = exchange.request
        if request.api_key == 17:
            mechanisms[request.connection] = re.split(rb"\x00[\x05\r]", request.payload)[
                -1
            ].decode()
        if request.api_key != 36 or exchange.response is None:
            continue
        token, answer, code, message = _tokens(exchange)
        name = mechanisms[request.connection]
        outcomes.add((name, code))
        if name == "PLAIN":
            users = FixedUsers(PASSWORDS)
            conversation = SaslConversation(MECHANISMS, users)
            assert conversation.handshake(name)
            assert _outcome(conversation, token) == (answer, code, message)
        elif name == "SCRAM-SHA-512":  # carol has no such credential
            server = ScramServer(SCRAM_MECHANISMS[name])
            server.user_of(token)
            with pytest.raises(AuthenticationError) as caught:
                server.first(None)
            assert (caught.value.code, str(caught.value)) == (code, message)
        elif request.connection not in servers:
            server = servers[request.connection] = ScramServer(SCRAM_MECHANISMS[name])
            assert server.user_of(token) == "carol"
            client_nonce = token.partition(b",r=")[2]
            nonce = answer.partition(b"r=" + client_nonce)[2].partition(b",")[0].decode()
            assert server.first(carol, server_nonce=nonce) == answer
        else:
            assert servers[request.connection].final(token) == answer
    assert {("PLAIN", 0), ("PLAIN", 58), ("SCRAM-SHA-256", 0)} <= outcomes


def _outcome(conversation: SaslConversation, token: bytes) -> tuple[bytes, int, str | None]:
    try:
        return conversation.authenticate(token), 0, ""
    except AuthenticationError as error:
        return b"", error.code, str(error)


# -- the states of a connection


def test_a_log_in_by_scram_through_a_conversation() -> None:
    conversation = SaslConversation(MECHANISMS, FixedUsers(PASSWORDS))
    assert conversation.handshake("SCRAM-SHA-512")
    first = conversation.authenticate(b"n,,n=alice,r=abc").decode()
    assert conversation.state is SaslState.AUTHENTICATING
    nonce, salt = first.split(",")[0], b64decode(first.split(",")[1][2:])
    mechanism = ScramMechanism.SHA_512
    salted = hashlib.pbkdf2_hmac("sha512", b"alice-secret", salt, 4096)
    client_key = mechanism.hmac(salted, b"Client Key")
    signed = f"n=alice,r=abc,{first},c=biws,{nonce}".encode()
    signature = mechanism.hmac(mechanism.hash(client_key), signed)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = conversation.authenticate(f"c=biws,{nonce},p={b64encode(proof).decode()}".encode())
    assert final == b"v=" + b64encode(mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed))
    assert conversation.principal == "User:alice"


def test_an_unknown_mechanism_fails_the_connection() -> None:
    conversation = SaslConversation(MECHANISMS, FixedUsers(PASSWORDS))
    assert not conversation.handshake("GSSAPI")
    assert conversation.state is SaslState.FAILED
    with pytest.raises(AuthenticationError):
        conversation.authenticate(b"\0alice\0alice-secret")


def test_a_second_log_in_cannot_change_the_principal() -> None:
    conversation = SaslConversation(MECHANISMS, FixedUsers(PASSWORDS))
    conversation.handshake("PLAIN")
    conversation.authenticate(b"\0alice\0alice-secret")
    conversation.handshake("PLAIN")
    conversation.authenticate(b"alice\0alice\0alice-secret")
    conversation.handshake("PLAIN")
    with pytest.raises(AuthenticationError, match="Cannot change principals"):
        conversation.authenticate(b"\0admin\0admin-secret")
    assert conversation.state is SaslState.FAILED


@for_each(
    "case",
    [
        (b"", "invalid credentials"),
        (b"alice", "invalid credentials"),
        (b"\0alice\0alice-secret\0", "invalid credentials"),
        (b"\0\xff\0x", "invalid credentials"),
        (b"\0\0x", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0wrong", "Invalid username or password"),
        (b"admin\0alice\0alice-secret", "authorization id"),
    ],
)
def test_what_plain_refuses(case: tuple[bytes, str]) -> None:
    token, text = case
    conversation = SaslConversation(["PLAIN"], FixedUsers(PASSWORDS))
    conversation.handshake("PLAIN")
    with pytest.raises(AuthenticationError, match=text):
        conversation.authenticate(token)
