"""`stratalog dump`: Kafka's dump tool with its flags and output, plus JSON, filters and topics."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from stratalog.cli.arguments import (
    FormatName,
    JsonOption,
    PlainCommand,
    StorageOption,
    argument,
    flag,
    key_bytes,
    option,
    repeatable,
    time_of,
    time_option,
    topics_option,
    with_groups,
)
from stratalog.cli.output import Progress, json_line, report_error, report_line, write_block
from stratalog.dump.decoders import (
    FORMATS,
    UTF_8,
    ClusterMetadataDecoder,
    OffsetsDecoder,
    PlainDecoder,
    RemoteLogMetadataDecoder,
    TransactionLogDecoder,
    deprecation_notice,
    format_of_class,
)
from stratalog.dump.files import (
    EPOCH_CHECKPOINT,
    KINDS,
    LOG_KINDS,
    OFFSET_CHECKPOINTS,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    absolute_path,
    files_of,
    files_of_topic,
    is_compacted,
    kind_of,
)
from stratalog.dump.log_contents import (
    MAX_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX_DEFAULT,
    DumpOptions,
    Filters,
    IndexChecks,
)
from stratalog.dump.problems import DumpReport
from stratalog.errors import UnsupportedError
from stratalog.format import names
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from stratalog.dump.decoders import MessageDecoder

FAILS_WHEN: Final = (
    "a file could not be found or read, or an index is wrong (not for a corrupt batch, which is "
    "printed with isvalid: false)"
)
_BLOCK_ROWS: Final = 256
_STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
_CLASS_FLAGS: Final = ("--key-decoder-class", "--value-decoder-class")
_TOPIC_DECODERS: Final[Mapping[str, tuple[str, Callable[[], MessageDecoder]]]] = {
    "offsets_decoder": (names.CONSUMER_OFFSETS_TOPIC, OffsetsDecoder),
    "transaction_log_decoder": (names.TRANSACTION_STATE_TOPIC, TransactionLogDecoder),
    "cluster_metadata_decoder": (names.CLUSTER_METADATA_TOPIC, ClusterMetadataDecoder),
    "remote_log_metadata_decoder": (names.REMOTE_METADATA_TOPIC, RemoteLogMetadataDecoder),
}
"""Fields of `DecoderOptions`, and the internal topic whose records each of them decodes."""


class Command(PlainCommand):
    """Accepts `--key-decoder-class` and `--value-decoder-class` without a class, as Kafka does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_with_classes(args)))


def _with_classes(args: Sequence[str]) -> Iterator[str]:
    for at, arg in enumerate(args):
        yield arg
        if arg in _CLASS_FLAGS and (at + 1 == len(args) or args[at + 1].startswith("-")):
            yield _STRING_DECODER


def _class_option(name: str) -> Any:
    return option(name, "CLASS", "One of Kafka's decoder classes.")


def _decoder(field: str) -> Any:
    topic, _ = _TOPIC_DECODERS[field]
    return flag(f"--{field.replace('_', '-')}", f"Decode records of {topic}.")


class DecoderOptions(NamedTuple):
    """Kafka's decoders of keys and values. Each of them implies --print-data-log."""

    key_decoder_class: Annotated[str | None, _class_option("--key-decoder-class")] = None
    value_decoder_class: Annotated[str | None, _class_option("--value-decoder-class")] = None
    offsets_decoder: Annotated[bool, _decoder("offsets_decoder")] = False
    transaction_log_decoder: Annotated[bool, _decoder("transaction_log_decoder")] = False
    cluster_metadata_decoder: Annotated[bool, _decoder("cluster_metadata_decoder")] = False
    remote_log_metadata_decoder: Annotated[bool, _decoder("remote_log_metadata_decoder")] = False

    def decoder(
        self, key_format: str | None, value_format: str | None
    ) -> tuple[MessageDecoder, tuple[str, ...]]:
        """The decoder, and Kafka's notices about deprecated class names."""
        for field, (_, decoder) in _TOPIC_DECODERS.items():
            if getattr(self, field):
                return decoder(), ()
        classes = [self.key_decoder_class, self.value_decoder_class]
        try:
            by_class = [None if name is None else format_of_class(name) for name in classes]
        except UnsupportedError as error:
            raise typer.BadParameter(str(error)) from None
        formats = (key_format, value_format)
        chosen = [given or named or UTF_8 for given, named in zip(formats, by_class, strict=True)]
        notices = (deprecation_notice(name) for name in reversed(classes) if name is not None)
        return PlainDecoder(*chosen), tuple(notice for notice in notices if notice is not None)


class FilterOptions(NamedTuple):
    """Which records, batches and entries to print."""

    from_offset: Annotated[
        int | None, option("--from-offset", "OFFSET", "Start at this offset.")
    ] = None
    to_offset: Annotated[
        int | None, option("--to-offset", "OFFSET", "Stop before this offset (exclusive).")
    ] = None
    from_time: Annotated[
        str | None,
        time_option("--from-time", "Only records at or after this time"),
    ] = None
    to_time: Annotated[
        str | None, option("--to-time", "TIME", "Only records before this time.")
    ] = None
    key: Annotated[str | None, option("--key", "KEY", "Only records with this key.")] = None
    producer_id: Annotated[
        int | None, option("--producer-id", "ID", "Only batches of this producer.")
    ] = None

    def filters(self, key_format: str) -> Filters:
        """Raises a usage error for a time or key that is not valid."""
        return Filters(
            offset_min=self.from_offset,
            offset_end=self.to_offset,
            timestamp_min=time_of(self.from_time, "--from-time"),
            timestamp_end=time_of(self.to_time, "--to-time"),
            key=None if self.key is None else key_bytes(self.key, key_format),
            producer_id=self.producer_id,
        )


DeepIterationOption = Annotated[bool, flag("--deep-iteration", "Print records, not only batches.")]
PrintDataLogOption = Annotated[
    bool, flag("--print-data-log", "Also print keys and values. Implied by the decoder options.")
]
VerifyIndexOnlyOption = Annotated[
    bool, flag("--verify-index-only", "Check indexes without printing them.")
]
IndexSanityCheckOption = Annotated[
    bool, flag("--index-sanity-check", "Only run the quick check that a broker runs at startup.")
]
SkipRecordMetadataOption = Annotated[
    bool,
    flag("--skip-record-metadata", "Print records without offsets, timestamps and other metadata."),
]


@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    paths: Annotated[
        list[str] | None,
        argument(
            "PATH",
            "Files, partition directories, topics or partitions with their path (DIR/TOPIC, "
            "DIR/TOPIC:PARTITION), or log directories.",
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--files", metavar="FILE,FILE,…", help="Files, separated by commas."),
    ] = None,
    log_dir: Annotated[
        list[str] | None,
        repeatable(
            "--log-dir",
            "DIR",
            "The log directory of --topic (default: the current directory). Without --topic, "
            "dump the entire directory.",
            short="-d",
        ),
    ] = None,
    storage_option: StorageOption = None,
    topic: Annotated[list[str] | None, topics_option("A topic or partition in --log-dir.")] = None,
    kind: Annotated[
        list[str] | None,
        repeatable(
            "--kind",
            "KIND",
            "In directories, dump only files of this kind: log, index, timeindex, txnindex, "
            "snapshot or checkpoint.",
        ),
    ] = None,
    deep_iteration: DeepIterationOption = False,
    print_data_log: PrintDataLogOption = False,
    verify_index_only: VerifyIndexOnlyOption = False,
    index_sanity_check: IndexSanityCheckOption = False,
    skip_record_metadata: SkipRecordMetadataOption = False,
    max_bytes: Annotated[
        int,
        option("--max-bytes", "BYTES", "Read at most this many bytes of each log.", least=0),
    ] = MAX_BYTES_DEFAULT,
    max_message_size: Annotated[
        int,
        option(
            "--max-message-size",
            "BYTES",
            "Largest batch, in bytes, that an index entry may point to.",
            least=0,
        ),
    ] = MESSAGE_BYTES_MAX_DEFAULT,
    *,
    decoders: DecoderOptions,
    as_json: JsonOption = False,
    key_format: Annotated[
        FormatName | None,
        typer.Option("--key-format", help="Format of printed keys and of --key. Default: utf-8."),
    ] = None,
    value_format: Annotated[
        FormatName | None,
        typer.Option("--value-format", help="Format of printed values. Default: utf-8."),
    ] = None,
    selection: FilterOptions,
    limit: Annotated[
        int | None,
        option("--limit", "N", "Stop after N records, batches or entries.", short="-n", least=0),
    ] = None,
) -> None:
    """Print the contents of log segments, indexes, snapshots and checkpoints.

    Options and output are those of Kafka's own tool, kafka-dump-log, byte for byte. Problems are
    printed to standard error. Unlike Kafka's tool, this command continues after a corrupt batch or
    file, also prints text checkpoints, and does not list the offset gaps of compacted topics.

    \b
    Examples:
      stratalog dump /var/lib/kafka/data/orders-3/00000000000000000000.log --print-data-log
      stratalog dump --files a.log,b.index --deep-iteration
      stratalog dump --topic orders:3 --log-dir /var/lib/kafka/data --kind timeindex
      stratalog dump /backup/orders-0 --key customer-17 --json | jq .offset
      stratalog dump /var/lib/kafka/data/recovery-point-offset-checkpoint

    With --json, each object has a file and a kind: batch, record, offset-entry, time-entry,
    aborted-transaction, producer, leader-epoch, checkpointed-offset, sanity or trailing (bytes
    after the last batch). Records include the values of their headers.
    """
    decoder, notices = decoders.decoder(key_format, value_format)
    options = DumpOptions(
        print_data=print_data_log or any(decoders),
        deep_iteration=deep_iteration,
        skip_record_metadata=skip_record_metadata,
        decoder=decoder,
        header_format=FORMATS[value_format or UTF_8],
        notices=notices,
        max_bytes=max_bytes,
        index_checks=IndexChecks(verify_index_only, index_sanity_check, max_message_size),
        filters=selection.filters(key_format or UTF_8),
        limit=limit,
    )
    targets = [*(paths or []), *(path for text in files or [] for path in text.split(","))]
    found = _find(targets, log_dir or [], topic or [], kind or [])
    found = _with_keys(found) if selection.key is not None else found
    _note_unfiltered(found, options.filters)
    raise typer.Exit(dump(found, options, as_json=as_json))


def _with_keys(files: Sequence[str]) -> list[str]:
    """The files that have keys; a note says which kinds are left out."""
    kept = [path for path in files if kind_of(path) in LOG_KINDS]
    others = [path for path in files if path not in set(kept)]
    if others:
        kinds = ", ".join(dict.fromkeys(_kind_text(path) for path in others))
        report_line(f"stratalog: note: {kinds} files have no keys, and are not printed with --key")
    return kept


_UNFILTERED: Final = {
    "--producer-id": (OFFSET_INDEX, TIME_INDEX, *OFFSET_CHECKPOINTS, EPOCH_CHECKPOINT),
    "--from-time and --to-time": (OFFSET_INDEX, TXN_INDEX, *OFFSET_CHECKPOINTS, EPOCH_CHECKPOINT),
    "--from-offset and --to-offset": (SNAPSHOT,),
}
"""Filters, and the kinds of files whose entries do not have what they compare."""


def _note_unfiltered(files: Sequence[str], filters: Filters) -> None:
    """Say which files are printed completely, although a filter was given."""
    bounds = {
        "--producer-id": (filters.producer_id,),
        "--from-time and --to-time": (filters.timestamp_min, filters.timestamp_end),
        "--from-offset and --to-offset": (filters.offset_min, filters.offset_end),
    }
    for flags, values in bounds.items():
        if any(value is not None for value in values):
            whole = [path for path in files if kind_of(path) in _UNFILTERED[flags]]
            kinds = ", ".join(dict.fromkeys(map(_kind_text, whole)))
            if kinds:
                verb = "do" if " and " in flags else "does"
                report_line(f"stratalog: note: {flags} {verb} not apply to {kinds} files")


def _kind_text(path: str) -> str:
    return kind_of(path) or path


def dump(files: Sequence[str], options: DumpOptions, *, as_json: bool = False) -> int:
    """Dump `files` to standard output, problems to standard error. Returns the exit status."""
    logs = (path for path in files if kind_of(path) in LOG_KINDS)
    progress = Progress(sum(map(_size_of, logs)))

    def after_clear(report: Callable[[str], None]) -> Callable[[str], None]:
        def clear_and_report(text: str) -> None:
            progress.clear()
            report(text)

        return clear_and_report

    report = DumpReport(
        on_problem=after_clear(report_error),
        on_remark=after_clear(report_line),
        absolute=absolute_path,
        hides_gaps=lambda path: options.filters.excludes_batches or is_compacted(path),
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
        known = ", ".join(kind.removeprefix(".") for kind in KINDS)
        reason = f"unknown kind {', '.join(unknown)}; use {known}"
        raise typer.BadParameter(reason, param_hint="--kind")
    if log_dirs and not topics:
        targets, log_dirs = [*targets, *log_dirs], []
    found = [file for target in targets for file in files_of(target, wanted)]
    for topic in topics:
        for log_dir in log_dirs or ["."]:
            found += files_of_topic(log_dir, topic, wanted)
    if not targets and not topics:
        raise typer.BadParameter("give at least one file or directory, or --log-dir and --topic")
    return found


def _size_of(path: str) -> int:
    try:
        return location(path).stat().st_size
    except OSError:
        return 0
