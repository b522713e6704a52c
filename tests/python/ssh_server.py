"""A real sshd on a high port, with keys of its own in a folder.

On the loopback interface, or in the network namespaces that make several hosts of this one.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
def running(
    folder: Path, names: list[str], address: str = "127.0.0.1", within: Sequence[str] = ()
) -> Iterator[Path]:
    """Yields a configuration for ssh in which all `names` are this server.

    Args:
        folder: of its keys and its log.
        names: of hosts.
        address: where it listens.
        within: a command that runs others where that address is, as `ip netns exec NAME`.
    """
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
        f"Port {port}\nListenAddress {address}\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it separates privileges
    log = folder / "sshd.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [*within, program, "-D", "-e", "-f", str(server_configuration)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    try:
        _wait_until_listening(server, address, port, within, log)
        client = folder / "ssh_config"
        client.write_text(
            f"Host {' '.join(names)}\n  HostName {address}\n  Port {port}\n"
            f"  User {getpass.getuser()}\n  IdentityFile {folder}/user_key\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
            "  StrictHostKeyChecking no\n  LogLevel ERROR\n"
        )
        yield client
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_until_listening(
    server: subprocess.Popen[bytes], address: str, port: int, within: Sequence[str], log: Path
) -> None:
    connects = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        command = [*within, sys.executable, "-c", connects]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text()}")


class Namespaces:
    """A network of hosts that are network namespaces of this one, each with an sshd.

    The first one, on which commands are run, is a bridge; hosts are called a, b, ...
    """

    def __init__(self, folder: Path, hosts: int) -> None:
        self._folder = folder
        self._own = f"rwl{os.getpid()}"
        self.names = [chr(ord("a") + i) for i in range(hosts)]
        self._stack = contextlib.ExitStack()
        self.configuration = folder / "ssh_config"

    @staticmethod
    def why_not() -> Optional[str]:
        """Why there can be none here; None when there can."""
        if why_not() is not None:
            return why_not()
        if os.geteuid() != 0:
            return "network namespaces need root"
        if shutil.which("ip") is None:
            return "iproute2 is not installed"
        probe = f"rwl{os.getpid()}probe"
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
        return None if made.returncode == 0 else "network namespaces cannot be made"

    def namespace(self, name: str = "") -> str:
        """Of a host; without a name the bridge's."""
        return f"{self._own}{name or '-'}"

    def within(self, name: str = "") -> list[str]:
        """Runs a command there."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def sent(self, name: str) -> int:
        """Bytes that a host has sent."""
        command = [*self.within(name), "cat", "/sys/class/net/wire/statistics/tx_bytes"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(text)

    def __enter__(self) -> Namespaces:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for name in ["", *self.names]:
            command = ["ip", "netns", "del", self.namespace(name)]
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)

    def _make(self) -> None:
        def ip(*words: str) -> None:
            subprocess.run(["ip", *words], check=True)

        for name in ["", *self.names]:
            ip("netns", "add", self.namespace(name))
            ip("-n", self.namespace(name), "link", "set", "lo", "up")
        bridge = ("-n", self.namespace())
        ip(*bridge, "link", "add", "bridge", "type", "bridge")
        ip(*bridge, "addr", "add", "10.233.9.254/24", "dev", "bridge")
        ip(*bridge, "link", "set", "bridge", "up")
        texts = []
        for number, name in enumerate(self.names, 1):
            own, port, address = self.namespace(name), f"port{name}", f"10.233.9.{number}"
            wire = ("link", "add", "wire", "netns", own, "type", "veth")
            ip(*wire, "peer", "name", port, "netns", self.namespace())
            ip("-n", own, "addr", "add", f"{address}/24", "dev", "wire")
            ip("-n", own, "link", "set", "wire", "up")
            ip(*bridge, "link", "set", port, "master", "bridge", "up")
            folder = self._folder / name
            folder.mkdir()
            server = running(folder, [name], address, self.within(name))
            texts.append(self._stack.enter_context(server).read_text())
        self.configuration.write_text("".join(texts))
