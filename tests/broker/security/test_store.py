from __future__ import annotations

import json
import stat
from base64 import b64decode
from typing import TYPE_CHECKING

import pytest

from stratalog import LogDir
from stratalog.broker.security.acls import parse_acls
from stratalog.broker.security.scram import ScramCredential, ScramMechanism
from stratalog.broker.security.store import (
    SECURITY_FILE,
    SecurityStore,
    credential_text,
    encode_security,
    parse_credential,
)
from stratalog.errors import CorruptCheckpointError, StorageError, UnsupportedError
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

ACLS = tuple(
    parse_acls("allow User:alice Read on topic prefix a\ndeny User:* All on cluster from 1.2.3.4")
)
SHA_256 = ScramMechanism.SHA_256


def test_a_credential_has_kafkas_text() -> None:
    # From the RFC's vector: user "user", password "pencil".
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = ScramCredential.of_password(SHA_256, "pencil", salt=salt)
    text = (
        "salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,"
        "server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=,iterations=4096"
    )
    assert credential_text(credential) == text
    assert parse_credential(text) == credential
    for wrong in ("", text + ",x=1", text.replace("4096", "many"), text.replace("=4096", "=-1")):
        with pytest.raises(ValueError, match="SCRAM"):
            parse_credential(wrong)


def test_what_was_stored_is_there_again_and_private(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for path in dirs:
        path.mkdir()
    credential = ScramCredential.of_password(SHA_256, "secret")
    store = SecurityStore(Disk(), dirs)
    store.update(acls=ACLS)
    store.update(credentials={("al,ice", SHA_256): credential})
    for path in dirs:
        assert stat.S_IMODE((path / SECURITY_FILE).stat().st_mode) == 0o600
        again = SecurityStore(Disk(), [path]).state
        assert again.acls == ACLS
        assert again.credentials == {("al,ice", SHA_256): credential}
        assert "secret" not in (path / SECURITY_FILE).read_text()


def test_the_newest_copy_counts(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    for path in dirs:
        path.mkdir()
    SecurityStore(Disk(), dirs).update(acls=ACLS)
    SecurityStore(Disk(), dirs[1:]).update(acls=ACLS[:1])
    assert SecurityStore(Disk(), dirs).state.acls == ACLS[:1]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    store = SecurityStore(Disk(), [tmp_path / "missing"])
    with pytest.raises(StorageError):
        store.update(acls=ACLS)
    assert store.state.acls == ()


def test_a_file_that_is_not_understood_is_not_overwritten(tmp_path: Path) -> None:
    store = SecurityStore(Disk(), [tmp_path])
    store.update(acls=ACLS)
    path = tmp_path / SECURITY_FILE
    good = json.loads(encode_security(store.state))
    changes: list[dict[str, object]] = [
        {"acls": 1},
        {"acls": [{}]},
        {"scram": {"u": {"X": ""}}},
        {"generation": -1},
    ]
    for change in changes:
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(CorruptCheckpointError, match=SECURITY_FILE):
            SecurityStore(Disk(), [tmp_path])
    path.write_text(json.dumps({**good, "version": 2}))
    with pytest.raises(UnsupportedError):
        SecurityStore(Disk(), [tmp_path])


def test_a_log_directory_opens_with_the_file_in_it(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.append("orders", b"x")
        SecurityStore(Disk(), [tmp_path]).update(acls=ACLS)
    with LogDir.open(tmp_path) as logs:
        assert list(logs.topics) == ["orders"]
