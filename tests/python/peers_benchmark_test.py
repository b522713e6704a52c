"""benchmarks/peers: what is asked of the libraries, read from them, and aimed at; MPI's programs in
place, where an MPI is installed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "peers"
MODULES = ("libraries", "limits", "machine", "ranks", "report", "results")
IN_PLACE = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, ModuleType]]:
    """The benchmark's modules; their names are too common to stay."""
    folders = [str(PEERS), str(PEERS.parent)]
    sys.path[:0] = folders
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        del sys.path[: len(folders)]
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def loop(libraries: ModuleType, operation: str, *, in_place: bool) -> Any:
    plans = (libraries.SizePlan(1024, 2, 20),)
    return libraries.Loop(operation, plans, False, "mean", 0.1, 64 << 20, in_place)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PEERS / "run"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


# ---- Ropewalk's figures


def bench_document() -> dict[str, Any]:
    """As `ropewalk bench -J` writes it."""
    result = {
        "size": 1024,
        "out_of_place": {"time": 2.5, "nwrong": "0"},
        "in_place": {"time": 1.5, "nwrong": "3"},
    }
    return {"results": [result], "buffers": {"region_bytes": 64 << 20}}


@pytest.mark.parametrize(
    "operation, in_place, time_us, wrong",
    [
        ("all_reduce", False, 2.5, 0),
        ("all_reduce", True, 1.5, 3),
        ("broadcast", False, 1.5, 3),
        ("broadcast", True, 1.5, 3),
    ],
)
def test_the_column_is_that_of_the_form(
    peers: dict[str, ModuleType], operation: str, in_place: bool, time_us: float, wrong: int
) -> None:
    libraries = peers["libraries"]
    timed = loop(libraries, operation, in_place=in_place)
    rows = libraries.rows_of_bench(bench_document(), timed, 20)
    assert rows == [{"size": 1024, "iterations": 20, "avg_us": time_us, "wrong": wrong}]


def test_buffers_that_do_not_move_are_refused(peers: dict[str, ModuleType]) -> None:
    document = bench_document() | {"buffers": {"region_bytes": 0}}
    libraries = peers["libraries"]
    with pytest.raises(peers["machine"].LaunchError, match="0 bytes, not 67108864"):
        libraries.rows_of_bench(document, loop(libraries, "reduce", in_place=True), 20)


# ---- the command line


def test_operations_without_an_in_place_form_are_refused() -> None:
    done = run("--in-place", "--operations", "all_reduce,sendrecv")
    assert done.returncode == 2
    assert "--in-place: sendrecv has no such form" in done.stderr


# ---- who takes part


def test_peers_that_cannot_say_why(peers: dict[str, ModuleType], tmp_path: Path) -> None:
    libraries = peers["libraries"]
    every = libraries.Libraries(tmp_path, tmp_path, sys.executable)
    shared = libraries.Scenario(2, "shm", (0, 1))
    gathers = loop(libraries, "gather", in_place=True)
    assert every.obstacle("gloo", shared, gathers) == "PyTorch has no gather in place"
    assert every.obstacle("openmpi", shared, gathers) == ""
    assert every.obstacle("gloo", shared, loop(libraries, "reduce", in_place=True)) == ""
    assert every.obstacle("gloo", shared, loop(libraries, "gather", in_place=False)) == ""
    mixed = libraries.Scenario(4, "mixed", (0, 1))
    apart = loop(libraries, "gather", in_place=False)
    assert every.obstacle("gloo", mixed, apart) == "has TCP alone"
    assert "UCX" in every.obstacle("ucc", mixed, apart)
    assert every.obstacle("ropewalk", mixed, apart) == ""


def test_ranks_of_mixed_links_are_on_the_same_hosts_everywhere(
    peers: dict[str, ModuleType],
) -> None:
    libraries = peers["libraries"]
    mixed = libraries.Scenario(4, "mixed", (0, 1))
    assert [mixed.host_of(rank) for rank in range(4)] == ["near", "near", "far", "far"]
    for library, option in (("openmpi", "--host"), ("mpich", "-hosts")):
        for setting in libraries.settings_of(library, mixed):
            at = setting.launcher.index(option)
            assert setting.launcher[at + 1] == "near:2,far:2"
            assert str(PEERS / "other_host") in setting.launcher


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_another_host_has_another_name() -> None:
    done = subprocess.run(
        [str(PEERS / "other_host"), "-x", "far", "uname", "-n;", "exit", "7"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unshare: unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.stdout, done.returncode) == ("far\n", 7)


def test_over_libfabric_the_own_sockets_are_a_peer(peers: dict[str, ModuleType]) -> None:
    libraries = peers["libraries"]
    over = libraries.Scenario(2, "ofi", (0, 1))

    def transports(library: str) -> dict[str, str]:
        (setting,) = libraries.settings_of(library, over)
        return {key: setting.environment.get(key, "") for key in ("ROPEWALK_NET", "ROPEWALK_LINKS")}

    assert transports("ropewalk") == {"ROPEWALK_NET": "ofi", "ROPEWALK_LINKS": "network"}
    assert transports("own_tcp") == {"ROPEWALK_NET": "tcp", "ROPEWALK_LINKS": "network"}
    # It is faster than MPICH's 10 us, so that the aims are its.
    whole = document("2-ofi", 2, 9.0, over_ranks="max")
    of_tcp = [row | {"library": "own_tcp"} for row in whole["results"] if row["library"] == "mpich"]
    for row in of_tcp:
        row["times_us"] = [8.0]
    results = peers["results"].Results(whole | {"results": [*whole["results"], *of_tcp]})
    misses, checked = peers["report"].check(results)
    assert (len(misses), checked) == (2, 3), misses
    assert all("of own tcp (default) 8 us, target 1" in miss for miss in misses), misses
    assert "own tcp" in peers["report"].table(results)


def test_own_sockets_are_measured_beside_libfabric_alone(
    tmp_path: Path,
) -> None:
    """Without MPIs, with a program in Ropewalk's place that says how it was called."""
    said = tmp_path / "said"
    program = tmp_path / "ropewalk"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "if sys.argv[1] == 'bench':\n"
        f"    print(os.environ['ROPEWALK_NET'], file=open({str(said)!r}, 'a'))\n"
        "    row = {'time': 1.0, 'nwrong': '0'}\n"
        "    row = {'size': 65536, 'out_of_place': row, 'in_place': row}\n"
        "    whole = {'results': [row], 'buffers': {'region_bytes': 64 << 20}}\n"
        "    json.dump(whole, open(sys.argv[sys.argv.index('-J') + 1], 'w'))\n"
    )
    program.chmod(0o755)
    common = ["--ropewalk", str(program), "--operations", "reduce,gather,scatter", "--rounds", "1"]
    common += ["-b", "64K", "-e", "64K", "--build", str(tmp_path), "--settings", "first"]
    for scenario, networks in (("2-tcp", ["tcp"] * 3), ("2-ofi", ["ofi"] * 3 + ["tcp"] * 3)):
        said.write_text("")
        done = run(*common, "--only", "own_tcp,ropewalk", "--scenarios", scenario)
        if done.returncode == 2:
            pytest.skip(done.stderr.strip())
        assert sorted(said.read_text().split()) == networks, done.stderr + done.stdout
        assert ("    own tcp" in done.stdout) == (scenario == "2-ofi")


# ---- the table and the aims


def document(scenario: str, cores: int, own_us: float, **facts: object) -> dict[str, Any]:
    """All-reduces of 8 bytes and 64 KiB: those of MPICH take 10 us."""
    ranks, medium = scenario.split("-")
    curve = [{"size": 4096, "gb_per_s": 10.0}]
    rows = [
        {
            "scenario": scenario,
            "operation": operation,
            "library": library,
            "setting": "default",
            "size": size,
            "iterations": [5],
            "times_us": [time_us],
            "wrong": 0,
        }
        for operation, size in (("all_reduce", 8), ("all_reduce", 64 << 10), ("gather", 64 << 10))
        for library, time_us in (("mpich", 10.0), ("ropewalk", own_us))
    ]
    return {
        "command": "",
        "commit": "",
        "start": "",
        "end": "",
        "load_average": [0.0, 0.0],
        "machine": {"processor": "A CPU", "kernel": "6"},
        "versions": {},
        "facts": {},
        "limits": {
            "line_one_way_ns": 50,
            "line_stream_ns": 2,
            "switch_ns": 1000,
            "copy": curve,
            "read": curve,
            "single_copy": True,
        },
        "blocking": False,
        "rounds": 1,
        "scenarios": {
            scenario: {
                "title": scenario,
                "ranks": int(ranks),
                "medium": medium,
                "cpus": list(range(cores)),
            }
        },
        "failures": [],
        "results": rows,
        **facts,
    }


@pytest.mark.parametrize(
    "scenario, cores, over_ranks, aims",
    [
        ("2-shm", 2, "mean", [0.9, 0.7, 0.9]),
        ("2-shm", 2, "max", [0.9, 0.7, 0.9]),
        ("4-shm", 4, "mean", [0.9, 0.7, 0.9]),
        ("4-shm", 2, "mean", [1.1, 1.1, 1.1]),
        ("2-tcp", 2, "max", [1.1, 1.1, 1.1]),
        ("4-mixed", 2, "max", [1.1, 1.1, 1.1]),
        ("4-tcp", 2, "mean", []),
        ("2-ofi", 2, "max", [1.2, 1.0, 1.0]),
        ("4-ofi", 2, "mean", []),
    ],
)
def test_aims(
    peers: dict[str, ModuleType], scenario: str, cores: int, over_ranks: str, aims: list[float]
) -> None:
    for own_us, missed in ((6.9, 0), (8.0, aims.count(0.7)), (12.5, len(aims))):
        whole = document(scenario, cores, own_us, over_ranks=over_ranks)
        results = peers["results"].Results(whole)
        misses, checked = peers["report"].check(results)
        assert (len(misses), checked) == (missed, len(aims)), misses
        for aim in set(aims) if missed == len(aims) else ():
            assert sum(line.endswith(f"target {aim:g}") for line in misses) == aims.count(aim)


def test_the_table_tells_the_form_and_who_is_left_out(peers: dict[str, ModuleType]) -> None:
    def shown(**facts: object) -> str:
        whole = document("2-shm", 2, 5.0, **facts)
        return str(peers["report"].table(peers["results"].Results(whole)))

    separate = shown()
    assert "# Out of place where the library has that form" in separate
    assert "\nN/A: " not in separate
    together = shown(in_place=True, obstacles=["Gloo, 2-shm: PyTorch has no gather in place"])
    assert "# In place: one buffer for input and output" in together
    assert "\nN/A: Gloo, 2-shm: PyTorch has no gather in place\n" in together


def test_what_is_in_place_need_not_be_copied(peers: dict[str, ModuleType]) -> None:
    touched = peers["limits"].bytes_touched
    for operation, apart, together in (
        ("all_gather", (4096, 1024), (3072, 1024)),
        ("gather", (1024, 1024), (768, 768)),
        ("scatter", (1024, 1024), (768, 768)),
        ("all_reduce", (4096, 4096), (4096, 4096)),
        ("reduce_scatter", (1024, 4096), (1024, 4096)),
    ):
        assert touched(operation, 4, 1024, False) == apart, operation
        assert touched(operation, 4, 1024, True) == together, operation


def test_both_forms_do_not_become_one_run(tmp_path: Path) -> None:
    files = [tmp_path / "apart.json", tmp_path / "together.json"]
    for file, in_place in zip(files, (False, True)):
        file.write_text(json.dumps(document("2-shm", 2, 5.0, in_place=in_place)))
    done = run("--from", *map(str, files))
    assert done.returncode == 2
    assert "in_place differs" in done.stderr


# ---- MPI's programs


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_operations_in_place_under_mpi(mpi: str, tmp_path: Path) -> None:
    compiler, launcher = shutil.which(f"mpicc.{mpi}"), shutil.which(f"mpirun.{mpi}")
    if compiler is None or launcher is None:
        pytest.skip(f"no {mpi}")
    program = str(tmp_path / "mpi_bench")
    source = str(PEERS / "mpi_bench.c")
    subprocess.run([compiler, "-std=c11", source, "-o", program], check=True, timeout=120)
    options = ["--oversubscribe", "--bind-to", "none"] if mpi == "openmpi" else []
    # 96 bytes move through 1 KiB; 48 KiB are one place.
    wanted = ["-", "0", "0.1", "1024", "1", "96:2:4", "49152:2:2"]
    for operation in IN_PLACE:
        done = subprocess.run(
            [launcher, *options, "-n", "3", program, operation, *wanted],
            env=os.environ | AS_ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines() if '"size"' in line]
        assert [(row["size"], row["wrong"]) for row in rows] == [(96, 0), (49152, 0)], operation


# ---- the machine


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc/cpuinfo")
def test_heads_tell_processors_of_one_name_apart(peers: dict[str, ModuleType]) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    first = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines[:20])
    }
    facts = peers["machine"].describe()
    numbers = [first.get(key, "unknown") for key in ("cpu family", "model", "stepping")]
    assert facts["processor_numbers"] == "family {}, model {}, stepping {}".format(*numbers)
    assert re.fullmatch(r"unknown|L1d? \d+[KM](, L\d[di]? \d+[KM])*", facts["caches"])
