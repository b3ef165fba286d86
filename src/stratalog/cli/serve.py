"""`stratalog serve`: serve log directories to Kafka clients, as a broker does."""

from __future__ import annotations

import gc
import logging
import resource
import signal
from contextlib import suppress
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from stratalog.cli.arguments import (
    JsonOption,
    ServerPropertiesOption,
    argument,
    config_option,
    flag,
    local_path,
    setting_values,
    with_groups,
)
from stratalog.cli.output import (
    json_line,
    leave_reports_to_logging,
    report_line,
    set_by_stop_signals,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

FAILS_WHEN = "a directory could not be opened, a port is taken, or closing the logs failed"
DEFAULT_PORT = 9092


def _port_option(name: str, text: str) -> Any:
    return typer.Option(name, metavar="PORT", help=text, min=0, max=65535)


class AddressOptions(NamedTuple):
    """Where the broker listens."""

    port: Annotated[
        int | None,
        _port_option(
            "--port",
            "Port to listen on; with 0, the system chooses a free one. Default: the port of the "
            f"configured listeners, or {DEFAULT_PORT}.",
        ),
    ] = None
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to listen on. Default: the loopback interface."),
    ] = None
    listeners: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=(
                "Kafka's setting listeners, such as SASL_SSL://0.0.0.0:9093,... Replaces --host "
                "and --port."
            ),
        ),
    ] = None

    def check(self) -> None:
        """Raises a usage error for options that exclude each other."""
        if self.listeners is not None and (self.host is not None or self.port is not None):
            raise typer.BadParameter("--listeners cannot be combined with --host and --port")

    def or_default(self, settings: Mapping[str, object]) -> AddressOptions:
        """With the default port, unless listeners or a port are given, here or in the settings."""
        is_given = self.listeners is not None or self.port is not None or "listeners" in settings
        return self if is_given else self._replace(port=DEFAULT_PORT)


class AccessOptions(NamedTuple):
    """Who may connect, and do what."""

    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the users of SASL listeners: one NAME=PASSWORD per line.",
        ),
    ] = None
    acls: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Enforce the ACLs in this file. Default: no authorization."
        ),
    ] = None
    allow_anonymous: Annotated[
        bool, flag("--allow-anonymous", "Allow other machines to connect without authentication.")
    ] = False


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    directories: Annotated[
        list[Path],
        argument(
            "DIR",
            "Log directories. Missing ones are created, unless you give --read-only.",
            parser=local_path,
        ),
    ],
    *,
    address: AddressOptions,
    read_only: Annotated[
        bool,
        flag(
            "--read-only",
            "Take no lock and never write: for a dead broker's disk, a copy, or a directory "
            "that a broker is writing to.",
        ),
    ] = False,
    config: Annotated[
        list[str] | None,
        config_option("Set a Kafka broker setting, such as auto.create.topics.enable=false."),
    ] = None,
    server_properties: ServerPropertiesOption = None,
    access: AccessOptions,
    metrics_port: Annotated[
        int | None,
        _port_option(
            "--metrics-port",
            "Serve /metrics (Prometheus) and /health on this port. Default: not served.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Format of the broker's log lines.")
    ] = "text",
    as_json: JsonOption = False,
) -> None:
    """Serve log directories to Kafka clients, as a cluster of one broker.

    Producers, consumers, groups, transactions and admin clients work as with Apache Kafka, and the
    files are in Kafka's format. The command runs until SIGINT (Ctrl-C), SIGTERM or SIGHUP, then
    shuts down cleanly. It locks the directories, so it fails if another broker is using them. With
    --read-only, no lock is needed; producers then get an error, and offsets that groups commit are
    kept in memory only.

    Settings are Kafka's broker settings; --config overrides --server-properties. An unknown setting
    in --config is an error; in the file of --server-properties, it is ignored with a warning. By
    default, the broker listens on the loopback interface only. To listen on an address that other
    machines can reach (--host, --listeners), configure authentication or use --allow-anonymous.
    Errors and warnings are printed to standard error.

    \b
    Examples:
      stratalog serve data
      stratalog serve data --port 0 --json
      stratalog serve /mnt/dead-broker/kafka-logs --read-only --port 9092
      stratalog serve data -c num.partitions=3 -c group.initial.rebalance.delay.ms=3000
      stratalog serve data --listeners SASL_PLAINTEXT://0.0.0.0:9092 --users users.properties

    With --json, the command prints one object of kind broker as soon as clients can connect.
    """
    from stratalog.broker.broker import Broker  # noqa: PLC0415  # heavy
    from stratalog.broker.logging_format import log_to_stderr  # noqa: PLC0415
    from stratalog.config.broker import read_server_properties  # noqa: PLC0415

    address.check()
    leave_reports_to_logging()
    log_to_stderr(log_format, "WARNING")
    settings: dict[str, object] = {}
    if server_properties is not None:
        settings |= read_server_properties(server_properties)
    settings |= setting_values("--config", config or [])
    broker = Broker(
        *directories,
        config=settings,
        read_only=read_only,
        metrics_port=metrics_port,
        **address.or_default(settings)._asdict(),
        **access._asdict(),
    )
    # Other commands end when their output pipe is closed; here a client's socket must not do that.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    stopping = set_by_stop_signals()
    _allow_many_open_files()
    with broker:
        gc.freeze()  # what was loaded stays: no collection has to look at it again
        metrics = None if metrics_port is None else broker.metrics_address
        if log_format == "json" and not as_json:
            _log_start(broker.bootstrap_servers, metrics, directories)
        else:
            _announce(broker.bootstrap_servers, metrics, directories, as_json=as_json)
        stopping.wait()


def _allow_many_open_files() -> None:
    """A partition in use takes up to four, and many systems start programs with a limit of 1,024.
    A JVM raises it too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_start(bootstrap_servers: str, metrics: str | None, directories: list[Path]) -> None:
    """What `_announce` says, for those who read nothing but JSON from standard error."""
    facts = {"bootstrapServers": bootstrap_servers, "directories": list(map(str, directories))}
    if metrics is not None:
        facts["metricsAddress"] = metrics
    _log.setLevel(logging.INFO)
    _log.info("serving at %s", bootstrap_servers, extra=facts)


def _announce(
    bootstrap_servers: str, metrics: str | None, directories: list[Path], *, as_json: bool
) -> None:
    paths = list(map(str, directories))
    if as_json:
        row = {"kind": "broker", "bootstrapServers": bootstrap_servers, "directories": paths}
        if metrics is not None:
            row["metricsAddress"] = metrics
        print(json_line(row), flush=True)
    else:
        report_line(f"stratalog: serving {', '.join(paths)} at {bootstrap_servers}")
        if metrics is not None:
            report_line(f"stratalog: metrics at http://{metrics}/metrics")
