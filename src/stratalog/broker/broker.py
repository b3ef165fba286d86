"""`Broker`: log directories behind Kafka's protocol.

    with Broker("data") as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

The broker runs in a thread of its own. It listens as soon as it is started, on loopback and on a
port that the system chooses, unless you specify others.
"""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from stratalog.broker.acceptor import Connections, ListeningSocket
from stratalog.broker.configs import ConfigHandlers
from stratalog.broker.context import BrokerContext
from stratalog.broker.fetch import FetchHandlers
from stratalog.broker.group_handlers import GroupHandlers
from stratalog.broker.logs import ReadOnlyLogs, WritableLogs
from stratalog.broker.metadata import ClusterHandlers
from stratalog.broker.monitoring import BrokerPages, PageServer
from stratalog.broker.network_config import NetworkConfig, has_authorizer, super_users
from stratalog.broker.offsets import OffsetHandlers
from stratalog.broker.produce import ProduceHandlers
from stratalog.broker.reactor import Reactor
from stratalog.broker.requests import Dispatcher
from stratalog.broker.security.access_control import (
    AccessControl,
    AccessControlHandlers,
    read_users,
)
from stratalog.broker.security.acls import AclAuthorizer, read_acls
from stratalog.broker.security.authentication import LogInHandlers
from stratalog.broker.security.listeners import LOOPBACK, check_exposure, parse_listeners
from stratalog.broker.security.request_authorization import RequestAuthorization
from stratalog.broker.security.store import SecurityStore
from stratalog.broker.topics import TopicHandlers
from stratalog.broker.transactions import TransactionHandlers
from stratalog.config import BrokerConfig
from stratalog.errors import BrokerStartError, InvalidArgumentError, StratalogError
from stratalog.format.uuids import id_text
from stratalog.log_dir import LogDir
from stratalog.storage.closeable import Closeable
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stratalog.broker.logs import Logs
    from stratalog.broker.requests import Handlers

_log = logging.getLogger(__name__)

_DEFAULTS: Final = {"group.initial.rebalance.delay.ms": 0}
"""As in Kafka's own `server.properties`: the first member of a group does not wait for others."""

_DEFAULT_NODE_ID: Final = 1
_STOP_S: Final = 30
_FOLLOW_MS: Final = 200
"""How often a read-only broker looks for new records."""


class Broker(Closeable):
    """One node that serves log directories to Kafka clients. Use it as a context manager, also with
    `async with`, or call `start` and `close`."""

    def __init__(  # noqa: PLR0913  # independent choices, all by keyword
        self,
        *paths: Path | str,
        host: str | None = None,
        port: int | None = None,
        listeners: str | None = None,
        config: BrokerConfig | Mapping[str, object] | Path | str | None = None,
        read_only: bool = False,
        users: Mapping[str, str] | Path | str | None = None,
        acls: Path | str | None = None,
        allow_anonymous: bool = False,
        metrics_host: str = LOOPBACK,
        metrics_port: int | None = None,
    ) -> None:
        """The log directories are created if they are missing, as by `LogDir.open`, which also says
        what `config` may be. With `read_only` they may be any Kafka log directories, also those of
        a broker that is running: nothing is locked or written, producers are refused, and what
        groups commit is kept in memory. `group.initial.rebalance.delay.ms` is 0 unless it is set.

        `listeners` is Kafka's setting of that name (`SASL_SSL://0.0.0.0:9093,…`). `host` and `port`
        are short for one listener without TLS and SASL; port 0 lets the system choose one. Without
        any of them the config's `listeners` count, else loopback and any port. Raises
        InvalidArgumentError if `listeners` is given with one of the others.

        `users` may log in by SASL: passwords by name, or a file with a line `name=password` for
        each. `acls` is a file of ACLs (`security.acls.parse_acls`): with it, or with
        `authorizer.class.name` in the config, only `super.users` may do what no ACL allows.
        `allow_anonymous` permits a listener that other machines reach without authentication.

        With `metrics_port`, `/metrics` and `/health` are served there over HTTP; port 0 lets the
        system choose one (`metrics_address`).
        """
        self._config = BrokerConfig.of(config, _DEFAULTS)
        self._paths = [Path(path) for path in paths]
        if not paths and config is not None:
            self._paths = list(self._config.log_dir_paths)
        if not self._paths:
            raise InvalidArgumentError("give a log directory, or log.dirs in the config")
        self._is_read_only = read_only
        self._settings = dict(self._config.others)
        is_one_address = host is not None or port is not None
        if listeners is not None and is_one_address:
            raise InvalidArgumentError("give either listeners, or host and port")
        if listeners is not None:
            self._settings["listeners"] = listeners
        elif is_one_address:
            shown = f"[{host}]" if host is not None and ":" in host else host or LOOPBACK
            self._settings["listeners"] = f"PLAINTEXT://{shown}:{port or 0}"
        self._network = NetworkConfig.parse(self._settings)
        self._users = read_users(users)
        self._acls = None if acls is None else read_acls(Path(acls))
        self._allow_anonymous = allow_anonymous
        self._metrics_bind = None if metrics_port is None else (metrics_host, metrics_port)
        self._page_server: PageServer | None = None
        self._thread: threading.Thread | None = None
        self._was_started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    async def __aenter__(self) -> Self:
        import asyncio  # noqa: PLC0415  # most brokers are not started by a coroutine

        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.to_thread(self.close)

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: host and port of the first listener."""
        self._check_started()
        return str(next(iter(self._context.addresses.values())))

    def address_of(self, listener: str) -> str:
        """Where clients connect to the listener of this name: host and port."""
        self._check_started()
        return str(self._context.addresses[listener])

    @property
    def metrics_address(self) -> str:
        """Host and port of `/metrics` and `/health`; needs `metrics_port`."""
        if self._page_server is None:
            raise InvalidArgumentError("the broker was created without metrics_port")
        return self._page_server.address

    @property
    def log_dir(self) -> LogDir:
        """What the broker writes to. Other threads may read from it. Raises RequestError if it is
        read-only."""
        self._check_started()
        return self._logs.log_dir

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        self._check_started()
        return len(self._connections)

    def _check_started(self) -> None:
        if not self._was_started:
            raise BrokerStartError("the broker is not started: use it in `with`, or call start()")

    # -- starting and stopping

    def start(self) -> None:
        """Open the directories, listen, and serve in a thread."""
        if self._thread is not None:
            raise BrokerStartError("the broker is running already")
        with ExitStack() as undo:
            self._sockets = self._bound_sockets()
            undo.callback(_close, self._sockets)
            if self._metrics_bind is not None:
                self._page_server = PageServer(*self._metrics_bind)
                undo.callback(self._page_server.close)
            self._logs = self._opened_logs()
            undo.callback(self._logs.close)
            self._reactor = Reactor()
            undo.callback(self._reactor.close)
            self._prepare()
            undo.pop_all()
        self._thread = threading.Thread(
            target=self._reactor.run, name="stratalog-broker", daemon=True
        )
        self._thread.start()
        self._was_started = True
        atexit.register(self._close_at_exit)
        if not self._is_read_only:
            self.log_dir.maintenance.start()

    def _prepare(self) -> None:
        """Everything that the reactor will call."""
        self._dispatcher = Dispatcher()
        self._access_control = self._new_access_control()
        self._context = self._new_context()
        self._connections = Connections(
            self._sockets, self._network, self._reactor, self._dispatcher
        )
        context = self._context
        log_ins = LogInHandlers(context, self._network)
        self._dispatcher.may_call = log_ins.may_call
        groups, topics = GroupHandlers(context), TopicHandlers(context)
        topics.on_deleted.append(groups.coordinator.topic_deleted)
        transactions = TransactionHandlers(context, groups.offsets_topic.partition_for)
        transactions.on_marker.append(groups.on_marker)
        for subject in (
            ClusterHandlers(context),
            ProduceHandlers(context),
            FetchHandlers(context),
            OffsetHandlers(context),
            topics,
            ConfigHandlers(context),
            transactions,
            groups,
            log_ins,
            AccessControlHandlers(context, self._access_control),
        ):
            self._register(subject.handlers())
        groups.start()
        if isinstance(self._logs, ReadOnlyLogs):
            self._follow(self._logs)
        self._connections.start()
        if self._page_server is not None:
            pages = BrokerPages(self._context, self._connections, log_ins).pages()
            self._page_server.start(self._reactor, pages)

    def _opened_logs(self) -> Logs:
        if self._is_read_only:
            return ReadOnlyLogs(self._paths)
        return WritableLogs(LogDir.open(*self._paths, config=self._config))

    def _follow(self, logs: ReadOnlyLogs) -> None:
        """Wake up clients that wait for what another process writes."""

        def look_again() -> None:
            self._reactor.call_later(_FOLLOW_MS, look_again)
            for tp in logs.follow():
                self._context.changes.notify(*tp)

        self._reactor.call_later(_FOLLOW_MS, look_again)

    def _register(self, handlers: Handlers) -> None:
        if self._access_control.has_authorizer:
            handlers = RequestAuthorization(self._context).around(handlers)
        self._dispatcher.register(handlers)

    def _bound_sockets(self) -> list[ListeningSocket]:
        listeners = parse_listeners(self._settings)
        if not self._allow_anonymous:
            check_exposure(listeners)
        sockets: list[ListeningSocket] = []
        try:
            for listener in listeners:
                sockets.append(ListeningSocket(listener))
        except BaseException:
            _close(sockets)
            raise
        return sockets

    def _new_access_control(self) -> AccessControl:
        authorizer = None
        if self._acls is not None or has_authorizer(self._settings):
            authorizer = AclAuthorizer(
                super_users=super_users(self._settings),
                allows_without_acl=self._network.allow_everyone_if_no_acl_found,
            )
        access_control = AccessControl(
            SecurityStore(Disk(), self._paths),
            users=self._users,
            fixed_acls=self._acls or (),
            authorizer=authorizer,
            is_read_only=self._is_read_only,
        )
        for each in self._sockets:
            each.use(access_control)
        return access_control

    def _new_context(self) -> BrokerContext:
        node_id, cluster_id = _identity_of(self._logs, self._config)
        return BrokerContext(
            self._logs,
            self._config,
            self._reactor,
            self._dispatcher,
            node_id,
            cluster_id,
            rack=self._settings.get("broker.rack") or None,
            addresses={each.listener.name: each.address for each in self._sockets},
            authorizer=self._access_control.authorizer,
        )

    def close(self) -> None:
        """Stop serving, close the logs and mark the shutdown as clean. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self._close_at_exit)
        self._reactor.call_soon(self._stop_serving)
        thread.join(_STOP_S)
        self._reactor.close()
        self._logs.close()

    def _close_at_exit(self) -> None:
        """For a program that forgets it."""
        try:
            self.close()
        except StratalogError as error:
            _log.warning("cannot close the broker: %s", error)

    def _stop_serving(self) -> None:
        self._connections.stop()
        if self._page_server is not None:
            self._page_server.stop()
        self._reactor.stop()


def _close(sockets: Iterable[ListeningSocket]) -> None:
    for each in sockets:
        each.socket.close()


def _identity_of(logs: Logs, config: BrokerConfig) -> tuple[int, str]:
    """Node id and cluster id: those of the Kafka broker that had the directory, or our own."""
    meta = logs.meta_properties
    node_id = config.node_id
    if node_id < 0:
        node_id = _DEFAULT_NODE_ID
        if meta is not None and meta.node_id is not None:
            node_id = meta.node_id
    if meta is not None and meta.cluster_id is not None:
        return node_id, meta.cluster_id
    digest = sha256(str(logs.paths[0].resolve()).encode()).digest()
    return node_id, id_text(digest[:16])
