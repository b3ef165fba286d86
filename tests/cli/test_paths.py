"""Every command, given a path that is something else: one line says what it is."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import StratalogError
from tests.cli.command import inside
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = f"{156:020d}.log"
RECORDS = ["read", "find --offset 0", "explain --offset 0"]
PARTITIONS = ["verify", "stats", "retain --dry-run", "reindex --dry-run", "export --to out"]
DIRECTORIES = ["compact --dry-run", "compact", "maintain --once"]
VERBS = [*RECORDS, *PARTITIONS, *DIRECTORIES, "ls", "dump"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory, and what may be taken for one."""
    root = tmp_path_factory.mktemp("place")
    shutil.copytree(GOLDEN_DIR / "multiseg", root / "logs")
    (root / "logs" / "notes.txt").touch()
    (root / "empty").mkdir()
    (root / "etc" / "dbus-1").mkdir(parents=True)
    (root / "etc" / "dbus-1" / "session.conf").touch()
    return root


def refusal(verb: str, path: Path | str) -> str:
    """The one line that a command has for a path."""
    name, *options = verb.split()
    try:
        result = inside(name, path, *options)
    except StratalogError as error:
        return str(error)
    assert (result.stdout, result.status) == (b"", 1)
    return result.stderr.removeprefix("stratalog: error: ").removesuffix("\n")


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_there(verb: str, place: Path) -> None:
    path = place / "nowhere" / "logs"
    kinds = "directory" if verb in DIRECTORIES else "file or directory"
    assert refusal(verb, path) == f"{path}: no such {kinds}"
    assert refusal(verb, place / "nope") == f"{place / 'nope'}: no such {kinds}"


@pytest.mark.parametrize("verb", [*RECORDS, *PARTITIONS, "ls"])
def test_a_word_may_have_been_meant_as_a_topic(verb: str) -> None:
    expected = "nope: no such file or directory; if nope is a topic, add --log-dir"
    assert refusal(verb, "nope") == expected


@pytest.mark.parametrize("verb", [*RECORDS, *PARTITIONS, "ls"])
def test_no_such_topic(verb: str, place: Path) -> None:
    logs = place / "logs"
    assert refusal(verb, logs / "nope") == f"{logs}: no topic 'nope'; topics here: multiseg"


@pytest.mark.parametrize("name", ["empty", "etc"])
@pytest.mark.parametrize("verb", VERBS)
def test_another_directory(verb: str, name: str, place: Path) -> None:
    text = refusal(verb, place / name)
    assert text.startswith(f"{place / name}: ")
    assert "TOPIC-NUMBER with segments" in text
    assert [path.name for path in (place / name).iterdir()] == ["dbus-1"] * (name == "etc")


@pytest.mark.parametrize("verb", [*PARTITIONS, *DIRECTORIES])
def test_a_segment_where_a_directory_is_expected(verb: str, place: Path) -> None:
    segment = place / "logs" / "multiseg-0" / SEGMENT
    expected = (
        "a file, not a log directory; give the directory that contains the partition directories"
    )
    if verb in PARTITIONS:
        expected = f"a single segment; give its partition directory, {segment.parent}"
    assert refusal(verb, segment) == f"{segment}: {expected}"


@pytest.mark.parametrize("verb", [*RECORDS, *PARTITIONS, *DIRECTORIES, "ls"])
def test_any_other_file(verb: str, place: Path) -> None:
    assert refusal(verb, place / "logs" / "notes.txt").startswith(
        f"{place / 'logs' / 'notes.txt'}: a file"
    )


@pytest.mark.parametrize("verb", DIRECTORIES)
def test_a_partition_where_a_log_directory_is_expected(verb: str, place: Path) -> None:
    path = place / "logs" / "multiseg-0"
    assert refusal(verb, path).startswith(f"{path}: not a log directory but a partition")


@pytest.mark.parametrize("verb", RECORDS)
def test_a_log_directory_where_a_partition_is_expected(verb: str, place: Path) -> None:
    text = refusal(verb, place / "logs")
    assert f"such as {place / 'logs'} TOPIC" in text
    assert text.endswith("its topics: multiseg")


@pytest.mark.parametrize("verb", ["verify", "stats", "retain --dry-run", "ls", *RECORDS])
def test_a_wrong_log_dir_option(verb: str, place: Path) -> None:
    name, *options = verb.split()
    with pytest.raises(StratalogError, match=r"nowhere: no such directory$"):
        inside(name, "orders", *options, "-d", place / "nowhere")
    with pytest.raises(StratalogError, match=r"notes\.txt: a file, not a log directory"):
        inside(name, "orders", *options, "-d", place / "logs" / "notes.txt")


@pytest.mark.parametrize("verb", ["ingest", "export"])
def test_a_file_to_write_a_directory_to(verb: str, place: Path) -> None:
    notes = place / "logs" / "notes.txt"
    source = notes if verb == "ingest" else place / "logs"
    with pytest.raises(StratalogError, match=r"notes\.txt: a file; --to takes a directory$"):
        inside(verb, source, "--to", notes)
