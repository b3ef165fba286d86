"""Paths in stores, and the settings of stores."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from stratalog.errors import ConfigError, UnsupportedError
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store_options import (
    ENVIRONMENT,
    StoreKey,
    is_storage_option,
    merged_options,
    redacted,
    s3_arguments,
)


def test_a_uri_is_a_path_that_joins_compares_and_pickles() -> None:
    path = location("s3://bucket/logs/", {"s3.region": "here"})
    child = path / "orders-0" / "00000000000000000000.log"
    assert isinstance(child, RemotePath)
    assert str(child) == "s3://bucket/logs/orders-0/00000000000000000000.log"
    assert (child.name, child.suffix, child.parent.name) == (child.name, ".log", "orders-0")
    assert child.key == "bucket/logs/orders-0/00000000000000000000.log"
    assert child.with_name("x") == path / "orders-0/x"
    assert sorted([child, path]) == [path, child]
    assert pickle.loads(pickle.dumps(child)) == child
    assert child.absolute() == child.resolve() == child
    assert len({child, path / "orders-0" / child.name}) == 1
    assert path != Path("s3://bucket/logs")


def test_it_never_becomes_a_local_name() -> None:
    path = location("s3://bucket/logs", {})
    for use in (os.fspath, Path, os.listdir):
        with pytest.raises(UnsupportedError, match="s3://bucket/logs"):
            use(path)


def test_keys_of_other_file_systems() -> None:
    for uri, key in {
        "hdfs://name:8020/kafka/logs": "/kafka/logs",
        "abfss://box@account.dfs.core.windows.net/logs": "box/logs",
        "gs://bucket/logs": "bucket/logs",
        "memory://a/b": "a/b",
    }.items():
        found = location(uri, {})
        assert isinstance(found, RemotePath)
        assert (found.key, str(found)) == (key, uri)


def test_settings_of_hadoop_with_overrides_for_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    options = {
        "spark.hadoop.fs.s3a.access.key": "one",
        "fs.s3a.secret.key": "two",
        "fs.s3a.endpoint": "http://minio:9000/",
        "fs.s3a.bucket.logs.access.key": "three",
        "fs.s3a.bucket.other.access.key": "four",
        "fs.s3a.connection.timeout": "5s",
        "fs.s3a.fast.upload": "true",
    }
    assert s3_arguments(options, "logs") == {
        "access_key": "three",
        "secret_key": "two",
        "endpoint_override": "minio:9000",
        "scheme": "http",
        "region": "us-east-1",
        "request_timeout": 5.0,
    }
    anonymous = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    assert s3_arguments({"fs.s3a.aws.credentials.provider": anonymous}, "b") == {"anonymous": True}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other")
    assert s3_arguments({}, "b")["endpoint_override"] == "other"


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 's3\.endpoint'"):
        s3_arguments({"s3.endpint": "x"}, "b")


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, '{"s3.region": "env", "s3.endpoint": "e"}')
    assert merged_options({"s3.region": "given"}) == {"s3.region": "given", "s3.endpoint": "e"}
    monkeypatch.setenv(ENVIRONMENT, "no json")
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        merged_options({})


def test_secrets_are_not_shown() -> None:
    path = location("s3://key-id:my-secret@bucket/logs", {"fs.s3a.session.token": "my-token"})
    assert isinstance(path, RemotePath)
    shown = f"{path} {path!r} {StoreKey('s3', 'b', (('s3.secret.key', 'my-secret'),))!r}"
    assert "my-secret" not in shown
    assert "my-token" not in shown
    key = StoreKey("s3", "b", (("s3.secret.key", "my-secret"), ("s3.region", "here")))
    assert redacted("signed with my-secret in here", key) == "signed with *** in here"


def test_which_options_are_those_of_stores() -> None:
    assert is_storage_option("spark.hadoop.fs.s3a.endpoint")
    assert is_storage_option("S3.Endpoint")
    assert not is_storage_option("subscribe")
    assert not is_storage_option("kafka.s3.endpoint")
