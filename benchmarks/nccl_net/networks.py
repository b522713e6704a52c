"""The networks under comparison, and the operations and sizes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import machine

NETWORKS = ("socket", "shm", "cuda_ipc", "sisci")
# Those that a machine has without more.
USUAL = NETWORKS[:3]


def environment_of(network: str, plugin: Path) -> dict[str, str]:
    """What makes NCCL take `network` for all that it moves between GPUs."""
    forced = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_MODULE_LOADING": "EAGER",  # or cuda_ipc and sisci take no GPU memory
    }
    if network == "socket":
        return {**forced, "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    if network == "sisci":
        # The software bridges of the build that the plugin is of, unless the user names a library.
        software = plugin.parent / "sisci" / "libsisci.so"
        forced["ROPEWALK_SISCI_LIBRARY"] = os.environ.get("ROPEWALK_SISCI_LIBRARY", str(software))
    return {
        **forced,
        "NCCL_NET_PLUGIN": str(plugin),
        "NCCL_NET": "Ropewalk",
        "ROPEWALK_NET": network,
    }


def find_nvidia() -> Path | None:
    """NVIDIA's library, as its Python packages install it."""
    for folder in sys.path:
        for path in Path(folder).glob("nvidia/nccl/lib/libnccl.so.2"):
            return path
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"):
        path = Path(folder) / "libnccl.so.2"
        if path.exists():
            return path
    return None


def gpus_there() -> list[str]:
    """A line for each GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return machine.run_program(query, limit_s=30).strip().splitlines()
    except machine.LaunchError as error:
        sys.exit(f"nccl_net: {error}")
