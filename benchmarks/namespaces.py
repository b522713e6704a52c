"""Two hosts as network namespaces, joined by virtual interfaces that token buckets shape."""

from __future__ import annotations

import os
import subprocess

# Segments of TCP are not offloaded: a token bucket would pass a large one at once.
BUCKET = ("burst", "128kb", "latency", "10ms")


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class ShapedHosts:
    """Two namespaces, removed at the end of the `with`. NIC i joins them as 10.232.i.0/24."""

    def __init__(self, rates: list[int], congestion: str = "") -> None:
        """
        Args:
            rates: of each NIC, MB/s in each direction.
            congestion: TCP's congestion control; "": the kernel's default.
        """
        self.rates = rates
        self.congestion = congestion
        self.names = [f"rwn{os.getpid()}{end}" for end in "ab"]

    def __enter__(self) -> ShapedHosts:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            if self.congestion:
                setting = f"net.ipv4.tcp_congestion_control={self.congestion}"
                run("ip", "netns", "exec", name, "sysctl", "-w", setting)
        for i, rate in enumerate(self.rates):
            ends = [f"rw{i}{end}{os.getpid()}" for end in "ab"]
            run(
                *("ip", "link", "add", ends[0], "netns", self.names[0], "type", "veth"),
                *("peer", "name", ends[1], "netns", self.names[1]),
            )
            for h, (name, end) in enumerate(zip(self.names, ends)):
                run("ip", "-n", name, "addr", "add", f"10.232.{i}.{h + 1}/24", "dev", end)
                run("ip", "-n", name, "link", "set", end, "up")
                run(
                    *("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf"),
                    *("rate", f"{8 * rate}mbit", *BUCKET),
                )

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
