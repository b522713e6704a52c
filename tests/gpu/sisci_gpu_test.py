"""GPU memory over the transport sisci, on software PCIe bridges: messages, and the network plugin.

Needs from the build folder: tests/gpu_messages, sisci/libsisci.so, ropewalk-check-plugin and
libnccl-net-ropewalk.so.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

NO_GPU = 77
BUILD = Path(os.environ.get("RW_BUILD_DIR", "build/release")).resolve()
MESSAGES = BUILD / "tests/gpu_messages"
BRIDGES = BUILD / "sisci/libsisci.so"
CHECKER = BUILD / "ropewalk-check-plugin"
PLUGIN = BUILD / "libnccl-net-ropewalk.so"
GPU_RULES = ["gpu-transfer", "gpu-flush", "gpu-and-host"]
# What the bridges cannot do, and what the log says then; nothing is wrong without settings.
FAULTS = {
    "": "DMA from GPU memory into GPU memory is used",
    "gpu_memory no\n": "GPU memory cannot be attached: SCIAttachPhysicalMemory",
    "iommu broken\n": "but a pattern cannot be read back: the IOMMU is off or broken",
    "attach_error yes\n": "DMA from GPU memory into GPU memory: it cannot start",
}


def need(*files: Path) -> None:
    for file in files:
        if not file.exists():
            pytest.skip(f"{file} is not built")


def environment(settings: str, folder: Path) -> dict[str, str]:
    (folder / "sisci.conf").write_text(settings + "# the rest is as it is by default\n")
    return {
        **os.environ,
        "CUDA_MODULE_LOADING": "EAGER",
        "ROPEWALK_NET": "sisci",
        "ROPEWALK_SISCI_LIBRARY": str(BRIDGES),
        "ROPEWALK_DEBUG": "INFO",
        "ROPEWALK_DEBUG_SUBSYS": "NET",
        "SOFTWARE_SISCI_SETTINGS": str(folder / "sisci.conf"),
    }


def run(
    command: list[str], settings: str, folder: Path, said: str = ""
) -> subprocess.CompletedProcess[str]:
    """The program on bridges with these settings; `said` is its standard input."""
    done = subprocess.run(
        command,
        input=said,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(settings, folder),
    )
    print(done.stdout)
    return done


@pytest.mark.parametrize("gpus", ["0,0", "0,1"])
@pytest.mark.parametrize("settings", FAULTS)
def test_messages_come_right(gpus: str, settings: str, tmp_path: Path) -> None:
    need(MESSAGES, BRIDGES)
    command = [str(MESSAGES), "--transport", "sisci", "--gpus", gpus, "--max", "16M"]
    command += ["--memory", "alloc-alloc,virtual-virtual,host-virtual,alloc-host"]
    done = run(command, settings, tmp_path)
    if done.returncode == NO_GPU or "GPU 1 of 1" in done.stderr:
        pytest.skip(f"not the GPUs {gpus}: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert " NO\n" not in done.stdout
    assert FAULTS[settings] in done.stdout + done.stderr


@pytest.mark.parametrize("settings", FAULTS)
def test_the_plugin_keeps_the_rules_of_gpu_memory(settings: str, tmp_path: Path) -> None:
    need(CHECKER, PLUGIN, BRIDGES)
    request = {
        "file": str(PLUGIN),
        "version": None,
        "device": 0,
        "timeout_s": 60,
        "connections": 20,
        "large": False,
        "log": False,
        "rules": GPU_RULES,
        "sizes": [8, 65536, 4 << 20],
    }
    done = run([str(CHECKER)], settings, tmp_path, json.dumps(request))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rules = [line["rule"] for line in lines if "rule" in line]
    if all(rule["outcome"] == "skipped" for rule in rules):
        pytest.skip(str(rules[0]["missing"]))
    outcomes = {rule["id"]: rule["outcome"] for rule in rules}  # those that these need as well
    assert outcomes.keys() > set(GPU_RULES)
    assert set(outcomes.values()) == {"passed"}
    measures = [line["measure"] for line in lines if "measure" in line]
    assert any(measure["memory"] == "gpu" and "sizes" in measure for measure in measures), measures
