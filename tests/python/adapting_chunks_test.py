"""Chunks that adapt (setting ADAPT_CHUNKS) between processes: right results while they change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

RANKS = 3
# Ranks that come late now and then; sums of floats that depend on the order of additions; one
# operation among calls of others, in place and not.
SCRIPT = """
import json, sys, time
from pathlib import Path
from typing import Any
import numpy as np
import ropewalk

folder, calls = Path(sys.argv[1]), int(sys.argv[2])
with ropewalk.init() as comm:
    dice = np.random.default_rng(comm.rank)
    data = np.sin(np.arange(1 << 19) * (comm.rank + 1.7)).astype("float32") * 1000
    chunks, first = [], None
    for n in range(calls):
        if n % 7 == comm.rank:
            time.sleep(dice.uniform(0, 0.003))
        out = data.copy()
        if n % 2:
            comm.all_reduce(out)
        else:
            comm.all_reduce(data, out=out)
        first = out if first is None else first
        assert out.tobytes() == first.tobytes(), f"call {n} differs"
        chunks.append(comm.explain("all_reduce", data.nbytes)["chunks"]["bytes"])
        if n % 5 == 0:
            word = data.copy() if comm.rank == 1 else np.zeros_like(data)
            comm.broadcast(word, root=1)
            expected = np.sin(np.arange(1 << 19) * 2.7).astype("float32") * 1000
            assert word.tobytes() == expected.tobytes(), f"broadcast {n} differs"
            short = np.full(4, comm.rank + 1, dtype="int32")
            comm.all_reduce(short)
            assert (short == 6).all()
    records = [each for each in comm.call_records()["records"] if each["count"] == 1 << 19]
    (folder / f"{comm.rank}.json").write_text(json.dumps({
        "chunks": chunks,
        "recorded": [r["chunk_bytes"] for r in records if r["operation"] == "all_reduce"],
        "digest": first.tobytes().hex()[:64],
        "state": comm.explain("all_reduce", data.nbytes)["chunks"]["state"],
    }))
"""
LINKS = {
    "memory": [],
    "staged": ["SINGLE_COPY=off"],
    "network": ["LINKS=network", "NET=tcp"],
}


def ranks(program: Program, folder: Path, links: list[str], adapt: str) -> list[dict[str, Any]]:
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    folder = folder / adapt
    folder.mkdir()
    environment = dict(f"ROPEWALK_{each}".split("=", 1) for each in links)
    done = program(
        *("launch", "--ranks", str(RANKS), "--", sys.executable, str(script), str(folder), "40"),
        env={**environment, "ROPEWALK_ADAPT_CHUNKS": adapt},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


# Broadcasts whose roots take turns, and reduces along a chain.
ROOTED = """
import json, sys
from pathlib import Path
import numpy as np
import ropewalk

folder, calls = Path(sys.argv[1]), int(sys.argv[2])
with ropewalk.init() as comm:
    data = np.sin(np.arange(1 << 19) * (comm.rank + 1.7)).astype("float32")
    chunks = {}
    for n in range(calls):
        root = n % 2
        word = data.copy() if comm.rank == root else np.zeros_like(data)
        comm.broadcast(word, root=root)
        first = np.float32(np.sin(12345 * (root + 1.7)))
        assert word[12345] == first, f"broadcast {n} differs"
        most = data.copy()
        comm.reduce(most, op="max", root=1)
        if comm.rank == 1:
            right = max(np.float32(np.sin(12345 * (rank + 1.7))) for rank in range(comm.size))
            assert most[12345] == right, f"reduce {n} differs"
        for name, at in ((f"broadcast {root}", root), ("reduce", 1)):
            found = comm.explain(name.split()[0], data.nbytes, root=at)["chunks"]
            chunks.setdefault(name, []).append(found["bytes"])
    states = {
        name: comm.explain(name.split()[0], data.nbytes, root=at)["chunks"]["state"]
        for name, at in (("broadcast 0", 0), ("broadcast 1", 1), ("reduce", 1))
    }
    (folder / f"{comm.rank}.json").write_text(json.dumps({"chunks": chunks, "states": states}))
"""


def test_roots_decide_for_their_broadcasts(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(ROOTED)
    done = program(
        *("launch", "--ranks", str(RANKS), "--", sys.executable, str(script), str(tmp_path), "120"),
        env={
            "ROPEWALK_ADAPT_CHUNKS": "1",
            "ROPEWALK_SINGLE_COPY": "off",
            "ROPEWALK_ALGORITHM": "chain",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert found[0]["chunks"] == found[1]["chunks"] == found[2]["chunks"]
    for name in ("broadcast 0", "broadcast 1", "reduce"):
        assert len(set(found[0]["chunks"][name])) > 1, name
    deciding = {
        name: [r for r in range(RANKS) if found[r]["states"][name] != "follows"]
        for name in found[0]["states"]
    }
    # The farthest from the root of the reduce's chain.
    assert deciding == {"broadcast 0": [0], "broadcast 1": [1], "reduce": [0]}


@pytest.mark.thorough
@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS.keys())
def test_results_are_the_same_bits_while_chunks_change(
    program: Program, tmp_path: Path, links: list[str]
) -> None:
    fixed = ranks(program, tmp_path, links, "0")
    adapting = ranks(program, tmp_path, links, "1")
    for found in fixed:
        assert found["state"] == "fixed"
        assert len(set(found["chunks"])) == 1
        assert set(found["recorded"]) == {None}
    assert {found["digest"] for found in fixed + adapting} == {fixed[0]["digest"]}
    # The same chunk on all ranks in each call, and not always the same one.
    assert adapting[0]["chunks"] == adapting[1]["chunks"] == adapting[2]["chunks"]
    assert adapting[0]["recorded"] == adapting[1]["recorded"] == adapting[2]["recorded"]
    assert len(set(adapting[0]["chunks"])) > 1
    assert len(set(adapting[0]["recorded"])) > 1
    assert [found["state"] for found in adapting[1:]] == ["follows", "follows"]
