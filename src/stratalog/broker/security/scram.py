"""SCRAM (RFC 5802) as Kafka uses it: stored credentials, and the server's side.

An authentication takes two messages from each side:

    client   n,,n=USER,r=NONCE                      the user, and a random text
    server   r=NONCE+MORE,s=SALT,i=ITERATIONS       how to salt the password
    client   c=biws,r=NONCE+MORE,p=PROOF            proves that the client knows the password
    server   v=SIGNATURE                            proves that the server knows it too

The server stores two keys that are derived from the password, never the password. Whoever steals
them can pretend to be the server, but cannot log in.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

from stratalog.errors import AuthenticationError

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Of credentials that clients send (AlterUserScramCredentials)."""

_NONCE_BYTES: Final = 18
_SALT_BYTES: Final = 16

# RFC 5802, section 7. A user name has "=2C" for a comma and "=3D" for an equals sign.
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_NAME: Final = r"(?:[^,=]|=2C|=3D)+"
_BASE64: Final = r"[A-Za-z0-9+/=]+"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^,]*)*)"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


class ScramMechanism(enum.Enum):
    """The mechanisms, with the numbers that Kafka's requests and records have for them."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def kafka_name(self) -> str:
        """Such as SCRAM-SHA-256."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def hash_name(self) -> str:
        """Such as sha256, for hashlib."""
        return self.name.replace("_", "").lower()

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)


SCRAM_MECHANISMS: Final = {mechanism.kafka_name: mechanism for mechanism in ScramMechanism}


class ScramCredential(NamedTuple):
    """What a server stores of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_password(
        cls,
        mechanism: ScramMechanism,
        password: str,
        *,
        iterations: int = ITERATIONS_MIN,
        salt: bytes | None = None,
    ) -> ScramCredential:
        salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
        return cls.of_salted_password(mechanism, salted, iterations=iterations, salt=salt)

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salted: bytes, *, iterations: int, salt: bytes
    ) -> ScramCredential:
        """From what AlterUserScramCredentials sends instead of a password."""
        stored_key = mechanism.hash(mechanism.hmac(salted, b"Client Key"))
        return cls(salt, stored_key, mechanism.hmac(salted, b"Server Key"), iterations)


class ScramServer:
    """One authentication. `first` takes the client's first message, `final` its second one.

    Both raise AuthenticationError. Its text is the same for a wrong password, an unknown user and a
    malformed message, as in Kafka.
    """

    def __init__(self, mechanism: ScramMechanism) -> None:
        self._mechanism = mechanism
        self._credential: ScramCredential | None = None
        self._header = self._first_bare = self._server_first = self._nonce = ""
        self.user = ""

    def user_of(self, message: bytes) -> str:
        """The user that the client's first message names."""
        found = _CLIENT_FIRST.fullmatch(_text(message, self._mechanism))
        if found is None or found["extensions"]:  # the extension is for delegation tokens
            raise invalid_credentials(self._mechanism.kafka_name)
        self.user = unescape(found["user"])
        if found["authorization_id"] and unescape(found["authorization_id"]) != self.user:
            raise other_authorization_id()
        self._header, self._first_bare, self._nonce = found["header"], found["bare"], found["nonce"]
        return self.user

    def first(
        self, credential: ScramCredential | None, *, server_nonce: str | None = None
    ) -> bytes:
        """The response to the client's first message, for the user's credential (None: no such
        user)."""
        if credential is None:
            raise invalid_credentials(self._mechanism.kafka_name)
        self._credential = credential
        self._nonce += new_nonce() if server_nonce is None else server_nonce
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """The response to the client's second message: the client is who it says."""
        found = _CLIENT_FINAL.fullmatch(_text(message, self._mechanism))
        credential = self._credential
        if found is None or credential is None or found["extensions"]:
            raise invalid_credentials(self._mechanism.kafka_name)
        signed = f"{self._first_bare},{self._server_first},{found['bare']}".encode()
        is_same_log_in = found["nonce"] == self._nonce and found["binding"] == _base64(self._header)
        if not is_same_log_in or not self._is_proven(credential, signed, found["proof"]):
            raise invalid_credentials(self._mechanism.kafka_name)
        return b"v=" + b64encode(self._mechanism.hmac(credential.server_key, signed))

    def _is_proven(self, credential: ScramCredential, signed: bytes, proof_text: str) -> bool:
        signature = self._mechanism.hmac(credential.stored_key, signed)
        try:
            proof = b64decode(proof_text, validate=True)
        except ValueError:
            return False
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        return hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)


def new_nonce() -> str:
    """A text that nobody can guess."""
    return secrets.token_urlsafe(_NONCE_BYTES)


def invalid_credentials(mechanism: str) -> AuthenticationError:
    """Kafka's text for whatever a mechanism does not accept."""
    return AuthenticationError(
        "Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {mechanism}"
    )


def other_authorization_id() -> AuthenticationError:
    """Kafka's text where a user asks to act as another one."""
    return AuthenticationError(
        "Authentication failed: Client requested an authorization id that is different from "
        "username"
    )


def unescape(name: str) -> str:
    """A user name without the escapes of SCRAM."""
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _text(message: bytes, mechanism: ScramMechanism) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise invalid_credentials(mechanism.kafka_name) from None
