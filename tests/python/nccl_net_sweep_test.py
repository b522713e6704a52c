"""benchmarks/nccl_net/sweep: cases, figures out of logs, gains; by a stand-in for the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "benchmarks" / "nccl_net" / "sweep"

# What nccl-tests prints, with NCCL's own lines around and between.
NCCL_LOG = """
host:1:1 [0] NCCL INFO NCCL version 2.28.3+cuda13.0
host:1:1 [0] NCCL INFO Using network Ropewalk
# nThread 1 nGpus 1 minBytes 8 maxBytes 4096 step: 16(factor) warmup iters: 5 iters: 20
host:1:1 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels
#                                          out-of-place                    in-place
# size count  type redop root  time  algbw busbw #wrong  time  algbw  busbw  #wrong
#  (B) (elements)              (us) (GB/s) (GB/s)        (us) (GB/s) (GB/s)
     8     2 float   sum   -1 25.00   0.00  0.00      0 24.00   0.00   0.00       0
  4096  1024 float   sum   -1 50.00   0.08  0.08      2 49.00   0.08   0.08       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.1
"""

# PSM2 is faster than TCP, and with separate endpoints fastest; another network does not start.
BENCH = """#!/usr/bin/env python3
import os, sys
net = os.environ["ROPEWALK_NET"]
if net == "ofi":
    sys.exit("no device of ofi")
assert os.environ["ROPEWALK_LINKS"] == "network"
hosts = int(sys.argv[sys.argv.index("--ranks") + 1])
time = {"tcp": 100.0, "psm2": 80.0}[net]
if os.environ.get("ROPEWALK_PSM2_ENDPOINTS") == "separate":
    time -= 30
print(f"rank 0 of {hosts} joined: {hosts} host(s) joined by {net}", file=sys.stderr)
print("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
for size in (8, 1024):
    print(size, size // 4, "float sum -1", time * hosts, "1.0", f"{1000 / time:.2f}", "0 9 9 9 0")
"""


def sweep(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SWEEP), *arguments],
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "ropewalk"
    path.write_text(BENCH)
    path.chmod(0o755)
    return str(path)


def rows(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    return {
        (row["hosts"], row["size"]): row["cases"] for row in json.loads(path.read_text())["rows"]
    }


def test_settings_are_compared_with_the_first_case(tmp_path: Path, program: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "sweep.json"
    picture = tmp_path / "sweep.svg"
    done = sweep(
        "--ropewalk", program, "--hosts", "2,4", "--rounds", "2", "--beside", "psm2",
        "--case", "sockets: NET=tcp", "--case", "psm2: NET=psm2",
        "--case", "separate: NET=psm2 PSM2_ENDPOINTS=separate",
        "--json", str(out), "--plot", str(picture), "--logs", str(tmp_path / "logs"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = rows(out)
    assert list(found) == [(2, 8), (2, 1024), (4, 8), (4, 1024)]
    cases = found[4, 1024]
    assert cases["sockets"]["time_us"] == 400
    assert cases["psm2"]["gain_percent"] == pytest.approx(25)
    assert cases["separate"]["gain_percent"] == pytest.approx(100)
    assert cases["separate"]["rounds"] == 2
    assert "+25%" in done.stdout and "+100%" in done.stdout and "published" in done.stdout
    assert "all_reduce, 4 hosts" in done.stdout
    assert "# psm2: network psm2" in done.stdout
    assert "+100%" in picture.read_text() or "<svg" in picture.read_text()
    assert len(list((tmp_path / "logs").iterdir())) == 2 * 2 * 3


def test_combinations_and_a_case_that_fails(tmp_path: Path, program: str) -> None:
    out = tmp_path / "sweep.json"
    done = sweep(
        "--ropewalk", program, "--rounds", "2", "--json", str(out),
        "--vary", "NET=tcp|psm2|ofi", "--vary", "PSM2_ENDPOINTS=shared|separate",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.count("no device of ofi") == 2  # once for each case, not for each round
    names = json.loads(out.read_text())["cases"]
    assert len(names) == 6 and names[0] == "NET=tcp PSM2_ENDPOINTS=shared"
    cases = rows(out)[2, 8]
    assert cases["NET=psm2 PSM2_ENDPOINTS=separate"]["gain_percent"] == pytest.approx(100)
    assert "NET=ofi PSM2_ENDPOINTS=shared" not in cases


def test_figures_are_read_out_of_a_job_s_log(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(NCCL_LOG)
    (tmp_path / "two.log").write_text(
        NCCL_LOG.replace(" 50.00 ", " 25.00 ").replace("Ropewalk", "Socket")
    )
    out = tmp_path / "sweep.json"
    done = sweep(
        "--read", f"ours={tmp_path}/one.log", "--read", f"sockets={tmp_path}/two.log",
        "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 1  # two elements are wrong
    assert "all_reduce of 4096 bytes, 2 hosts, ours: 2 wrong" in done.stdout
    assert "# ours: channels 4, network Ropewalk, version 2.28.3+cuda13.0" in done.stdout
    cases = rows(out)[2, 4096]
    assert cases["ours"]["time_us"] == 50 and cases["ours"]["busbw_GBs"] == 0.08
    assert cases["sockets"]["gain_percent"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--vary", "net=tcp"], "net=tcp: not NAME=VALUE"),
        (["--case", "no colon"], "not LABEL: NAME=VALUE"),
        (["--case", "a: NET=tcp", "--case", "a: NET=shm"], "a: named twice"),
        (["--read", "nothing"], "not LABEL=FILE"),
        (["--read", "a=/nonexistent"], "No such file"),
        (["--read", "a=/dev/null"], "no table of nccl-tests or ropewalk bench"),
        (["--hosts", "two", "--ropewalk", "/bin/true"], "invalid literal"),
        (["--set", "NET", "--ropewalk", "/bin/true"], "NET: not NAME=VALUE"),
    ],
)
def test_nonsense_is_told(arguments: list[str], told: str) -> None:
    done = sweep(*arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
