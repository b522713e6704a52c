"""A real sshd on a high port of the loopback interface, with keys of its own in a folder."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional


def why_not() -> Optional[str]:
    """Why no sshd can be started here; None when it can."""
    for name in ("ssh", "ssh-keygen"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    if _program() is None:
        return "sshd is not installed (dev/setup ssh)"
    return None


def _program() -> Optional[str]:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, names: list[str]) -> Iterator[Path]:
    """Yields a configuration for ssh in which all `names` are this server."""
    program = _program()
    assert program is not None
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
        )
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    port = free_port()
    server_configuration = folder / "sshd_config"
    server_configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it separates privileges
    log = folder / "sshd.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [program, "-D", "-e", "-f", str(server_configuration)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    try:
        _wait_until_listening(server, port, log)
        client = folder / "ssh_config"
        client.write_text(
            f"Host {' '.join(names)}\n  HostName 127.0.0.1\n  Port {port}\n"
            f"  User {getpass.getuser()}\n  IdentityFile {folder}/user_key\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
            "  StrictHostKeyChecking no\n  LogLevel ERROR\n"
        )
        yield client
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_until_listening(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text()}")
