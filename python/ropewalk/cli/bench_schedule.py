"""A schedule that replaces the tuner's choice in `ropewalk bench` or `ropewalk microbench`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ropewalk import errors, schedule
from ropewalk.cli import console
from ropewalk.communicator import Communicator

# What a communicator has without asking (src/comm/rank_record.cc).
_CHANNELS_ALWAYS_THERE = 2


@dataclass(frozen=True)
class Use:
    """What became of a schedule."""

    status: int
    """console.OK, or the exit status of a command that cannot go on"""
    in_place: bool
    """may be called in place"""


@dataclass(frozen=True)
class Given:
    """The text of a schedule, and what must be known of it before any rank starts.

    Only the head is read here, since ranks are forked before the library is loaded; its parser and
    checker see the whole text in `use`.
    """

    name: str
    text: str
    collective: str
    ranks: int
    root: int
    channels: int

    @staticmethod
    def of(name: str, text: str) -> Given:
        """From a text form; ends the command when it has no head of a schedule."""
        head = text.partition("\nrank ")[0]

        def field(word: str, default: Optional[str] = None) -> str:
            found = re.search(rf"^\s*{word}\s+(\w+)\s*(?:#.*)?$", head, re.M)
            if found is None and default is None:
                console.fail(f'{name}: no schedule: there is no line "{word} ..."', console.USAGE)
            return found[1] if found is not None else str(default)

        numbers = {}
        for word, default in (("ranks", None), ("root", "0")):
            value = field(word, default)
            if not value.isdigit() or len(value) > 6:
                console.fail(f'{name}: no schedule: "{word} {value}"', console.USAGE)
            numbers[word] = int(value)
        channels = len(re.findall(r"^\s*channel\s", head, re.M))
        return Given(name, text, field("collective"), numbers["ranks"], numbers["root"], channels)

    @staticmethod
    def read(path: Path) -> Given:
        """From a file."""
        try:
            return Given.of(str(path), path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            console.fail(f"{path}: {reason}", console.USAGE)

    def settings(self) -> list[str]:
        """What --set must say so that the communicator has the channels."""
        return [f"CHANNELS={self.channels}"] if self.channels > _CHANNELS_ALWAYS_THERE else []

    def use(self, comms: list[Communicator]) -> Use:
        """Makes `comms`, ranks of one communicator, run it; all ranks call.

        All ranks get the same result from the checker; rank 0 reports it.
        """
        prints = comms[0].rank == 0
        try:
            report = schedule.check(self.text)
        except errors.ArgumentError as error:
            self._tell(str(error), prints)
            return Use(console.USAGE, in_place=False)
        if not report["accepted"]:
            defects = "".join(f"\n  {defect}" for defect in report["defects"])
            self._tell(f"refused by the checker{defects}", prints)
            return Use(console.WRONG, in_place=False)
        for comm in comms:
            comm.use_schedule(self.text)
        return Use(console.OK, in_place=bool(report["in_place"]))

    def _tell(self, message: str, prints: bool) -> None:
        if prints:
            print(f"ropewalk: {self.name}: {message}", file=sys.stderr, flush=True)
