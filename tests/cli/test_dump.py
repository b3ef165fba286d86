from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from stratalog.format.record import BatchFields, Header, Record, encode_batch
from tests.cli.command import COMMAND, inside, on_terminal, stratalog
from tests.golden.cases import GOLDEN_DIR, GoldenCase, log_dir_case

if TYPE_CHECKING:
    from pathlib import Path

TXN = GoldenCase("txn")
FIRST = "00000000000000000000"
KAFKA_FLAGS = {
    "headers": [],
    "deep": ["--deep-iteration"],
    "data": ["--print-data-log", "--deep-iteration"],
    "plain": [],
    "sanity": ["--index-sanity-check"],
    "offsets": ["--offsets-decoder"],
    "txnlog": ["--transaction-log-decoder"],
    "metadata": ["--cluster-metadata-decoder"],
}


@pytest.mark.slow
def test_kafkas_command_line_prints_kafkas_output() -> None:
    dumps = TXN.dumps(TXN.partition_dir)
    for name, kind in [(f"{FIRST}.log", "data"), (f"{FIRST}.index", "plain")]:
        path = (TXN.partition_dir / name).relative_to(GOLDEN_DIR)
        found = stratalog("dump", "--files", path, *KAFKA_FLAGS[kind], cwd=GOLDEN_DIR)
        assert found.stdout.decode() == dumps[name, kind].stdout
        assert found.stderr == dumps[name, kind].stderr
        assert found.status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [log_dir_case(), GoldenCase("v1-none"), GoldenCase("u-torn")], ids=str
)
def test_every_flag_of_kafkas_tool(case: GoldenCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN_DIR)
    for directory in case.partition_dirs():
        for (name, kind), expected in case.dumps(directory).items():
            path = (directory / name).relative_to(GOLDEN_DIR)
            found = inside("dump", *KAFKA_FLAGS[kind], f"--files={path}")
            if expected.exception is None:
                assert found.stdout.decode() == expected.stdout
                assert found.stderr == expected.stderr
                assert found.status == 0
            else:
                assert found.stdout.decode() == expected.stdout.partition(expected.exception)[0]
                assert found.stderr.startswith(f"stratalog: error: {path}")
                assert found.status == 1


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics: `orders` with two partitions of one batch each, `other` with one."""
    for name, pid in (("orders-0", 5), ("orders-1", 6), ("other-0", -1)):
        (tmp_path / name).mkdir()
        records = [
            Record(
                0, 1_700_000_000_000, b"k0", b'{"n": 1}', (Header("h", b"x"), Header("n", None))
            ),
            Record(1, 1_700_000_060_000, b"k1", None),
            Record(2, 1_700_000_120_000, None, b"\xff"),
        ]
        batch = encode_batch(records, BatchFields(producer_id=pid))
        (tmp_path / name / f"{FIRST}.log").write_bytes(batch)
        (tmp_path / name / f"{FIRST}.index").write_bytes(b"")
    return tmp_path


def _files(output: bytes) -> list[str]:
    lines = output.decode().splitlines()
    return [line.removeprefix("Dumping ") for line in lines if line.startswith("Dumping ")]


def test_what_can_be_named(log_dir: Path) -> None:
    orders_0 = [f"{log_dir}/orders-0/{FIRST}.log", f"{log_dir}/orders-0/{FIRST}.index"]
    orders = [*orders_0, *(path.replace("orders-0/", "orders-1/") for path in orders_0)]
    everything = [*orders, *(path.replace("/orders-0/", "/other-0/") for path in orders_0)]
    for args, expected in (
        ([orders_0[1]], orders_0[1:]),
        ([log_dir / "orders-0"], orders_0),
        ([log_dir / "orders"], orders),
        ([log_dir / "orders:0"], orders_0),
        ([log_dir], everything),
        (["--log-dir", log_dir], everything),
        (["--log-dir", log_dir, "--topic", "orders"], orders),
        (["--log-dir", log_dir, "--topic", "orders:0", "--kind", "index"], orders_0[1:]),
        ([log_dir, "--kind", "log"], everything[::2]),
        (["--files", f"{orders_0[1]},{orders_0[0]}"], orders_0[::-1]),
        ([orders_0[0], "--files", orders_0[1]], orders_0),
    ):
        assert _files(inside("dump", *args).stdout) == expected


def test_records_in_json(log_dir: Path) -> None:
    log = log_dir / "orders-0" / f"{FIRST}.log"
    batch, first, second, third = inside("dump", log, "--json", "--print-data-log").rows
    assert batch == {
        "file": str(log), "kind": "batch", "baseOffset": 0, "lastOffset": 2, "count": 3,
        "baseSequence": -1, "lastSequence": -1, "producerId": 5, "producerEpoch": -1,
        "partitionLeaderEpoch": -1, "isTransactional": False, "isControl": False,
        "deleteHorizonMs": None, "position": 0, "timestampType": "CreateTime",
        "maxTimestamp": 1_700_000_120_000, "size": log.stat().st_size, "magic": 2,
        "compresscodec": "none", "crc": batch["crc"], "isvalid": True,
    }  # fmt: skip
    assert first == {
        "file": str(log), "kind": "record", "offset": 0, "timestampType": "CreateTime",
        "timestamp": 1_700_000_000_000, "keySize": 2, "valueSize": 8, "sequence": -1,
        "key": "k0", "value": '{"n": 1}',
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
    }  # fmt: skip
    assert (second["key"], second["value"], second["headers"]) == ("k1", None, [])
    assert (third["key"], third["value"]) == (None, {"base64": "/w=="})
    assert [row["kind"] for row in inside("dump", log, "--json").rows] == ["batch"]
    deep = inside("dump", log, "--json", "--deep-iteration").rows[1]
    assert deep["headerKeys"] == ["h", "n"]
    assert not {"key", "value", "headers"} & deep.keys()


def test_formats_of_keys_and_values(log_dir: Path) -> None:
    log = log_dir / "orders-0" / f"{FIRST}.log"

    def shown(*args: str) -> list[str]:
        lines = inside("dump", log, "--print-data-log", *args).lines
        return [line.partition("] ")[2] for line in lines if line.startswith("| ")]

    assert shown() == ['key: k0 payload: {"n": 1}', "key: k1", "payload: \ufffd"]
    assert shown("--key-format", "hex", "--value-format", "base64") == [
        "key: 6b30 payload: eyJuIjogMX0=", "key: 6b31", "payload: /w==",
    ]  # fmt: skip
    assert shown("--value-format", "json")[0] == 'key: k0 payload: {"n":1}'
    rows = inside("dump", log, "--print-data-log", "--json", "--value-format", "json").rows
    assert rows[1]["value"] == {"n": 1}
    rows = inside("dump", log, "--print-data-log", "--json", "--value-format", "hex").rows
    assert rows[1]["headers"][0] == {"key": "h", "value": "78"}


def test_other_files_in_json(log_dir: Path) -> None:
    rows = inside("dump", TXN.partition_dir, "--json", "--kind", "txnindex", "--limit", "1").rows
    assert rows[0].keys() == {
        "file", "kind", "version", "producerId", "firstOffset", "lastOffset", "lastStableOffset",
    }  # fmt: skip
    kinds = {
        "index": {"offset-entry"},
        "timeindex": {"time-entry"},
        "snapshot": {"producer"},
        "log": {"batch", "record"},
    }
    for kind, expected in kinds.items():
        found = inside("dump", TXN.partition_dir, "--json", "--deep-iteration", "--kind", kind)
        assert {row["kind"] for row in found.rows} == expected
    control = [row["control"] for row in found.rows if "control" in row]
    assert {entry["type"] for entry in control} == {"COMMIT", "ABORT"}
    index = log_dir / "orders-0" / f"{FIRST}.index"
    assert inside("dump", index, "--json").rows == []
    index.write_bytes(b"")
    assert inside("dump", index, "--json", "--index-sanity-check").rows == [
        {"file": str(index), "kind": "sanity", "passed": True}
    ]
    metadata = log_dir_case().root / "__cluster_metadata-0" / f"{FIRST}.log"
    rows = inside("dump", metadata, "--json", "--cluster-metadata-decoder", "--limit", "3").rows
    assert rows[3]["value"]["type"] == "BEGIN_TRANSACTION_RECORD"


def test_filters(log_dir: Path) -> None:
    def offsets(*args: str) -> list[int]:
        rows = inside("dump", log_dir / "orders-0", "--json", "--deep-iteration", *args).rows
        return [row["offset"] for row in rows if row["kind"] == "record"]

    assert offsets() == [0, 1, 2]
    assert offsets("--from-offset", "1") == [1, 2]
    assert offsets("--to-offset", "1") == [0]
    assert offsets("--from-time", "2023-11-14T22:14:20") == [1, 2]
    assert offsets("--to-time", "1700000120000") == [0, 1]
    assert offsets("--key", "k1") == [1]
    assert offsets("--key", "6b31", "--key-format", "hex") == [1]
    assert offsets("--key", "azE=", "--key-format", "base64") == [1]
    assert offsets("--producer-id", "5") == [0, 1, 2]
    assert offsets("--producer-id", "6") == []
    assert offsets("--limit", "2") == [0, 1]


def test_decoder_classes(log_dir: Path) -> None:
    log = log_dir / "orders-0" / f"{FIRST}.log"
    plain = inside("dump", log, "--print-data-log").lines
    new = "org.apache.kafka.tools.api.StringDecoder"
    assert inside("dump", "--value-decoder-class", new, "--files", log).lines == plain
    assert inside("dump", "--key-decoder-class", "--files", log).lines == plain
    assert inside("dump", "--files", log, "--value-decoder-class").lines == plain
    old = "kafka.serializer.StringDecoder"
    notice = f"{old} is deprecated. Please use {new} instead"
    assert inside("dump", log, "--key-decoder-class", old).lines == [plain[0], notice, *plain[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give at least one file or directory"),
        (["x.log", "--from-time", "noon"], "is not a time"),
        (["x.log", "--key", "zz", "--key-format", "hex"], "is not hex"),
        (["x.log", "--key", "1" * 40, "--key-format", "int64"], "is not int64"),
        (["x.log", "--value-format", "xml"], "xml"),
        (["x.log", "--max-bytes", "-1"], "--max-bytes"),
        (["x.log", "--limit", "many"], "--limit"),
        (["x.log", "--kind", "lock"], "unknown kind .lock"),
        (["x.log", "--value-decoder-class", "com.example.Avro"], "cannot be used here"),
        (["x.log", "--deep"], "--deep"),
    ],
)
def test_wrong_usage(args: list[str], message: str) -> None:
    found = stratalog("dump", *args)
    assert message in found.stderr
    assert found.stdout == b""
    assert found.status == 2


@pytest.mark.slow
def test_errors_are_one_line(log_dir: Path) -> None:
    found = stratalog("dump", log_dir / "nothing")
    assert found.stderr == (
        f"stratalog: error: {log_dir}: no file, directory or topic 'nothing' in it\n"
    )
    assert (found.stdout, found.status) == (b"", 1)
    torn = log_dir / "orders-0" / f"{FIRST}.log"
    torn.write_bytes(torn.read_bytes() + bytes(50))
    found = stratalog("dump", torn, log_dir / "other-0" / f"{FIRST}.log")
    assert found.stderr.startswith(f"stratalog: error: {torn} at byte ")
    assert found.stderr.count("\n") == 1
    assert len(_files(found.stdout)) == 2  # one bad file does not end the run
    assert found.status == 1
    found = stratalog("dump", log_dir / "orders-0" / "nothing.txt", "--json")
    assert found.status == 1
    strange = log_dir / "notes.txt"
    strange.touch()
    found = stratalog("dump", strange)
    assert found.stderr == f"Ignoring unknown file {strange}\n"
    assert (found.stdout, found.status) == (f"Dumping {strange}\n".encode(), 0)


@pytest.mark.slow
def test_findings_go_to_standard_error_after_the_text(log_dir: Path) -> None:
    log = log_dir / "orders-0" / f"{FIRST}.log"
    log.write_bytes(encode_batch([Record(0, 1, b"k", b"v"), Record(5, 1, b"k", b"v")]))
    found = stratalog("dump", f"orders-0/{FIRST}.log", "--deep-iteration", cwd=log_dir)
    assert found.stderr == f"Non-consecutive offsets in {log}\n  0 is followed by 5\n"
    assert found.status == 0


@pytest.mark.slow
def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/\xff-0"
    os.mkdir(directory)  # noqa: PTH102  # bytes
    path = directory + b"/" + FIRST.encode() + b".log"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(encode_batch([Record(0, 1, b"k", b"v")]))
    done = subprocess.run([*COMMAND, "dump", path], capture_output=True, check=True)
    assert done.stdout.startswith(b"Dumping " + path + b"\n")
    done = subprocess.run([*COMMAND, "dump", "--json", path], capture_output=True, check=True)
    assert done.stdout.startswith(b'{"file":')


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--print-data-log"], ["--print-data-log", "--json"]])
def test_a_pipe_that_closes_early_ends_the_command_quietly(
    tmp_path: Path, flags: list[str]
) -> None:
    log = tmp_path / f"{FIRST}.log"
    batch = encode_batch([Record(offset, 1, b"key", b"v" * 100) for offset in range(1_000)])
    log.write_bytes(batch * 20)
    with subprocess.Popen(
        [*COMMAND, "dump", log, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) != b""
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.slow
def test_a_full_disk_is_an_error() -> None:
    log = TXN.partition_dir / f"{FIRST}.log"
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [*COMMAND, "dump", log, "--print-data-log"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.stderr == b"stratalog: error: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.slow
def test_progress_is_only_for_a_terminal_that_sees_no_output(tmp_path: Path) -> None:
    log = tmp_path / f"{FIRST}.log"
    batch = encode_batch([Record(offset, 1, b"key", b"v" * 100) for offset in range(1_000)])
    log.write_bytes(batch * 200)
    arguments = [*COMMAND, "dump", str(log), "--print-data-log", "--json"]  # takes a few seconds
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = os.read(ours, 1_000)
        process.terminate()
    os.close(ours)
    assert b"% " in shown
    assert b" MiB/s " in shown
    assert b" s left" in shown


@pytest.mark.slow
def test_on_a_terminal_the_text_is_the_same() -> None:
    log = TXN.partition_dir / f"{FIRST}.log"
    assert on_terminal("dump", log) == stratalog("dump", log).stdout.decode()


@pytest.mark.slow
def test_a_small_dump_starts_fast_and_without_compiled_kernels() -> None:
    log = TXN.partition_dir / f"{FIRST}.log"
    code = (
        "import sys; from stratalog.cli.main import app; "
        f"app(['dump', {str(log)!r}, '--print-data-log'], standalone_mode=False); "
        "print(*({'numba', 'numpy', 'pyarrow', 'rich'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([COMMAND[0], "-c", code], capture_output=True, check=True)
    assert done.stderr == b"\n"
    best = min(_cpu_seconds("dump", log) for _ in range(3))
    assert best < 1.5  # 0.3 on an idle machine; this one may be busy


def _cpu_seconds(*args: str | Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert stratalog(*args).status == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
def test_help_lists_all_commands_and_exit_codes() -> None:
    found = stratalog("--help")
    assert found.status == 0
    for name in ("ls", "read", "find", "explain", "dump"):
        assert any(line.startswith(f"  {name} ") for line in found.lines)
    assert "Exit status: 0 on success" in found.stdout.decode()
    flags = stratalog("dump", "--help").stdout.decode()
    for flag in (
        "--files", "--print-data-log", "--deep-iteration", "--verify-index-only",
        "--index-sanity-check", "--max-bytes", "--max-message-size", "--key-decoder-class",
        "--value-decoder-class", "--offsets-decoder", "--transaction-log-decoder",
        "--cluster-metadata-decoder", "--skip-record-metadata", "--json",
    ):  # fmt: skip
        assert flag in flags


def test_a_key_selects_records_only(tmp_path: Path) -> None:
    copied = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    result = inside("dump", copied, "--key", "k0007", "--json")
    assert [row["kind"] for row in result.rows] == ["batch", "record"]
    assert result.stderr == (
        "stratalog: note: .index, .timeindex, .snapshot files have no keys, and are not printed "
        "with --key\n"
    )


def test_what_a_filter_does_not_apply_to() -> None:
    result = inside("dump", GOLDEN_DIR / "txn" / "txn-0", "--producer-id", "1", "--kind", "index")
    assert "note: --producer-id does not apply to .index files" in result.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_checkpoints(as_json: bool, tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\na 1 5\nb 0 7\n")
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n3 100\n")
    files = (tmp_path / "recovery-point-offset-checkpoint", tmp_path / "leader-epoch-checkpoint")
    result = inside("dump", *files, *(["--json"] if as_json else []))
    if as_json:
        assert [{**row, "file": ""} for row in result.rows] == [
            {"file": "", "kind": "checkpointed-offset", "topic": "a", "partition": 1, "offset": 5},
            {"file": "", "kind": "checkpointed-offset", "topic": "b", "partition": 0, "offset": 7},
            {"file": "", "kind": "leader-epoch", "epoch": 3, "startOffset": 100},
        ]
    else:
        assert result.lines == [
            f"Dumping {files[0]}",
            "topic: a partition: 1 offset: 5",
            "topic: b partition: 0 offset: 7",
            f"Dumping {files[1]}",
            "epoch: 3 startOffset: 100",
        ]


def test_a_corrupt_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_text("0\n1\n")
    result = inside("dump", path)
    assert result.status == 1
    assert "1 entries expected, 0 found" in result.stderr


def test_gaps_of_compacted_topics_are_not_listed(tmp_path: Path) -> None:
    log_dir = GoldenCase("compact-droptomb").copy_to(tmp_path)
    noted = inside("dump", log_dir / "compact-droptomb-0", "--deep-iteration")
    assert "Non-consecutive offsets" in noted.stderr
    (log_dir / "cleaner-offset-checkpoint").write_text("0\n1\ncompact-droptomb 0 1200\n")
    assert inside("dump", log_dir / "compact-droptomb-0", "--deep-iteration").stderr == ""
    (log_dir / "cleaner-offset-checkpoint").unlink()
    assert (
        inside("dump", log_dir / "compact-droptomb-0", "--key", "key-008", "--kind", "log").stderr
        == ""
    )
