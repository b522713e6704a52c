"""Simulation of plans and schedules on described machines, at the level of flows."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Final, Optional, Union

from ropewalk import _library, errors
from ropewalk._library import json_of, library
from ropewalk.arguments import a, text
from ropewalk.planning import Plan
from ropewalk.planning import read as read_plan
from ropewalk.topology import Topology

ENGINES: Final = ("auto", "simgrid", "builtin")
_PROGRAM: Final = "ropewalk-simgrid"
# Exit status of the program: it serves such requests, but not this one.
_NOT_FOR_THIS_ENGINE: Final = 3
# That of the loader when a library is not there.
_NOT_LOADED: Final = 127
# How the text form of a schedule begins: with its first word, or a comment.
_SCHEDULE_BEGINS: Final = ("ropewalk-schedule", "#")

MOST_MESSAGES: Final = 4e5
"""chunks grow until no more are moved, unless the caller names a size for them"""
MOST_MESSAGES_OF_A_SIZE: Final = 1e8
"""the same where the caller does"""
PATIENCE_SECONDS: Final = 15
"""what SimGrid may need longer for goes to the built-in engine, unless SimGrid is asked for"""


def simgrid_program() -> Optional[Path]:
    """The program that runs SimGrid's model: beside the library, else on the path; else None."""
    beside = Path(_library.path()).parent / _PROGRAM
    if beside.is_file():
        return beside
    found = shutil.which(_PROGRAM)
    return None if found is None else Path(found)


def simulate(
    subject: Union[Plan, str],
    topology: Union[Topology, str, None] = None,
    *,
    message_bytes: float = 1e9,
    chunk_bytes: float = 0,
    paced: bool = True,
    most_messages: Optional[float] = None,
    engine: str = "auto",
    subject_name: str = "subject",
    topology_name: str = "topology",
    tell: Optional[Callable[[str], None]] = None,
) -> dict[str, Any]:
    """Plays a plan or a schedule.

    Args:
        subject: a plan or its JSON, or the text form of a schedule.
        topology: the machine, or its JSON; a plan can do without.
        message_bytes: size of the message, as algbw counts it.
        chunk_bytes: of pipelining; 0 lets a plan's trees have their best.
        paced: whether a plan's trees keep to their planned rates, or share links as they come.
        most_messages: chunks are made larger until no more are moved; None is MOST_MESSAGES, or
            MOST_MESSAGES_OF_A_SIZE with `chunk_bytes`.
        engine: "simgrid", "builtin" (max-min fair shares), or "auto": SimGrid where it is there and
            needs no more than PATIENCE_SECONDS.
        subject_name: for messages.
        topology_name: for messages.
        tell: called at once with each of the report's notes.

    Returns:
        seconds, algbw_gbps, analytic_gbps, links with their utilisation over time, and more:
        docs/simulation.md has every field.

    Raises:
        ArgumentError: what is wrong with the plan, the schedule, the topology or the numbers.
        UsageError: the checker refuses the schedule, or SimGrid is asked for and not there.
    """
    if engine not in ENGINES:
        raise errors.ArgumentError(f'engine "{engine}": known are {", ".join(ENGINES)}')
    if most_messages is None:
        most_messages = MOST_MESSAGES_OF_A_SIZE if chunk_bytes else MOST_MESSAGES
    machine = _machine(topology, topology_name)
    played = _played(subject, subject_name, machine)
    request = {
        "bytes": message_bytes,
        "chunk_bytes": chunk_bytes,
        "most_messages": most_messages,
        "paced": paced,
    }
    notes: list[str] = []

    def note(words: str) -> None:
        notes.append(words)
        if tell is not None:
            tell(words)

    report: Optional[dict[str, Any]] = None
    if engine != "builtin":
        try:
            report = _by_simgrid(played, {**request, "engine_seconds": PATIENCE_SECONDS})
        except _UnsuitedError as reason:
            if engine == "simgrid" and reason.there:
                note(f"{reason}; --engine builtin takes less")
                report = _by_simgrid(played, request)
            elif engine == "simgrid":
                raise errors.UsageError(str(reason)) from None
            else:
                note(f"the built-in engine plays: {reason}")
    if report is None:
        report = played.by_the_library(json.dumps(request).encode())
    if chunk_bytes and report["chunk_bytes"] > chunk_bytes * 1.001:
        note(
            f"chunks are {report['chunk_bytes']:.4g} bytes instead of {chunk_bytes:.4g}: else "
            f"more than {most_messages:.4g} messages, or 2^20 of one tree, would be moved"
        )
    elif report["messages"] < report["wished_messages"] * 0.999:
        note(
            f"chunks are larger than is best, which costs time: {report['messages']:.4g} messages "
            f"of up to {report['chunk_bytes']:.4g} bytes are moved instead of "
            f"{report['wished_messages']:.4g} (see --most-messages)"
        )
    report["notes"] = notes
    return report


class _PlayedPlan:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def by_the_library(self, request: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json_of(library().rwSimulatePlan, self._plan.c_handle, request)
        return found

    def texts(self) -> dict[str, str]:
        """For another process."""
        return {"plan": self._plan.to_json(), "topology": self._plan.topology.to_json()}


class _PlayedSchedule:
    def __init__(self, text: str, machine: Topology) -> None:
        self._text = text
        self._machine = machine

    def by_the_library(self, request: bytes) -> dict[str, Any]:
        found: dict[str, Any] = json_of(
            library().rwSimulateSchedule, self._text.encode(), self._machine.c_handle, request
        )
        return found

    def texts(self) -> dict[str, str]:
        """For another process."""
        return {"schedule": self._text, "topology": self._machine.to_json()}


def _machine(topology: Union[Topology, str, None], name: str) -> Optional[Topology]:
    if isinstance(topology, str):
        return Topology.from_json(topology, name) if topology else None
    return None if topology is None else a(Topology, topology, "topology")


def _played(
    subject: Union[Plan, str], name: str, machine: Optional[Topology]
) -> Union[_PlayedPlan, _PlayedSchedule]:
    """`subject` on `machine`."""
    if isinstance(subject, Plan):
        if machine is None or machine == subject.topology:
            return _PlayedPlan(subject)
        return _PlayedPlan(read_plan(subject.to_json(), machine, origin=name))
    begin: str = a(str, subject, "subject").lstrip(" \t\r\n")
    if begin.startswith("{"):
        return _PlayedPlan(read_plan(subject, machine, origin=name))
    if not begin.startswith(_SCHEDULE_BEGINS):
        raise errors.ArgumentError(
            f"{name}: neither a plan (JSON of the schema ropewalk-plan/1) nor a schedule (text "
            'that begins with "ropewalk-schedule 1")'
        )
    if machine is None:
        raise errors.ArgumentError(f"{name}: a schedule needs a topology to run on")
    text(subject, "subject")
    return _PlayedSchedule(subject, machine)


class _UnsuitedError(Exception):
    """SimGrid is not there, or this is too much for it."""

    def __init__(self, words: str, *, there: bool) -> None:
        super().__init__(words)
        self.there = there


def _by_simgrid(
    played: Union[_PlayedPlan, _PlayedSchedule], request: dict[str, Any]
) -> dict[str, Any]:
    program = simgrid_program()
    if program is None:
        raise _UnsuitedError(
            f"{_PROGRAM} is not there: it is built where SimGrid is installed (Debian: "
            "libsimgrid-dev)",
            there=False,
        )
    try:
        done = subprocess.run(
            [str(program)],
            input=json.dumps({**played.texts(), **request}),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise _UnsuitedError(f"{program} cannot be run: {error.strerror}", there=False) from error
    words = done.stderr.strip() or f"{program} ended with {done.returncode}"
    if done.returncode == _NOT_LOADED:
        raise _UnsuitedError(
            f"{program} finds a library of SimGrid's no more (Debian: libsimgrid3.32): {words}",
            there=False,
        )
    if done.returncode == _NOT_FOR_THIS_ENGINE:
        raise _UnsuitedError(words, there="engine_seconds" in request)
    if done.returncode != 0:
        raise errors.ArgumentError(words)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed
