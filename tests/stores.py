"""Object stores for tests: SeaweedFS, a real S3 server, and moto, which counts every request; for
large objects, a server that has no more than reading needs.

All listen on loopback at a port of their own and end with the test that uses them.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from stratalog.storage.remote_path import RemotePath, location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUCKET = "logs"
ACCESS_KEY, SECRET_KEY = "strata-key", "strata-secret"


@dataclass
class S3Server:
    """Where a server is, and how to use it."""

    endpoint: str
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = {
            "s3.endpoint": self.endpoint,
            "s3.access.key": ACCESS_KEY,
            "s3.secret.key": SECRET_KEY,
            "s3.region": "us-east-1",
        }

    def uri(self, key: str = "") -> str:
        return f"s3://{BUCKET}/{key}".rstrip("/")

    def path(self, key: str = "") -> RemotePath:
        found = location(self.uri(key), self.options)
        assert isinstance(found, RemotePath)
        return found

    @property
    def filesystem(self) -> Any:
        return self.path("x").store.filesystem

    def create_bucket(self) -> None:
        from pyarrow.fs import S3FileSystem  # noqa: PLC0415 - not for tests without stores

        found = S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=self.endpoint.removeprefix("http://"),
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        found.create_dir(BUCKET)

    def upload(self, directory: Path, key: str) -> str:
        """Copy a directory; returns its URI."""
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                target = f"{BUCKET}/{key}/{file.relative_to(directory)}"
                with self.filesystem.open_output_stream(target) as stream:
                    stream.write(file.read_bytes())
        return self.uri(key)


class Request(NamedTuple):
    """One request, as the server saw it."""

    method: str
    target: str

    @property
    def is_list(self) -> bool:
        return "list-type=" in self.target


@dataclass
class CountingServer(S3Server):
    """moto, with the requests it got."""

    requests: list[Request] = field(default_factory=list)

    def upload(self, directory: Path, key: str) -> str:
        """Past the network, which would take long for many files."""
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                self.put(f"{key}/{file.relative_to(directory)}", file.read_bytes())
        return self.uri(key)

    def put(self, key: str, data: bytes) -> None:
        self.backend.put_object(BUCKET, key, data)

    def remove(self, key: str) -> None:
        self.backend.delete_object(BUCKET, key)

    @property
    def backend(self) -> Any:
        from moto.backends import get_backend  # noqa: PLC0415 - heavy

        return get_backend("s3")["123456789012"]["aws"]

    def count(self, method: str) -> int:
        """Requests of a method; a listing is not a GET here."""
        return sum(each.method == method and not each.is_list for each in self.requests)

    @property
    def lists(self) -> int:
        return sum(each.is_list for each in self.requests)


class _Collector(logging.Handler):
    def __init__(self, requests: list[Request]) -> None:
        super().__init__()
        self._requests = requests

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP", record.getMessage())
        if found is not None:
            self._requests.append(Request(found[1], found[2]))


@contextmanager
def counting_server() -> Iterator[CountingServer]:
    """moto in this process."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - heavy

    log = logging.getLogger("werkzeug")
    before = (log.level, log.propagate)
    log.setLevel(logging.INFO)
    log.propagate = False
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = CountingServer(f"http://{host}:{port}")
    collector = _Collector(found.requests)
    log.addHandler(collector)
    try:
        found.backend.reset()  # it outlives a server
        found.create_bucket()
        yield found
    finally:
        server.stop()
        log.removeHandler(collector)
        log.level, log.propagate = before


class _FileHandler(BaseHTTPRequestHandler):
    """Files below `root` as objects: their heads, ranges and lists."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: Path
    requests: list[Request]

    def log_message(self, format: str, *args: object) -> None:
        """To nobody."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.requests.append(Request(self.command, self.path))
        url = urlsplit(self.path)
        file = self.root / unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        if "list-type=" in url.query:
            self._list(parse_qs(url.query)["prefix"][0])
        elif file.is_file():
            self._send(file)
        else:
            self._begin(404, 0)

    def _send(self, file: Path) -> None:
        size = file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2]), size - 1)) if wanted else (0, size - 1)
        extra = {"Content-Range": f"bytes {first}-{last}/{size}"} if wanted else {}
        self._begin(206 if wanted else 200, last + 1 - first, extra)
        if self.command == "GET" and size:
            with file.open("rb") as content:
                self.connection.sendfile(content, first, last + 1 - first)

    def _list(self, prefix: str) -> None:
        """What is directly in a directory; nothing here lists more."""
        directory = self.root / prefix
        files = sorted(directory.iterdir()) if directory.is_dir() else []
        found = ""
        for file in files:
            if file.is_dir():
                found += f"<CommonPrefixes><Prefix>{prefix}{file.name}/</Prefix></CommonPrefixes>"
            else:
                size = file.stat().st_size
                found += f"<Contents><Key>{prefix}{file.name}</Key><Size>{size}</Size></Contents>"
        name = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        counts = f"<KeyCount>{len(files)}</KeyCount><IsTruncated>false</IsTruncated>"
        body = f"{name}{counts}{found}</ListBucketResult>".encode()
        self._begin(200, len(body))
        self.wfile.write(body)

    def _begin(self, status: int, length: int, extra: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(length), "ETag": '"never changes"', **(extra or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def file_server(root: Path) -> Iterator[CountingServer]:
    """The files of a directory, to read. moto would copy a whole object for each of its ranges, for
    so long that clients ask again."""
    requests: list[Request] = []
    handler = type("Handler", (_FileHandler,), {"root": root, "requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield CountingServer(f"http://127.0.0.1:{server.server_port}", requests=requests)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def seaweed_server() -> Iterator[S3Server]:
    """SeaweedFS in a process of its own."""
    for is_last in (False, False, True):
        try:
            with ExitStack() as stack:
                server = stack.enter_context(_seaweed_server())
                started = stack.pop_all()
            break
        except AssertionError:  # another process has taken one of the ports meanwhile
            if is_last:
                raise
    with started:
        yield server


@contextmanager
def _seaweed_server() -> Iterator[S3Server]:
    directory = Path(tempfile.mkdtemp(prefix="stratalog-weed-"))
    config = directory / "s3.json"
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "test", "credentials": [keys], "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports(8)
    command = [
        str(Path(sys.executable).with_name("weed")),
        "server",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        f"-master.port={ports[0]}",
        f"-volume.port={ports[1]}",
        f"-filer.port={ports[2]}",
        f"-master.port.grpc={ports[4]}",
        f"-volume.port.grpc={ports[5]}",
        f"-filer.port.grpc={ports[6]}",
        f"-s3.port.grpc={ports[7]}",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=40",
        "-s3",
        f"-s3.port={ports[3]}",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    with (directory / "weed.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    found = S3Server(f"http://127.0.0.1:{ports[3]}")
    try:
        _wait_for(found, process, directory / "weed.log")
        yield found
    finally:
        with suppress(ProcessLookupError):  # it did not start
            os.killpg(process.pid, signal.SIGKILL)  # a clean stop takes seconds
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(server.endpoint, timeout=1).close()
        except OSError as error:
            if "HTTP Error" not in str(error):
                time.sleep(0.2)
                continue
        try:
            server.create_bucket()
        except OSError:
            time.sleep(0.2)
            continue
        return
    raise AssertionError(log.read_text()[-2000:])


def _free_ports(count: int) -> list[int]:
    """Below those that the system gives to clients, of which other tests need many."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


# -- faults

Fault: TypeAlias = "Callable[[Request], Answer | None]"
"""What to do with a request instead of passing it on; None: nothing."""


class Answer(NamedTuple):
    """How a faulty server answers: with a status, by waiting, by cutting the connection after so
    many bytes, or with only so many bytes, and their number as the length of all."""

    status: int | None = None
    delay_s: float = 0.0
    cut_after: int | None = None
    length: int | None = None


class FaultyProxy:
    """Stands between a client and a server, and does what `fault` says."""

    def __init__(self, server: S3Server) -> None:
        self._upstream = server.endpoint.removeprefix("http://").split(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.fault: Fault = lambda _: None
        self.server = S3Server(f"http://127.0.0.1:{self._listener.getsockname()[1]}")
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, port = self._upstream
        with client, socket.create_connection((host, int(port))) as upstream:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            source, back = client.makefile("rb"), upstream.makefile("rb")
            with suppress(OSError):
                while self._pass_on(source, back, client, upstream):
                    pass

    def _pass_on(
        self, source: IO[bytes], back: IO[bytes], client: socket.socket, upstream: socket.socket
    ) -> bool:
        head = _head(source)
        if not head:
            return False
        body = source.read(_length(head))
        method, target = head.split(b" ", 2)[:2]
        answer = self.fault(Request(method.decode(), target.decode())) or Answer()
        time.sleep(answer.delay_s)
        if answer.status is not None:
            lines = f"HTTP/1.1 {answer.status} Fault\r\nContent-Length: 0\r\n\r\n"
            client.sendall(lines.encode())
            return True
        upstream.sendall(head + body)
        response = _head(back)
        if answer.length is not None:
            said = re.compile(rb"(?i)\r\ncontent-length: *\d+")
            client.sendall(said.sub(b"\r\nContent-Length: %d" % answer.length, response))
            client.sendall(back.read(_length(response))[: answer.length])
            return True
        client.sendall(response)
        has_body = method != b"HEAD" and not response.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304"))
        left = _length(response) if has_body else 0
        if answer.cut_after is not None:
            client.sendall(back.read(min(left, answer.cut_after)))
            client.shutdown(socket.SHUT_RDWR)
            return False
        while left:
            piece = back.read(min(left, 1 << 18))
            client.sendall(piece)
            left -= len(piece)
        return True


def _head(stream: IO[bytes]) -> bytes:
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            break
    return b"".join(lines)


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return 0 if found is None else int(found[1])
