"""Commands on URIs and tiered topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stratalog.partitions.view import set_default_tiered_store
from stratalog.storage.remote_path import set_default_options
from stratalog.storage.store import store_of
from tests.cli.command import inside, stratalog
from tests.golden.cases import GoldenCase
from tests.golden_tiered import TieredCase, consumed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores import CountingServer


@pytest.fixture(autouse=True)
def _no_defaults() -> Iterator[None]:
    yield
    set_default_options({})
    set_default_tiered_store(None)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TieredCase]:
    return {str(case): case for case in unpack(tmp_path_factory.mktemp("tiered"))}


def test_commands_print_the_same_of_a_uri(counting: CountingServer) -> None:
    case = GoldenCase("txn")
    uri = counting.upload(case.root, "cli")
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    for args in (
        ["read", "txn", "-d", "@", "--isolation-level", "read_committed"],
        ["find", "txn:0", "-d", "@", "--offset", "20", "--json"],
        ["ls", "@", "--segments", "--json"],
        ["dump", "@/txn-0/00000000000000000000.log"],
        ["stats", "@", "--json"],
        ["verify", "@", "--json"],
        ["verify", "@/txn-0", "--json"],
    ):
        local = inside(*(each.replace("@", str(case.root)) for each in args))
        remote = inside(*(each.replace("@", uri) for each in args), *options)
        assert remote.status == local.status, remote
        if args[0] in {"read", "find", "dump"}:
            assert "\n".join(remote.lines).replace(uri, "@") == "\n".join(local.lines).replace(
                str(case.root), "@"
            )
        elif args[0] == "ls":
            assert segments(remote.rows, uri) == segments(local.rows, str(case.root))
        else:
            assert without_speed(remote.rows) == without_speed(local.rows)
        assert b"strata-secret" not in remote.stdout
        assert "strata-secret" not in remote.stderr


def without_speed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a command printed, but not how fast it was."""
    names = {"seconds", "recordsPerSecond", "bytesPerSecond"}
    return [{name: row[name] for name in row if name not in names} for row in rows]


def segments(rows: list[dict[str, Any]], root: str) -> list[dict[str, Any]]:
    """The segments and their index files; stores have no disk space."""
    return [
        {**row, "path": row["path"].replace(root, "@")} for row in rows if row["kind"] == "segment"
    ]


def test_verify_finds_corruption_in_a_store(counting: CountingServer, tmp_path: Path) -> None:
    root = GoldenCase("txn").copy_to(tmp_path)
    log, index, snapshot = (
        root / "txn-0" / name
        for name in (
            "00000000000000000011.log",
            "00000000000000000039.timeindex",
            "00000000000000000048.snapshot",
        )
    )
    for file, at in ((log, 100), (index, 9), (snapshot, 3)):
        data = bytearray(file.read_bytes())
        data[at] ^= 0xFF
        file.write_bytes(data)
    uri = counting.upload(root, "corrupt")
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    local = inside("verify", root, "--json")
    remote = inside("verify", uri, "--json", *options)
    found = [
        [(row["code"], row["path"].replace(where, "@"), row["position"]) for row in rows[:-1]]
        for where, rows in ((str(root), local.rows), (uri, remote.rows))
    ]
    assert {path.rpartition("/")[2] for _, path, _ in found[0]} >= {
        file.name for file in (log, index, snapshot)
    }
    assert found[0] == found[1]
    assert (local.status, remote.status) == (1, 1)
    assert f"stratalog repair {uri}/txn-0" in remote.rows[0]["advice"] + remote.rows[1]["advice"]


def test_a_report_on_logs_in_a_store(counting: CountingServer, tmp_path: Path) -> None:
    case = GoldenCase("txn")
    uri = counting.upload(case.root, "report")
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    (local,) = inside("report", case.root, "-o", tmp_path / "local.html", "--json").rows
    (remote,) = inside("report", uri, "-o", tmp_path / "remote.html", "--json", *options).rows
    same = ("partitions", "records", "sizeBytes", "problems")
    assert [remote[name] for name in same] == [local[name] for name in same]
    assert uri in (tmp_path / "remote.html").read_text()


def test_advice_on_logs_in_a_store(counting: CountingServer) -> None:
    case = GoldenCase("txn")
    uri = counting.upload(case.root, "tune")
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    rest = ["--simulate", "segment.bytes=16384", "--keys", "--now", "2024-01-01", "--json"]
    local = inside("tune", case.root, *rest).rows
    remote = inside("tune", uri, *rest, *options).rows
    assert [row["kind"] for row in local].count("simulation") == 1
    for row in (*local, *remote):
        row.pop("path", None)
    assert remote[-1]["records"] == local[-1]["records"]
    assert remote[:-1] == local[:-1]


def test_explain_lists_the_requests(counting: CountingServer) -> None:
    case = GoldenCase("txn")
    uri = counting.upload(case.root, "cli")
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    shown = inside("explain", f"{uri}/txn-0", "--offset", "20", *options)
    assert any(line.startswith("Requests: ") for line in shown.lines)
    store_of.cache_clear()  # what it has read is not read again
    rows = inside("explain", f"{uri}/txn-0", "--offset", "20", "--json", *options).rows
    assert {"range", "open"} <= {row["what"] for row in rows if row["step"] == "fetch"}


def test_ls_shows_what_nobody_reads(cases: dict[str, TieredCase]) -> None:
    case = cases["lts-unclean"]
    where = [f"--log-dir={path}" for path in case.log_dirs]
    rows = inside("ls", "fork", *where, "--remote", str(case.remote), "--json").rows
    roles = [row["role"] for row in rows]
    assert (roles.count("unreachable"), roles.count("remote"), roles.count("local")) == (4, 12, 1)
    case = cases["lts-edge"]
    rows = inside("ls", str(case.log_dirs[0]), "--remote", str(case.remote), "--json").rows
    assert [row["segmentId"] for row in rows if row["role"] == "incomplete"] == [
        "pYM15xEzS0-Z4ve_WTSzwQ"
    ]
    shown = inside("ls", str(case.log_dirs[0]), "--remote", str(case.remote))
    assert "not part of any log" in shown.lines[-1]


def test_verify_reads_remote_segments(cases: dict[str, TieredCase]) -> None:
    for case in cases.values():
        where = [f"--log-dir={path}" for path in case.log_dirs]
        keys = [f"--remote-key={key}" for key in case.keys]
        found = inside("verify", *where, "--remote", str(case.remote), *keys)
        assert found.status == 0, found
        assert "0 errors" in found.lines[-1]


def test_verify_finds_corrupt_and_missing_objects(tmp_path_factory: pytest.TempPathFactory) -> None:
    cases = {str(case): case for case in unpack(tmp_path_factory.mktemp("damaged"))}
    case = cases["aiven-zstd"]
    logs = sorted(case.remote.rglob("plain-*/0/*.log"))
    raw = bytearray(logs[0].read_bytes())
    raw[len(raw) // 2] ^= 1
    logs[0].write_bytes(raw)
    logs[1].with_suffix(".indexes").unlink()
    where = [f"--log-dir={path}" for path in case.log_dirs]
    found = inside("verify", *where, "plain", "--remote", str(case.remote), "--json")
    assert found.status == 1
    codes = {row["code"] for row in found.rows if row["kind"] == "finding"}
    assert {"remote-corrupt", "remote-object-missing"} <= codes


def test_read_of_a_bucket_alone(cases: dict[str, TieredCase]) -> None:
    case = cases["aiven-enc"]
    for topic, number, facts in case.partitions():
        if topic == "plain":
            args = ["read", f"{topic}:{number}", "--remote", str(case.remote), "--json"]
            done = inside(*args, f"--remote-key={case.keys[0]}")
            assert done.stderr.count("the log start offset is unknown") == 1
            rows = done.rows
            tiered = facts["list_offsets"]["latest_tiered"]["offset"]
            expected = [
                each[0] for each in consumed(facts, "read_uncommitted") if each[0] <= tiered
            ]
            assert [row["offset"] for row in rows] == expected
    where = [f"--log-dir={path}" for path in case.log_dirs]
    rows = inside("verify", "plain", *where, "--remote", str(case.remote), "--json").rows
    for finding in rows[:-1]:
        assert finding["what"].startswith("encrypted with the key pair 'key-a'; give")
        assert finding["advice"] == "then verify the remote part again"
    assert len(rows) > 1
    refused = stratalog("read", "plain", "--remote", str(case.remote))
    assert refused.status == 1
    assert "--remote-key" in refused.stderr


def test_export_of_tiered_topics(cases: dict[str, TieredCase]) -> None:
    """Also if another log directory has the metadata, and of a bucket alone."""
    for name, topic in (("lts-unclean", "fork"), ("aiven-plain", "plain")):
        case = cases[name]
        (facts,) = (facts for each, _, facts in case.partitions() if each == topic)
        expected = [each[0] for each in consumed(facts, "read_uncommitted")]
        dirs = [str(path) for path in case.log_dirs]
        named = [f"--log-dir={path}" for path in dirs]
        command = ["export", "--to", "-", "--remote", str(case.remote)]
        for where in ([topic, *named], dirs):
            rows = inside(*command, *where).rows
            assert [row["offset"] for row in rows if row["topic"] == topic] == expected
        searched = inside("read", *dirs, "--remote", str(case.remote), "--grep", "", "--json")
        assert [row["offset"] for row in searched.rows if row["topic"] == topic] == expected
    done = inside(*command, topic)
    end = facts["list_offsets"]["latest_tiered"]["offset"]
    assert [row["offset"] for row in done.rows] == [each for each in expected if each <= end]
    assert done.stderr.count("the log start offset is unknown") == 1


def test_keys_need_a_store() -> None:
    assert stratalog("read", "orders", "--remote-key", "key.pem").status == 2


@pytest.mark.parametrize(
    "args",
    [
        ["recover", "s3://b/logs"],
        ["compact", "s3://b/logs"],
        ["maintain", "s3://b/logs", "--once"],
        ["serve", "s3://b/logs"],
        ["ingest", "rows.csv", "--to", "s3://b/logs", "--topic", "orders"],
        ["topic", "create", "orders", "-d", "s3://b/logs"],
        ["reindex", "orders", "-d", "s3://b/logs"],
        ["report", ".", "-o", "s3://b/report.html"],
    ],
    ids=lambda args: args[0],
)
def test_what_is_written_must_be_on_a_disk(args: list[str]) -> None:
    refused = stratalog(*args)
    assert refused.status == 2
    assert "is not on a disk" in " ".join(refused.stderr.split())


def test_a_storage_option_that_is_not_understood_is_not_printed() -> None:
    refused = stratalog("ls", "s3://b/x", "--storage-option", "s3.secret.key:my-secret")
    assert refused.status == 2
    assert "KEY=VALUE" in refused.stderr
    assert "my-secret" not in refused.stderr
    wrong = "--storage-option=s3.connection.timeout=my-secret"
    refused = stratalog("ls", "s3://b/x", wrong, "--storage-option=s3.region=x")
    assert refused.status != 0
    assert "my-secret" not in refused.stderr
