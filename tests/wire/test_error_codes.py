from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from stratalog.wire.error_codes import ErrorCode


def test_names_and_codes_are_kafkas() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        code.name.upper(): code.value for code in KioErrorCode
    }
