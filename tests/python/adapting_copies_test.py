"""One copy or two (setting ADAPT_COPIES) between processes: right results while forms change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from thorough import thorough_but

# Every operation, in the same buffers and in ever other ones, by ranks that come late now and then.
SCRIPT = """
import json, sys, time
from pathlib import Path
import numpy as np
import ropewalk

folder, calls = Path(sys.argv[1]), int(sys.argv[2])
COUNT = 1 << 17
with ropewalk.init() as comm:
    ranks, rank = comm.size, comm.rank
    dice = np.random.default_rng(rank)
    def values(of):
        # Sums depend on the order of additions.
        return np.sin(np.arange(COUNT * ranks) * (of + 1.7)).astype("float32") * 1000
    every = [values(of) for of in range(ranks)]
    pool = np.zeros((24, COUNT * ranks), dtype="float32")
    short, long = every[rank][:COUNT], every[rank]
    together = np.concatenate([each[:COUNT] for each in every])
    mine = slice(rank * COUNT, (rank + 1) * COUNT)
    before = (rank - 1) % ranks
    operations = {
        "all_reduce": (lambda out: comm.all_reduce(short, out=out), COUNT, None, 0),
        "reduce_scatter": (lambda out: comm.reduce_scatter(long, out=out), COUNT, None, 0),
        "all_gather": (lambda out: comm.all_gather(short, out=out), COUNT * ranks, together, 0),
        "all_to_all": (
            lambda out: comm.all_to_all(long, out=out),
            COUNT * ranks,
            np.concatenate([each[mine] for each in every]),
            0,
        ),
        "scatter": (
            lambda out: comm.scatter(long if rank == 1 else None, root=1, out=out),
            COUNT,
            every[1][mine],
            1,
        ),
        "broadcast": (lambda out: comm.broadcast(out, root=1), COUNT, every[1][:COUNT], 1),
        "gather": (
            lambda out: comm.gather(short, root=0, out=out if rank == 0 else None),
            COUNT * ranks,
            together if rank == 0 else None,
            0,
        ),
        "sendrecv": (
            lambda out: comm.sendrecv(short, out),
            COUNT,
            every[before][:COUNT],
            0,
        ),
    }
    report = {}
    for name, (call, count, right, root) in operations.items():
        size = 4 * (COUNT if name in ("all_reduce", "sendrecv", "broadcast") else COUNT * ranks)
        forms, algorithms, results = [], [], set()
        for n in range(calls):
            if n % 9 == rank:
                time.sleep(dice.uniform(0, 0.002))
            # Half of the calls in the same output, half in ever other ones.
            out = pool[0 if n < calls // 2 else n % len(pool)][:count]
            out[:] = short if name == "broadcast" else -1
            call(out)
            if right is not None:
                assert (out == right).all(), f"{name}, call {n} differs"
            results.add(out.tobytes()[:256] if right is None else b"")
            found = comm.explain(name, size, root=root)["copies"]
            forms.append(None if found is None else found["by_address"])
            algorithms.append(None if found is None else found["algorithm"])
        assert len(results) == 1, f"{name} has other bits"
        bits = results.pop().hex()
        report[name] = {"forms": forms, "algorithms": algorithms, "found": found, "bits": bits}
    (folder / f"{rank}.json").write_text(json.dumps(report))
"""


def ranks(program: Program, folder: Path, number: int, adapt: str) -> list[dict[str, Any]]:
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    folder = folder / adapt
    folder.mkdir()
    done = program(
        *("launch", "--ranks", str(number), "--"),
        *(sys.executable, str(script), str(folder), "70" if adapt == "1" else "2"),
        # Built-in constants: by those of a busy machine a ring may be chosen, which has one form.
        env={"ROPEWALK_ADAPT_COPIES": adapt, "ROPEWALK_TUNE": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(number)]


@pytest.mark.parametrize("number", thorough_but([2, 3], 2))
def test_results_are_the_same_bits_while_the_form_changes(
    program: Program, tmp_path: Path, number: int
) -> None:
    fixed = ranks(program, tmp_path, number, "0")
    adapting = ranks(program, tmp_path, number, "1")
    # Copies by address may not be permitted here.
    if adapting[0]["all_gather"]["found"] is None:
        pytest.skip("no calls by address on this system")
    for name in adapting[0]:
        assert {found[name]["forms"][0] for found in fixed} == {None}
        assert {found[name]["bits"] for found in adapting} == {fixed[0][name]["bits"]} or name in (
            "reduce_scatter",
            "gather",
        ), name
        forms = [found[name]["forms"] for found in adapting]
        assert all(each == forms[0] for each in forms), f"{name}: ranks differ"
        algorithms = [found[name]["algorithms"] for found in adapting]
        assert all(each == algorithms[0] for each in algorithms), f"{name}: ranks differ"
        if adapting[0][name]["found"] is None:
            continue
        tried = {form["algorithm"] for form in adapting[0][name]["found"]["forms"]}
        assert set(algorithms[0]) <= tried, name
        if name in ("all_reduce", "reduce_scatter"):
            assert len(tried) == 1, "sums depend on the algorithm"
    # Both forms were tried, by all ranks in the same calls, and one rank decided.
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        assert set(adapting[0][name]["forms"]) == {True, False}, name
        assert [found[name]["found"]["decides"] for found in adapting] == [True] + [False] * (
            number - 1
        )
    if number == 2:
        assert set(adapting[0]["sendrecv"]["forms"]) == {True, False}
    else:
        assert set(adapting[0]["sendrecv"]["forms"]) == {None}


# Of a root's calls, some hundreds are timed together. Blocks of 32 KiB are the shortest with forms,
# and the longest that ranks without the whole can receive in a short call.
LEAST = """
import json, sys
from pathlib import Path
import numpy as np
import ropewalk

with ropewalk.init() as comm:
    whole = np.arange(8192 * comm.size, dtype="float32")
    out = np.zeros(8192, dtype="float32")
    forms = set()
    for n in range(1500):
        out[0] = -1
        comm.scatter(whole if comm.rank == 1 else None, root=1, out=out)
        assert (out == whole[8192 * comm.rank : 8192 * (comm.rank + 1)]).all(), f"call {n} differs"
        found = comm.explain("scatter", whole.nbytes, root=1)["copies"] if n % 50 == 0 else None
        forms.add(None if found is None else found["by_address"])
    (Path(sys.argv[1]) / f"{comm.rank}.json").write_text(json.dumps(sorted(forms - {None})))
"""


def test_the_shortest_blocks_that_have_forms(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(LEAST)
    done = program("launch", "--ranks", "3", "--", sys.executable, str(script), str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    if found[0] == []:
        pytest.skip("no calls by address on this system")
    assert found == [[False, True]] * 3, "both forms were tried by all"


# Where data is only moved, other algorithms are tried, too: their links are made meanwhile.
ALGORITHMS = """
import json, sys
from pathlib import Path
import numpy as np
import ropewalk

COUNT = 32768
with ropewalk.init() as comm:
    rank = comm.rank
    pool = np.zeros((4, COUNT * comm.size), dtype="float32")
    seen = {}
    for name, calls in (("broadcast", 2400), ("all_gather", 1200)):
        size = 4 * COUNT * (1 if name == "broadcast" else comm.size)
        found, seen[name] = None, []
        for n in range(calls):
            out = pool[n % 4]
            if name == "broadcast":
                out[: COUNT] = n if rank == 2 else -1
                comm.broadcast(out[:COUNT], root=2)
                assert (out[:COUNT] == n).all(), f"call {n} differs"
            else:
                mine = np.full(COUNT, n + rank, dtype="float32")
                comm.all_gather(mine, out=out)
                assert (out.reshape(comm.size, -1) == n + np.arange(comm.size)[:, None]).all()
            if n % (20 if name == "broadcast" else 1) == 0:
                found = comm.explain(name, size, root=2 if name == "broadcast" else 0)["copies"]
                now = None if found is None else (found["algorithm"], found["by_address"])
                if now not in seen[name]:
                    seen[name].append(now)
        seen[name] = [seen[name], None if found is None else found["forms"]]
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(seen))
"""


def test_other_algorithms_are_tried(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(ALGORITHMS)
    done = program(
        *("launch", "--ranks", "4", "--", sys.executable, str(script), str(tmp_path)),
        env={"ROPEWALK_TUNE": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert all(each == found[0] for each in found), "ranks differ"
    for name, (seen, forms) in found[0].items():
        if forms is None:
            pytest.skip("no calls by address on this system")
        offered = [(form["algorithm"], form["by_address"]) for form in forms]
        assert len({algorithm for algorithm, _ in offered}) > 1, name
        assert sorted(map(tuple, seen)) == sorted(offered), f"{name}: all forms are tried"


def test_ranks_must_have_the_same_setting(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os\n"
        "os.environ['ROPEWALK_ADAPT_COPIES'] = os.environ['RANK']\n"
        "import ropewalk\n"
        "with ropewalk.init(): pass\n"
    )
    done = program("launch", "--ranks", "2", "--", sys.executable, str(script))
    assert done.returncode != 0
    assert "setting ADAPT_COPIES differs: rank" in done.stdout + done.stderr
