"""`stratalog dump`: Kafka's dump tool, with its flags and its text, and what its users miss."""

from __future__ import annotations

import os
import time
from base64 import b64decode
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from stratalog.cli.output import Progress, json_line, report_error, report_line, write_block
from stratalog.cli.plain_command import PlainCommand
from stratalog.cli.when import TIME_HELP, NotAPointError, parse_time
from stratalog.dump.decoders import (
    FORMATS,
    UTF_8,
    PlainDecoder,
    deprecation_notice,
    format_of_class,
)
from stratalog.dump.files import KINDS, LOG_KINDS, absolute_path, files_of, files_of_topic, kind_of
from stratalog.dump.log_contents import (
    MAX_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX_DEFAULT,
    DumpOptions,
    Filters,
)
from stratalog.dump.report import DumpReport
from stratalog.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from stratalog.dump.decoders import RecordDecoder

FAILS_WHEN: Final = (
    "a file could not be found or read, or an index is wrong (a damaged batch is in the output, "
    "as isvalid: false)"
)
_BLOCK_ROWS: Final = 256
_STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
_CLASS_FLAGS: Final = ("--key-decoder-class", "--value-decoder-class")

FormatName = Literal["utf-8", "hex", "base64", "json", "int32", "int64"]


class Command(PlainCommand):
    """Takes `--key-decoder-class` and its twin without a class too, as Kafka's tool does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_with_classes(args)))


def _with_classes(args: Sequence[str]) -> Iterator[str]:
    for at, arg in enumerate(args):
        yield arg
        if arg in _CLASS_FLAGS and (at + 1 == len(args) or args[at + 1].startswith("-")):
            yield _STRING_DECODER


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Files, partition directories, topics below a log directory (DIR/TOPIC or "
            "DIR/TOPIC:PARTITION), or whole log directories.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--files", metavar="FILE,FILE,…", help="The same, separated by commas."),
    ] = None,
    log_dir: Annotated[
        list[str] | None,
        typer.Option(
            "--log-dir",
            "-d",
            metavar="DIR",
            help="Where to look for --topic (default: the current directory); without one, all of "
            "it. Repeatable.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITION]", help="A topic in --log-dir. Repeatable."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Of a directory's files, only this kind: log, index, timeindex, txnindex, "
            "snapshot or checkpoint. Repeatable.",
        ),
    ] = None,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Show records, not only batches.")
    ] = False,
    print_data_log: Annotated[
        bool,
        typer.Option("--print-data-log", help="Show keys and values too. Any decoder implies it."),
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Check indexes without printing them.")
    ] = False,
    index_sanity_check: Annotated[
        bool,
        typer.Option("--index-sanity-check", help="Only the quick check a broker does at start."),
    ] = False,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Of records, show data only.")
    ] = False,
    max_bytes: Annotated[
        int,
        typer.Option(
            "--max-bytes", min=0, metavar="BYTES", help="Read no more than this of each log."
        ),
    ] = MAX_BYTES_DEFAULT,
    max_message_size: Annotated[
        int,
        typer.Option(
            "--max-message-size",
            min=0,
            metavar="BYTES",
            help="Largest batch an index may point to.",
        ),
    ] = MESSAGE_BYTES_MAX_DEFAULT,
    key_decoder_class: Annotated[
        str | None,
        typer.Option("--key-decoder-class", metavar="CLASS", help="One of Kafka's own decoders."),
    ] = None,
    value_decoder_class: Annotated[
        str | None,
        typer.Option("--value-decoder-class", metavar="CLASS", help="One of Kafka's own decoders."),
    ] = None,
    offsets_decoder: Annotated[
        bool, typer.Option("--offsets-decoder", help="Records of __consumer_offsets.")
    ] = False,
    transaction_log_decoder: Annotated[
        bool, typer.Option("--transaction-log-decoder", help="Records of __transaction_state.")
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help="Records of __cluster_metadata.")
    ] = False,
    remote_log_metadata_decoder: Annotated[
        bool,
        typer.Option("--remote-log-metadata-decoder", help="Records of __remote_log_metadata."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; header values included.")
    ] = False,
    key_format: Annotated[
        FormatName | None,
        typer.Option("--key-format", help="How to show keys, and read --key; default: utf-8."),
    ] = None,
    value_format: Annotated[
        FormatName | None,
        typer.Option("--value-format", help="How to show values; default: utf-8."),
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from-offset", metavar="OFFSET", help="First offset to show.")
    ] = None,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="OFFSET", help="First offset not to show any more."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", help=f"First time to show: {TIME_HELP}."),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="First time not to show any more."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only records with this key.")
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option("--producer-id", metavar="ID", help="Only batches of this producer."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help="Stop after so many records, batches or entries.",
        ),
    ] = None,
) -> None:
    """Print the contents of log segments, indexes and snapshots.

    Output and flags are those of Kafka's own dump tool (kafka-dump-log), byte for byte. What it
    finds wrong goes to standard error. Unlike Kafka's tool, one bad batch or file does not end the
    run.

    \b
    Examples:
      stratalog dump /var/lib/kafka/data/orders-3/00000000000000000000.log --print-data-log
      stratalog dump --files a.log,b.index --deep-iteration
      stratalog dump --topic orders:3 --log-dir /var/lib/kafka/data --kind timeindex
      stratalog dump /backup/orders-0 --key customer-17 --json | jq .offset

    With --json each object has a file and a kind: batch, record, offset-entry, time-entry,
    aborted-transaction, producer, sanity or trailing (bytes that are no batch).
    """
    decoder, notices = _decoder(
        (
            offsets_decoder,
            transaction_log_decoder,
            cluster_metadata_decoder,
            remote_log_metadata_decoder,
        ),
        (key_decoder_class, value_decoder_class),
        (key_format, value_format),
    )
    is_decoder_given = bool(
        key_decoder_class or value_decoder_class or not isinstance(decoder, PlainDecoder)
    )
    options = DumpOptions(
        print_data=print_data_log or is_decoder_given,
        deep_iteration=deep_iteration,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        skip_record_metadata=skip_record_metadata,
        max_bytes=max_bytes,
        max_message_bytes=max_message_size,
        decoder=decoder,
        header_format=FORMATS[value_format or UTF_8],
        notices=notices,
        filters=Filters(
            offset_min=from_offset,
            offset_end=to_offset,
            timestamp_min=_time(from_time, "--from-time"),
            timestamp_end=_time(to_time, "--to-time"),
            key=_key(key, key_format or UTF_8),
            producer_id=producer_id,
        ),
        limit=limit,
    )
    targets = [*(paths or []), *(path for text in files or [] for path in text.split(","))]
    found = _find(targets, log_dir or [], topic or [], kind or [])
    raise typer.Exit(dump(found, options, as_json=json))


def dump(files: Sequence[str], options: DumpOptions, *, as_json: bool = False) -> int:
    """Dump `files` to standard output, findings to standard error; the exit status."""
    logs = (path for path in files if kind_of(path) in LOG_KINDS)
    progress = Progress(sum(map(_size_of, logs)))

    def clearly(tell: Callable[[str], None]) -> Callable[[str], None]:
        def told(text: str) -> None:
            progress.clear()
            tell(text)

        return told

    report = DumpReport(
        on_problem=clearly(report_error), on_remark=clearly(report_line), absolute=absolute_path
    )
    for block in _blocks(files, options, report, as_json=as_json):
        write_block(block)
        progress.update(report.bytes_done)
    progress.clear()
    for line in report.lines():
        report_line(line)
    return 1 if report.problems else 0


def _blocks(
    files: Iterable[str], options: DumpOptions, report: DumpReport, *, as_json: bool
) -> Iterator[bytes]:
    if as_json:
        from stratalog.dump.rows import dump_rows  # noqa: PLC0415  # only JSON needs it

        rows = (row for path in files for row in dump_rows(path, options, report))
        while lines := [json_line(row) + "\n" for row in islice(rows, _BLOCK_ROWS)]:
            yield "".join(lines).encode("utf-8", "surrogateescape")
        return
    from stratalog.dump.text import dump_text  # noqa: PLC0415  # only text needs it

    for path in files:
        yield from dump_text(path, options, report)


def _find(
    targets: Sequence[str], log_dirs: Sequence[str], topics: Sequence[str], kinds: Sequence[str]
) -> list[str]:
    wanted = [f".{kind.removeprefix('.')}" for kind in kinds] or KINDS
    if unknown := set(wanted).difference(KINDS):
        raise typer.BadParameter(f"no such kind: {', '.join(unknown)}", param_hint="--kind")
    if log_dirs and not topics:
        targets, log_dirs = [*targets, *log_dirs], []
    found = [file for target in targets for file in files_of(target, wanted)]
    for topic in topics:
        for log_dir in log_dirs or ["."]:
            found += files_of_topic(log_dir, topic, wanted)
    if not targets and not topics:
        raise typer.BadParameter("name at least one file or directory, or --log-dir and --topic")
    return found


def _decoder(
    internal: tuple[bool, bool, bool, bool],
    classes: tuple[str | None, str | None],
    formats: tuple[str | None, str | None],
) -> tuple[RecordDecoder, tuple[str, ...]]:
    """The decoder asked for, and Kafka's remarks on class names of old."""
    if any(internal):
        from stratalog.dump import decoders as topics  # noqa: PLC0415  # rarely used

        kinds = (
            topics.OffsetsDecoder,
            topics.TransactionLogDecoder,
            topics.ClusterMetadataDecoder,
            topics.RemoteLogMetadataDecoder,
        )
        return kinds[internal.index(True)](), ()
    try:
        by_class = [None if name is None else format_of_class(name) for name in classes]
    except UnsupportedError as error:
        raise typer.BadParameter(str(error)) from None
    chosen = [given or named or UTF_8 for given, named in zip(formats, by_class, strict=True)]
    notices = (deprecation_notice(name) for name in reversed(classes) if name is not None)
    return PlainDecoder(*chosen), tuple(notice for notice in notices if notice is not None)


def _time(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text, now_ms=time.time_ns() // 1_000_000)
    except NotAPointError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _key(text: str | None, key_format: str) -> bytes | None:
    """The key's bytes, from how keys are shown."""
    if text is None:
        return None
    try:
        if key_format == "hex":
            return bytes.fromhex(text)
        if key_format == "base64":
            return b64decode(text, validate=True)
        if key_format in {"int32", "int64"}:
            size_bytes = 4 if key_format == "int32" else 8
            return int(text).to_bytes(size_bytes, signed=True)
    except (ValueError, OverflowError) as error:
        reason = f"{text!r} is not {key_format}: {error}"
        raise typer.BadParameter(reason, param_hint="--key") from None
    return text.encode("utf-8", "surrogateescape")


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  # a string, shown as given
    except OSError:
        return 0
