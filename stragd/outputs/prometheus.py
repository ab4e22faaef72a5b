"""The metrics page: a small HTTP server of its own, on its own threads.

Routes: ``/`` (a page with links), ``/metrics`` (text format, at most one second old, gzip on
request), ``/-/healthy`` (the main loop is alive), ``/-/ready`` (it has published a picture).
"""

from __future__ import annotations

import gzip
import html
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from stragd.config import split_address
from stragd.outputs.metrics import Collector
from stragd.outputs.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_SECONDS = 1.0
STALL_SECONDS = 30.0
MAX_CONNECTIONS = 16
SOCKET_SECONDS = 10.0


class MetricsServer:
    """Serves snapshots until ``close``."""

    def __init__(
        self,
        address: str,
        max_series: int,
        snapshot: Callable[[], Snapshot | None],
        age: Callable[[], float | None],
    ) -> None:
        """``age`` says how many seconds old the last snapshot is, None before the first."""
        self._address = address
        self._snapshot = snapshot
        self._age = age
        self.collector = Collector(snapshot, max_series)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.collector)
        self._guard = threading.Lock()
        self._page: bytes = b""
        self._packed: bytes = b""
        self._built: float | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve. Raises OSError with a message that names the address."""
        host, port = split_address(self._address)
        try:
            self._server = _Server(host, port, self)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                error.errno,
                f"metrics address {self._address}: {reason}; set address in section [prometheus]",
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True
        )
        self._thread.start()

    def url(self) -> str:
        """Where the page is, with the real port; "" while it is not served."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}/metrics" if ":" in name else f"http://{name}:{port}/metrics"

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join(1.0)

    def page(self, packed: bool) -> bytes:
        """The page, built at most once a second however many ask."""
        with self._guard:
            now = time.monotonic()
            if self._built is None or now - self._built >= PAGE_SECONDS:
                self._page = generate_latest(self._registry)
                self._packed = b""
                self._built = now
            if packed and not self._packed:
                self._packed = gzip.compress(self._page, 1)
            return self._packed if packed else self._page

    def health(self) -> tuple[int, str]:
        """Status and text of /-/healthy."""
        age = self._age()
        if age is not None and age > STALL_SECONDS:
            return 503, f"the main loop has not moved for {age:.0f} s\n"
        return 200, "alive\n"

    def readiness(self) -> tuple[int, str]:
        """Status and text of /-/ready: working, or known to work with limits."""
        now = self._snapshot()
        if now is None:
            return 503, "starting\n"
        limits = now["health"]["degraded"]
        return 200, "ready\n" if not limits else "ready, with limits:\n" + "\n".join(limits) + "\n"

    def landing(self) -> str:
        """The page at /."""
        now = self._snapshot()
        version = html.escape(now["version"]) if now else ""
        return (
            "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>stragd</title>"
            f"<h1>stragd {version}</h1>"
            "<p>Finds the slow rank of a live distributed training job.</p>"
            "<ul><li><a href=/metrics>metrics</a><li><a href=/-/healthy>healthy</a>"
            "<li><a href=/-/ready>ready</a></ul></html>\n"
        )


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, port: int, owner: MetricsServer) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.owner = owner
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's reverse look-up of the host name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "stragd", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)  # full: the client may come again
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads for this process
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = SOCKET_SECONDS
    server_version = "stragd"
    sys_version = ""

    def do_GET(self) -> None:
        owner = cast("_Server", self.server).owner
        path = self.path.partition("?")[0]
        if path == "/metrics":
            packed = "gzip" in self.headers.get("Accept-Encoding", "")
            self._send(200, owner.page(packed), CONTENT_TYPE, packed)
        elif path == "/":
            self._send(200, owner.landing().encode(), "text/html; charset=utf-8")
        elif path == "/-/healthy":
            status, text = owner.health()
            self._send(status, text.encode())
        elif path == "/-/ready":
            status, text = owner.readiness()
            self._send(status, text.encode())
        else:
            self._send(404, b"there is only /, /metrics, /-/healthy and /-/ready\n")

    do_HEAD = do_GET

    def _send(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        packed: bool = False,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line in the journal."""
