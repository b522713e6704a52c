"""`ropewalk serve`: running jobs on NCCL's RAS port, and as Prometheus metrics."""

from __future__ import annotations

import contextlib
import http.server
import os
import select
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Optional

import typer

from ropewalk.calls import ras, ras_events
from ropewalk.calls import status as asking
from ropewalk.calls.prometheus import Metrics
from ropewalk.cli import console
from ropewalk.cli.command_beside import run_beside
from ropewalk.launching.hosts import read_hosts

HELP: Final = """
Offer what `ropewalk status` says to monitoring: on NCCL's RAS port, as Prometheus metrics.

Jobs of this host, or of the hosts of a file, are asked; they pay nothing as long as nobody asks.
The ports are on the loopback interface alone. With a command it is served as long as that runs, and
the exit status is the command's; without one until Ctrl-C or SIGTERM.

Examples:

\b
  ropewalk serve --ras 28028
      then `ncclras`, or echo STATUS | nc localhost 28028
  ropewalk serve --metrics 9400 --hosts hosts.txt
      http://localhost:9400/metrics for Prometheus
  ropewalk serve --textfile /var/lib/node_exporter/ropewalk.prom
      for node_exporter's textfile collector
  ropewalk serve --ras 28028 -- torchrun --nproc-per-node 8 train.py
      beside a job

Exit status: the command's, or 0; 2 for a wrong command line or a port in use.
"""

_HOST: Final = "127.0.0.1"
_CALLS: Final = 1024
_TIMEOUT_SECONDS: Final = 3.0
# Of a client that says nothing more.
_CLIENT_SECONDS: Final = 30.0
_MOST_LINE: Final = 1024
# Between looks for a client that monitors.
_MONITOR_SECONDS: Final = 0.5


def serve(
    command: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="[COMMAND...]", help="The program and its arguments, after --."),
    ] = None,
    ras_port: Annotated[
        Optional[int], typer.Option("--ras", metavar="PORT", help="NCCL's own is 28028.")
    ] = None,
    metrics_port: Annotated[
        Optional[int], typer.Option("--metrics", metavar="PORT", help="For /metrics.")
    ] = None,
    textfile: Annotated[
        Optional[Path], typer.Option("--textfile", help="Write the metrics to this file, too.")
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", help="Seconds between looks for metrics.")
    ] = 5.0,
    hosts: Annotated[
        Optional[Path], typer.Option("--hosts", help="Ask the hosts of this file.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The program ssh, with options.")] = "ssh",
) -> None:
    """See HELP."""
    if ras_port is None and metrics_port is None and textfile is None:
        console.fail("serve: give --ras, --metrics or --textfile", console.USAGE)
    for flag, port in (("--ras", ras_port), ("--metrics", metrics_port)):
        if port is not None and not 0 <= port <= 65535:
            console.fail(f"{flag} {port}: must be from 0 (any) to 65535", console.USAGE)
    if not 0.1 <= interval <= 86400:
        console.fail(f"--interval {interval:g}: must be from 0.1 to 86400", console.USAGE)
    with console.reported():
        found_hosts = None if hosts is None else read_hosts(hosts)
        words = asking.words_of(ssh)

    def look() -> asking.Found:
        if found_hosts is None:
            return asking.of_this_host(_CALLS, _TIMEOUT_SECONDS)
        return asking.of_hosts(found_hosts, words, _CALLS, _TIMEOUT_SECONDS)

    with contextlib.ExitStack() as servers:
        if ras_port is not None:
            at = servers.enter_context(_serving("--ras", ras_port, _ras_handler(look)))
            console.tell([f"NCCL's RAS protocol on {_HOST}:{at}"])
        if metrics_port is not None or textfile is not None:
            watched = _Watched(look, interval, textfile)
            servers.callback(watched.stop)
            if metrics_port is not None:
                handler = _metrics_handler(watched)
                at = servers.enter_context(_serving("--metrics", metrics_port, handler))
                console.tell([f"metrics on http://{_HOST}:{at}/metrics"])
        if command:
            status = run_beside(command)
            if status != 0:
                raise typer.Exit(status)
            return
        _wait_for_signal()


def _wait_for_signal() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error of this server."""


@contextlib.contextmanager
def _serving(flag: str, port: int, handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """Yields the port."""
    try:
        server = _Server((_HOST, port), handler)
    except OSError as error:
        console.fail(f"{flag} {port}: {error.strerror}", console.USAGE)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def _ras_handler(look: object) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = _CLIENT_SECONDS

        def handle(self) -> None:
            session = ras.Session()
            while line := self.rfile.readline(_MOST_LINE):
                answer, last = session.answer(line.decode("utf-8", "replace"), look)
                self.wfile.write(answer.encode())
                if last:
                    return
                if session.monitors:
                    self._monitor(session)
                    return

        def _monitor(self, session: ras.Session) -> None:
            """Tells what happens until the client goes or says something."""
            assert callable(look)
            watch = ras_events.Watch()
            while True:
                self.wfile.write(session.told(watch.look(look())).encode())
                if select.select([self.connection], [], [], _MONITOR_SECONDS)[0]:
                    return

    return Handler


class _Watched:
    """Metrics, looked at each interval, so that few records are overwritten unseen."""

    def __init__(self, look: object, interval: float, textfile: Optional[Path]) -> None:
        assert callable(look)
        self._look = look
        self._interval = interval
        self._textfile = textfile
        self._metrics = Metrics()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """As of now."""
        found = self._look()
        with self._lock:
            self._metrics.update(found)
            return self._metrics.text()

    def stop(self) -> None:
        """And looks a last time."""
        self._stopped.set()
        self._thread.join(2 * _TIMEOUT_SECONDS)

    def _watch(self) -> None:
        while True:
            text = self.text()
            if self._textfile is not None:
                self._write(self._textfile, text)
            if self._stopped.wait(self._interval):
                return

    def _write(self, path: Path, text: str) -> None:
        # Whoever reads it finds a whole one.
        part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            part.write_text(text)
            part.replace(path)
            self._failed = False
        except OSError as error:
            if not self._failed:
                print(f"ropewalk: {path}: {error.strerror}", file=sys.stderr, flush=True)
            self._failed = True
            with contextlib.suppress(OSError):
                part.unlink()


def _metrics_handler(watched: _Watched) -> type[socketserver.BaseRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = watched.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
