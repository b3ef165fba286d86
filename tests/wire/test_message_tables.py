"""The tables against kio's classes: every message, every version, with random values."""

from __future__ import annotations

import dataclasses
import datetime
import random
import types
import typing
import uuid
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import TZAware, i32Timedelta, i64Timedelta

from stratalog.format.messages.schema import read_message, write_message
from stratalog.wire.apis import SERVED, ApiKey, Versions
from stratalog.wire.message_tables import messages_of
from tests.effort import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = {
    "int8": (-(1 << 7), 1 << 7),
    "int16": (-(1 << 15), 1 << 15),
    "int32": (-(1 << 31), 1 << 31),
    "int64": (-(1 << 63), 1 << 63),
    "uint16": (0, 1 << 16),
}


def _milliseconds(rng: random.Random) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=rng.randrange(1 << 30))


def _time(rng: random.Random) -> TZAware:
    return TZAware.parse(datetime.datetime.fromtimestamp(rng.randrange(1 << 31), tz=datetime.UTC))


MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda rng: rng.random() < 0.5,
    "string": lambda rng: rng.choice(["", "a", "Füße", "x" * 200]),
    "bytes": lambda rng: rng.randbytes(rng.randrange(300)),
    "records": lambda rng: rng.randbytes(rng.randrange(300)),
    "uuid": lambda rng: uuid.UUID(bytes=rng.randbytes(16)),
    "float64": lambda rng: rng.random(),
    "error_code": lambda rng: rng.choice(list(KioErrorCode)),
    "timedelta_i32": lambda rng: i32Timedelta.parse(_milliseconds(rng)),
    "timedelta_i64": lambda rng: i64Timedelta.parse(_milliseconds(rng)),
    "datetime_i64": _time,
}


def _random(kind: str | None, hint: Any, rng: random.Random) -> Any:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        if rng.random() < 0.3:
            return None
        hint = next(of for of in typing.get_args(hint) if of is not type(None))
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return tuple(_random(kind, element, rng) for _ in range(rng.randrange(3)))
    if dataclasses.is_dataclass(hint):
        return _instance(hint, rng)
    if kind in NUMBERS:
        return rng.randrange(*NUMBERS[kind])
    return MAKERS[str(kind)](rng)


def _instance(of: Any, rng: random.Random) -> Any:
    hints = typing.get_type_hints(of)
    return of(
        **{
            field.name: _random(field.metadata.get("kafka_type"), hints[field.name], rng)
            for field in dataclasses.fields(of)
        }
    )


def _written(instance: Any) -> bytes:
    out = BytesIO()
    entity_writer(type(instance))(out, instance)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("api", ApiKey, ids=lambda api: api.title)
def test_every_version_is_as_kio_has_it(api: ApiKey) -> None:
    rng = random.Random(api.value)
    for version in range(api.request.version_min, api.request.version_max + 1):
        for load, message in (
            (load_request_schema, api.request),
            (load_response_schema, api.response),
        ):
            of = load(api.value, version)
            assert of.__flexible__ == message.is_flexible(version)
            for _ in range(scaled(4)):
                data = _written(_instance(of, rng))
                values, end = read_message(message, data, 0, version)
                assert end == len(data)
                assert write_message(message, values, version) == data


@pytest.mark.slow
@pytest.mark.parametrize("api", ApiKey, ids=lambda api: api.title)
def test_fields_that_are_not_given_have_their_defaults(api: ApiKey) -> None:
    """An empty answer is one that kio reads too, with its own defaults where it has some."""
    for version in range(api.response.version_min, api.response.version_max + 1):
        of = load_response_schema(api.value, version)
        read, _ = entity_reader(of)(write_message(api.response, {}, version), 0)
        for field in dataclasses.fields(of):
            if field.default is not dataclasses.MISSING:
                assert getattr(read, field.name) == field.default, (version, field.name)


def test_no_version_is_served_that_has_no_table() -> None:
    for api, versions in SERVED.items():
        assert api.request.version_min <= versions.first
        assert versions.last <= api.request.version_max
        assert api.response.version_max == api.request.version_max


def test_all_tables_are_used() -> None:
    used = {message.name for api in ApiKey for message in (api.request, api.response)}
    modules = ("records", "cluster", "groups", "transactions", "admin", "security")
    assert used == {name for module in modules for name in messages_of(module)}


def test_versions_as_text() -> None:
    assert str(Versions(0, 0)) == "0"
    assert str(Versions(3, 13)) == "3-13"
    assert 13 in Versions(3, 13)
