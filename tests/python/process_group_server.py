"""Runs cases of process_group_rank.py: reads "CASE RANKS", a line each; answers with JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked_ranks
import process_group_rank
import torch._dynamo  # noqa: F401  # what DDP imports when it is first used

DEADLINE_SECONDS = 120


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        case, ranks = line.split()

        def rank_main(rank: int, folder: Path, case: str = case, ranks: str = ranks) -> None:
            process_group_rank.run(case, str(folder / "store"), rank, int(ranks), "cpu")

        statuses, said = forked_ranks.run(
            int(ranks), rank_main, DEADLINE_SECONDS, lambda status: status > 0
        )
        answers.write(json.dumps({"statuses": statuses, "said": said}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
