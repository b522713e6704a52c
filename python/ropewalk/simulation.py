"""Simulation of plans and schedules on described machines, at the level of flows."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, Optional

from ropewalk import _library, errors
from ropewalk._library import json_of, library

ENGINES: Final = ("auto", "simgrid", "builtin")
_PROGRAM: Final = "ropewalk-simgrid"


def simgrid_program() -> Optional[Path]:
    """The program that runs SimGrid's model: beside the library, else on the path; else None."""
    beside = Path(_library.path()).parent / _PROGRAM
    if beside.is_file():
        return beside
    found = shutil.which(_PROGRAM)
    return None if found is None else Path(found)


def simulate(
    subject: str,
    topology: Optional[str] = None,
    *,
    message_bytes: float = 1e9,
    chunk_bytes: float = 0,
    paced: bool = True,
    most_messages: float = 4e5,
    engine: str = "auto",
    subject_name: str = "subject",
    topology_name: str = "topology",
) -> dict[str, Any]:
    """Plays a plan or a schedule.

    Args:
        subject: JSON of a plan, or the text form of a schedule.
        topology: JSON of the machine; a plan can do without.
        message_bytes: size of the message, as algbw counts it.
        chunk_bytes: of pipelining; 0 lets a plan's trees have their best.
        paced: whether a plan's trees keep to their planned rates, or share links as they come.
        most_messages: chunks are made larger until no more are moved.
        engine: "simgrid", "builtin" (max-min fair shares), or "auto": SimGrid where it is there.
        subject_name: for messages.
        topology_name: for messages.

    Returns:
        seconds, algbw_gbps, analytic_gbps, links with their utilisation over time, and more:
        docs/simulation.md has every field.

    Raises:
        ArgumentError: what is wrong with the plan, the schedule, the topology or the numbers.
        UsageError: the checker refuses the schedule, or SimGrid is asked for and not there.
    """
    request = {
        "subject": subject,
        "subject_name": subject_name,
        "topology": topology or "",
        "topology_name": topology_name,
        "bytes": message_bytes,
        "chunk_bytes": chunk_bytes,
        "most_messages": most_messages,
        "paced": paced,
    }
    if engine not in ENGINES:
        raise errors.ArgumentError(f'engine "{engine}": known are {", ".join(ENGINES)}')
    program = None if engine == "builtin" else simgrid_program()
    if program is None:
        if engine == "simgrid":
            raise errors.UsageError(
                f"{_PROGRAM} is not there: it is built where SimGrid is installed (Debian: "
                "libsimgrid-dev)"
            )
        report: dict[str, Any] = json_of(library().rwSimulate, json.dumps(request).encode())
        return report
    done = subprocess.run(
        [str(program)], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = done.stderr.strip() or f"{program} ended with {done.returncode}"
        raise errors.ArgumentError(words)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed
