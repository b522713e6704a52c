"""Conformance and speed of NCCL network plugins, by the program ropewalk-check-plugin."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Optional

from ropewalk import _library, errors

_PROGRAM: Final = "ropewalk-check-plugin"


def program() -> Path:
    """The program: beside the library, else on the path.

    Raises:
        SystemCallError: it is not there.
    """
    beside = Path(_library.path()).parent / _PROGRAM
    if beside.is_file():
        return beside
    found = shutil.which(_PROGRAM)
    if found is None:
        raise errors.SystemCallError(
            f"{_PROGRAM} is neither beside the Ropewalk library nor on PATH; reinstall the "
            "ropewalk package (from its sources: make install)"
        )
    return Path(found)


def _lines(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with subprocess.Popen(
        [str(program())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(request))
        child.stdin.close()
        for line in child.stdout:
            yield json.loads(line)
    if child.returncode == 2:
        raise errors.ArgumentError("the request was refused; the reason is above")
    if child.returncode != 0:
        raise errors.SystemCallError(f"{_PROGRAM} ended with status {child.returncode}")


def rules() -> list[dict[str, Any]]:
    """All rules: id, title, what in NCCL relies on it, where in NCCL, number of processes."""
    found: list[dict[str, Any]] = next(_lines({"list": True}))["rule_list"]
    return found


def check(
    file: str,
    *,
    version: Optional[int] = None,
    device: int = 0,
    only: Sequence[str] = (),
    sizes: Sequence[int] = (),
    timeout: float = 10,
    connections: int = 1000,
    large: bool = False,
    log: bool = False,
) -> Iterator[dict[str, Any]]:
    """Checks a plugin, and yields what is found as soon as it is.

    Args:
        file: the library; a name without a slash that is no file here is searched as the loader
            does.
        version: of the interface, instead of the newest that the plugin exports.
        device: of the plugin.
        only: ids of rules; those that they need are checked too. None: all.
        sizes: of messages whose latency and bandwidth is measured.
        timeout: seconds, of one wait for the plugin.
        connections: how many the rule `leaks` opens and closes.
        large: check messages above 2 GiB too.
        log: show the plugin's log on standard error.

    Yields:
        One of `plugin`, `rule`, `measure`, `fairness` and `connections_per_second` at a time.
    """
    yield from _lines(
        {
            "file": str(Path(file).resolve()) if Path(file).is_file() else file,
            "version": version,
            "device": device,
            "timeout_s": timeout,
            "connections": connections,
            "large": large,
            "log": log,
            "rules": list(only),
            "sizes": list(sizes),
        }
    )
