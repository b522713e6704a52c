"""doctor: what a machine has and lacks, crashes and hangs, rates that links should give."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_SECONDS, Program
from ropewalk import doctor, errors, topology
from running import unshare


def by_title(document: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        report["title"]: {check["what"]: check for check in report["checks"]}
        for report in document["paths"]
    }


def test_text_and_json(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = program("doctor", "-J", str(path))
    document = json.loads(path.read_text())
    failed = [
        check
        for report in document["paths"]
        for check in report["checks"]
        if check["outcome"] == "failed"
    ]
    assert done.returncode == (1 if failed else 0), done.stdout
    assert document["healthy"] == (not failed)
    paths = by_title(document)
    memory = paths["shared memory"]
    assert set(memory) == {
        "anonymous memory",
        "/dev/shm",
        "memory shared by two processes",
        "kernel-assisted copy",
        "open files",
    }
    assert memory["anonymous memory"]["outcome"] == "passed"
    shared = memory["memory shared by two processes"]
    assert shared["outcome"] == "passed"
    assert shared["gbps"] > 0
    assert shared["latency_us"] > 0
    loopback = paths["interface lo"]["messages"]
    assert loopback["outcome"] == "passed", loopback
    assert loopback["gbps"] > 0
    assert re.search(r"^# \d+ passed, \d+ degraded, \d+ failed, \d+ skipped$", done.stdout, re.M)
    again = program("doctor", "--json", "--only", "shared-memory")
    assert list(by_title(json.loads(again.stdout))) == ["shared memory"]


def in_namespace(script: str, *flags: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Runs `script`, then doctor, in new namespaces, which needs the right to make them."""
    command = f"{script} && exec {sys.executable} -m ropewalk doctor --json --only "
    kinds = "interfaces" if "--net" in flags else "shared-memory"
    done = subprocess.run(
        [*unshare(*flags), "sh", "-c", command + kinds],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    if not done.stdout:
        pytest.skip(f"the namespace could not be set up: {done.stderr}")
    return by_title(json.loads(done.stdout))


@pytest.mark.parametrize(("size", "outcome"), [("16m", "failed"), ("200m", "degraded")])
def test_a_small_dev_shm_is_found(size: str, outcome: str) -> None:
    script = f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm"
    check = in_namespace(script, "--mount")["shared memory"]["/dev/shm"]
    assert check["outcome"] == outcome
    assert f"{size[:-1]} MiB" in check["found"]
    assert "--shm-size" in check["cause"]


def test_a_dev_shm_for_one_user_is_found() -> None:
    script = "mount -t tmpfs -o size=2g,mode=700 tmpfs /dev/shm"
    check = in_namespace(script, "--mount")["shared memory"]["/dev/shm"]
    assert check["outcome"] == "degraded"
    assert "chmod 1777" in check["cause"]


def test_loopback_that_is_down_is_found() -> None:
    check = in_namespace("true", "--net")["interface lo"]["messages"]
    assert check["outcome"] == "failed"
    assert "ip link set lo up" in check["cause"]


def test_few_descriptors_are_found() -> None:
    command = f"ulimit -n 200; exec {sys.executable} -m ropewalk doctor --json --only shared-memory"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    check = by_title(json.loads(done.stdout))["shared memory"]["open files"]
    assert check["outcome"] == "degraded"
    assert "ulimit -n" in check["cause"]


BUILD = os.environ.get("RW_BUILD_DIR")


@pytest.mark.skipif(BUILD is None, reason="RW_BUILD_DIR names no build folder; `make test` does")
@pytest.mark.parametrize(
    ("settings", "what", "outcome", "words"),
    [
        # A link so slow that a busy machine fills it.
        ("adapters 2\nlink_width 1\nlink_generation 1\n", "adapter 1 (node ", "passed", "link up"),
        ("driver no\n", "library and driver", "failed", "modprobe"),
        ("adapters 0\n", "adapters", "failed", "lspci"),
        ("link_down 0 0\n", "adapter 0 (node ", "failed", "no cable"),
        ("iommu broken\n", "adapter 0 (node ", "degraded", "reports success but moves no data"),
        ("iommu absent\n", "adapter 0 (node ", "degraded", "without an IOMMU"),
        ("lose_all_transfers yes\n", "adapter 0 (node ", "degraded", "moved no data"),
        ("max_dma_queues 1\n", "adapter 0 (node ", "degraded", "1 of 4 DMA queues"),
        ("megabytes_per_second 100\n", "adapter 0 (node ", "degraded", "1% of what the link"),
        ("max_segments 1\n", "adapter 0 (node ", "failed", "no segment for a window"),
    ],
)
def test_pcie_bridges(
    program: Program, tmp_path: Path, settings: str, what: str, outcome: str, words: str
) -> None:
    path = tmp_path / "sisci.txt"
    path.write_text(settings)
    environment = {
        "ROPEWALK_SISCI_LIBRARY": str(Path(BUILD or "", "sisci", "libsisci.so").resolve()),
        "SOFTWARE_SISCI_SETTINGS": str(path),
    }
    done = program("doctor", "--only", "sisci", "--json", env=environment)
    checks = by_title(json.loads(done.stdout))["PCIe bridges (SISCI)"]
    (check,) = [each for name, each in checks.items() if name.startswith(what)]
    assert check["outcome"] == outcome, check
    assert words in check["found"] + check["cause"]
    assert done.returncode == (1 if outcome == "failed" else 0)


def test_a_file_that_is_no_library(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "libsisci.so"
    path.write_text("nothing of the kind")
    done = program("doctor", "--only", "sisci", env={"ROPEWALK_SISCI_LIBRARY": str(path)})
    assert done.returncode == 1
    assert "SISCI_LIBRARY" in done.stdout


def test_trials_can_be_logged(program: Program) -> None:
    sisci = str(Path(BUILD or "", "sisci", "libsisci.so").resolve())
    environment = {"ROPEWALK_SISCI_LIBRARY": sisci, "ROPEWALK_DEBUG": "INFO"}
    environment["ROPEWALK_DEBUG_SUBSYS"] = "NET"
    done = program("doctor", "--only", "sisci", env=environment)
    assert done.returncode == 0
    assert "ROPEWALK INFO sisci: adapter 0" in done.stderr


def test_no_pcie_bridges_are_no_failure(program: Program) -> None:
    environment = {"ROPEWALK_SISCI_LIBRARY": "/nonexistent/libsisci.so"}
    done = program("doctor", "--only", "sisci", env=environment)
    assert done.returncode == 0
    assert "skipped   library and driver: /nonexistent/libsisci.so" in done.stdout


@pytest.mark.skipif(not find_library("psm2"), reason="libpsm2 is not installed")
def test_psm2_over_its_shared_memory(program: Program) -> None:
    done = program("doctor", "--only", "fabrics", env={"ROPEWALK_PSM2_DEVICE": "shm"})
    assert "passed    psm2 on psm2_shm" in done.stdout, done.stdout
    words = "skipped   GPU memory on psm2_shm: not taken: this libpsm2 was built without CUDA"
    assert words in done.stdout, done.stdout


# By stand-ins for libpsm2 and CUDA.
@pytest.mark.skipif(not find_library("psm2"), reason="libpsm2 is not installed")
@pytest.mark.parametrize("like", ["cuda", "cuda,damage_to=1"])
def test_gpu_memory_over_psm2(program: Program, like: str) -> None:
    stand_ins = Path(BUILD or "", "tests").resolve()
    environment = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PSM2_CUDA": "1",
        "ROPEWALK_PSM2_DEVICE": "shm",
        "ROPEWALK_PSM2_LIBRARY": str(stand_ins / "libadapter_libpsm2.so"),
        "ROPEWALK_CUDA_LIBRARY": str(stand_ins / "libstand_in_cuda.so"),
        "RW_ADAPTER_LIBPSM2": like,
    }
    for library in (environment["ROPEWALK_PSM2_LIBRARY"], environment["ROPEWALK_CUDA_LIBRARY"]):
        if not Path(library).exists():
            pytest.skip(f"there is no {library}")
    done = program("doctor", "--only", "fabrics", env=environment)
    if like == "cuda":
        words = "passed    GPU memory on psm2_shm: GPU 0 (Stand-in 0): by GDRCopy; GPU 1"
    else:
        words = "failed    GPU memory on psm2_shm: GPU 0: memory of GPU 0 (Stand-in 0) does"
    assert words in done.stdout, done.stdout
    assert ("PSM2_GPUDIRECT=1" in done.stdout) == (like != "cuda")


def test_a_missing_libpsm2_that_is_asked_for(program: Program) -> None:
    environment = {"ROPEWALK_PSM2_DEVICE": "shm", "ROPEWALK_PSM2_LIBRARY": "/nonexistent/psm2.so"}
    done = program("doctor", "--only", "fabrics", env=environment)
    assert done.returncode == 1
    assert "failed    library and adapters: /nonexistent/psm2.so" in done.stdout, done.stdout


# One that every libfabric has.
SOCKETS = {"ROPEWALK_OFI_PROVIDER": "tcp;ofi_rxm", "ROPEWALK_SOCKET_IFNAME": "=lo"}


def checks_of(
    program: Program, kinds: str, title: str, environment: dict[str, str], returncode: int = 0
) -> list[dict[str, Any]]:
    done = program("doctor", "--only", kinds, "--json", env=environment)
    assert done.returncode == returncode, done.stdout + done.stderr
    (found,) = [
        report["checks"] for report in json.loads(done.stdout)["paths"] if report["title"] == title
    ]
    return list(found)


def fabrics(
    program: Program, environment: dict[str, str], returncode: int = 0
) -> list[dict[str, Any]]:
    checks = checks_of(program, "fabrics", "fabrics (libfabric)", environment, returncode)
    if "this build has no transport ofi" in checks[0]["found"]:
        pytest.skip("this build has no transport ofi")
    return checks


@pytest.mark.skipif(not find_library("fabric"), reason="libfabric is not installed")
def test_libfabric_over_sockets(program: Program) -> None:
    library, locked, messages, gpus = fabrics(program, SOCKETS)
    assert library["outcome"] == "passed", library
    assert re.match(r"libfabric\S* \d+\.\d+.*, tcp;ofi_rxm; long messages by ", library["found"])
    assert locked["what"] == "locked memory"
    assert messages["what"] == "tcp;ofi_rxm on lo"
    assert messages["outcome"] == "passed", messages
    assert messages["gbps"] > 0
    assert messages["latency_us"] > 0
    assert gpus["outcome"] in ("skipped", "passed"), gpus


@pytest.mark.skipif(not find_library("fabric"), reason="libfabric is not installed")
def test_a_provider_that_libfabric_does_not_have(program: Program) -> None:
    (library,) = fabrics(program, {**SOCKETS, "ROPEWALK_OFI_PROVIDER": "no;such"}, 1)
    assert library["outcome"] == "failed"
    assert "provider no;such: fi_getinfo" in library["found"]
    assert "OFI_PROVIDER" in library["cause"]


def test_no_libfabric_is_no_failure_and_another_library_is(
    program: Program, tmp_path: Path
) -> None:
    absent = {**SOCKETS, "ROPEWALK_OFI_LIBRARY": "/nonexistent/libfabric.so"}
    (library,) = fabrics(program, absent)
    assert library["outcome"] == "skipped"
    assert "/nonexistent/libfabric.so" in library["found"]
    (tmp_path / "libfabric.so").write_text("nothing of the kind")
    other = {**SOCKETS, "ROPEWALK_OFI_LIBRARY": str(tmp_path / "libfabric.so")}
    (library,) = fabrics(program, other, 1)
    assert library["outcome"] == "failed"
    assert "OFI_LIBRARY" in library["cause"]


STRICT = Path(BUILD or "", "tests", "libstrict_libfabric.so").resolve()


@pytest.mark.skipif(not STRICT.exists(), reason="this build has no stand-in for libfabric")
def test_nics_say_where_and_how_fast_they_are(program: Program) -> None:
    addresses = sorted(path.name for path in Path("/sys/bus/pci/devices").glob("*"))
    if len(addresses) < 2:
        pytest.skip("this machine has no two PCI devices to name")
    nics = {"fast0": (addresses[0], 200), "fast1": (addresses[1], 100)}
    listed = [
        f"nic={name}/{pci}/{gbits}/0c:42:a1:00:00:{gbits:02x}"
        for name, (pci, gbits) in nics.items()
    ]
    environment = {
        **SOCKETS,
        "ROPEWALK_OFI_LIBRARY": str(STRICT),
        "RW_STRICT_LIBFABRIC": ",".join(["local,virtual,provider_key,endpoint", *listed]),
    }
    # A NIC also needs a limit of locked memory, which may be too small here.
    done = program("doctor", "--only", "fabrics", "--json", env=environment)
    checks = by_title(json.loads(done.stdout))["fabrics (libfabric)"]
    for name, (pci, gbits) in nics.items():
        check = checks[f"tcp;ofi_rxm on {name}"]
        assert check["outcome"] == "passed", check
        guid = f"GUID 0c42a10000{gbits:02x}"
        assert check["found"].startswith(f"{gbits} Gbit/s, PCI {pci}, {guid}; "), check


@pytest.mark.skipif(not STRICT.exists(), reason="this build has no stand-in for libfabric")
def test_a_provider_that_demands_what_is_not_offered(program: Program) -> None:
    environment = {**SOCKETS, "ROPEWALK_OFI_LIBRARY": str(STRICT), "RW_STRICT_LIBFABRIC": "raw"}
    (library,) = fabrics(program, environment, 1)
    assert library["outcome"] == "failed"
    assert "tcp;ofi_rxm demands FI_MR_RAW" in library["found"], library


RAILS = "rails (setting RAILS)"


def test_rails_are_tried_together_and_each(program: Program) -> None:
    environment = {"ROPEWALK_RAILS": "tcp:lo,shm", "ROPEWALK_SOCKET_IFNAME": "=lo"}
    messages, *each = checks_of(program, "interfaces", RAILS, environment)
    assert messages["outcome"] == "passed", messages
    assert messages["found"].startswith("rails:lo+")
    assert messages["gbps"] > 0
    assert [check["outcome"] for check in each] == ["passed"] * 2, each
    assert {check["what"].split()[0] for check in each} == {"tcp", "shm"}
    assert {check["found"] for check in each} == {"connected and verified"}


def test_a_device_of_rails_that_there_is_not(program: Program) -> None:
    environment = {"ROPEWALK_RAILS": "tcp:lo,tcp:none", "ROPEWALK_SOCKET_IFNAME": "=lo"}
    (check,) = checks_of(program, "interfaces", RAILS, environment, 1)
    assert check["outcome"] == "failed"
    assert check["found"] == "RAILS: tcp has no device none (it has: lo)"
    assert "RAILS" in check["cause"]


def test_a_rail_that_carries_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to an interface's own address goes over loopback, which is down."""
    monkeypatch.setenv("ROPEWALK_RAILS", "shm,tcp")
    add = "ip link add d0 type veth peer name d1 && ip link set d1 up"
    add += " && ip addr add 10.9.9.1/24 dev d0 && ip link set d0 up"
    checks = in_namespace(add, "--net")[RAILS]
    assert checks["tcp d0"]["outcome"] == "degraded", checks
    assert checks["tcp d0"]["found"].startswith("no rail: "), checks
    assert "the others carry" in checks["tcp d0"]["cause"]
    (carries,) = [check for name, check in checks.items() if name.startswith("shm")]
    assert carries["outcome"] == "passed", checks


CHILD = """
import json, os, signal, sys, time
for request in json.load(sys.stdin):
    name = request.get("name")
    if request["path"] == "list":
        names = ["lo", "hangs", "crashes", "errs", "slow", "fine"]
        gpus = [{"device": 0, "name": "one", "bus_id": "0000:13:00.0"},
                {"device": 1, "name": "two", "bus_id": "00000000:14:00.0"}]
        print(json.dumps({"interfaces": names, "gpus": gpus, "why_no_gpu": ""}), flush=True)
        continue
    if name == "hangs":
        time.sleep(1000)
    if name == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "errs":
        print(json.dumps({"error": "no such luck"}), flush=True)
        continue
    what = {"gpu": "host to GPU", "gpu-pair": "copy from GPU 0 to GPU 1"}.get(request["path"], "it")
    check = {"what": what, "outcome": "passed", "found": "works", "cause": "",
             "gbps": 10.0, "latency_us": 1.0}
    print(json.dumps({"checks": [check]}), flush=True)
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CHILD", (sys.executable, "-c", CHILD))


@pytest.mark.usefixtures("stand_in")
def test_crashes_and_hangs_fail_their_path_alone() -> None:
    found = {report.title: report.checks[0] for report in doctor.examine(["interfaces"], timeout=2)}
    assert [check.outcome for check in found.values()] == [
        "passed", "failed", "failed", "failed", "passed", "passed", "passed",
    ]  # fmt: skip
    assert "hung" in found["interface hangs"].found
    assert "SIGSEGV" in found["interface crashes"].found
    assert found["interface errs"].found == "no such luck"


@pytest.mark.usefixtures("stand_in")
def test_links_that_give_too_little_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = topology.synthetic("dgx1v")
    text = machine.to_json()
    for node, bus in zip(machine.gpus, ("0000:13:00.0", "0000:14:00.0")):
        text = re.sub(
            rf'("id": "{node.id}",)(?![^\n]*"bus_id")', rf'\1 "bus_id": "{bus}",', text, count=1
        )
        if f'"bus_id": "{bus}"' not in text:
            pytest.skip("the machine names its own addresses")
    named = topology.Topology.from_json(text)
    monkeypatch.setattr(doctor, "discover", lambda: named)
    expected = doctor.pair_gbps(named, machine.gpus[0].id, machine.gpus[1].id)
    assert expected is not None

    def outcome(share: float) -> str:
        reports = {report.path: report for report in doctor.examine(["gpus"], share=share)}
        (check,) = reports["gpu-pair"].checks
        assert check.expected_gbps == expected
        return check.outcome

    assert outcome(10 / expected * 0.99) == "passed"
    assert outcome(min(1, 10 / expected * 1.01)) == ("failed" if expected > 10 else "passed")


@pytest.mark.parametrize(
    ("machine", "low", "high"),
    [
        ("dgx-h100", 300, 460),  # 18 NVLinks of generation 4, by switches
        ("dgx1v", 20, 30),  # one NVLink of generation 2 between GPU 0 and GPU 1
    ],
)
def test_expected_rates_of_two_gpus(machine: str, low: float, high: float) -> None:
    graph = topology.synthetic(machine)
    gbps = doctor.pair_gbps(graph, graph.gpus[0].id, graph.gpus[1].id)
    if gbps is None:
        pytest.skip("the links of this machine are assumed")
    assert low <= gbps <= high


def test_expected_rates_of_gpu_and_host() -> None:
    graph = topology.synthetic("dgx1v")
    gbps = doctor.host_gbps(graph, graph.gpus[0].id)
    assert gbps is None or 8 <= gbps <= 16  # PCIe generation 3


def test_gpus_that_cannot_be_used_are_no_absence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:13:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert doctor.nvidia_gpus(tmp_path) == 1
    assert doctor.nvidia_gpus(tmp_path / "elsewhere") == 0
    child = CHILD.replace('"gpus": gpus', '"gpus": []').replace('""}', '"no driver"}')
    monkeypatch.setattr(doctor, "_CHILD", (sys.executable, "-c", child))
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: 1)
    (report,) = doctor.examine(["gpus"])
    assert report.checks[0].outcome == "failed"
    assert "no driver" in report.checks[0].found


def test_a_library_that_does_not_load_is_a_failure(program: Program) -> None:
    done = program("doctor", "--only", "shared-memory", env={"ROPEWALK_LIBRARY": "/nonexistent.so"})
    assert done.returncode == 1
    assert "nonexistent" in done.stdout


def test_wrong_command_lines(program: Program) -> None:
    for arguments, reason in (
        (("--only", "disks"), '"disks": known are'),
        (("--timeout", "0"), "--timeout 0"),
        (("--share", "2"), "--share 2"),
    ):
        done = program("doctor", *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
    with pytest.raises(errors.ArgumentError):
        next(doctor.examine(["disks"]))
