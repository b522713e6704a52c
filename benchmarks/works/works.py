"""The figures and tables of the five works, and how each is repeated here.

run prints and runs them; README.md has them as a page, with what was published and what differs.
"""

from __future__ import annotations

from dataclasses import dataclass

R = "benchmarks/results/"


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    name: str
    what: str
    command: str
    kept: tuple[str, ...] = ()
    """files of benchmarks/results; none: no run is kept yet"""
    needs: str = ""
    """beside this tree"""


EXPERIMENTS = (
    Experiment(
        "thesis-5.2-5.6",
        "nccl-tests over SISCI and over sockets: time, algbw and busbw by size",
        "benchmarks/emulation/run hosts",
        (R + "emulation-hosts.txt", R + "nccl-net-sisci-2xh200.txt"),
    ),
    Experiment(
        "thesis-6.1",
        "batch time of three networks over two kinds of NICs",
        "benchmarks/training/hosts --nics 1000,1000 --out works-6.1.txt -- --model "
        "resnet50,efficientnet_b0,mobilenet_v3_large --batch 2 --image 32 --steps 10 "
        "--backend ropewalk,gloo",
        (R + "training-hosts.txt",),
        "root, iproute2, PyTorch",
    ),
    Experiment(
        "thesis-6.2",
        "time in collectives of a batch (the columns collectives and exposed of 6.1)",
        "benchmarks/training/hosts --nics 1000,1000 --out works-6.1.txt -- --model "
        "resnet50,efficientnet_b0,mobilenet_v3_large --batch 2 --image 32 --steps 10 "
        "--backend ropewalk,gloo",
        (R + "training-hosts.txt",),
        "root, iproute2, PyTorch",
    ),
    Experiment(
        "thesis-table-6.1",
        "processors, memory, GPUs: averages over the run",
        "ropewalk trace -o works-6.1.json --csv works-6.1.csv --plot works-6.1.svg -- "
        "ropewalk train --model resnet50,efficientnet_b0,mobilenet_v3_large --batch 2 --image 32 "
        "--steps 10",
        (R + "training-2xh100.txt", R + "works-6.1-2xh100.svg"),
        "PyTorch",
    ),
    Experiment(
        "psm2-charts",
        "rates and half round trips over PSM2, with one endpoint and with separate ones",
        "build/release/benchmarks/transports --rounds 9 bare:psm2 "
        "psm2,PSM2_DEVICE=shm,SOCKET_IFNAME==lo "
        "psm2,PSM2_DEVICE=shm,SOCKET_IFNAME==lo,PSM2_ENDPOINTS=separate",
        (R + "psm2.txt",),
        "libpsm2, and a build with -DRW_BENCHMARKS=ON",
    ),
    Experiment(
        "psm2-allreduce",
        "all-reduce of two hosts with one P100 and one Omni-Path adapter each",
        "benchmarks/emulation/run hosts",
        (R + "emulation-hosts.txt",),
    ),
    Experiment(
        "psm2-sweep",
        "the same between two and four hosts over sockets, PSM2 and PSM2 with separate endpoints",
        "benchmarks/nccl_net/sweep --hosts 2,4 -b 1K -e 64M -f 16 --beside psm2 "
        "--set PSM2_DEVICE=shm --set SOCKET_IFNAME==lo --case 'TCP: NET=tcp' "
        "--case 'PSM2: NET=psm2' "
        "--case 'PSM2, separate endpoints: NET=psm2 PSM2_ENDPOINTS=separate'",
        (R + "psm2-sweep.txt", R + "psm2-sweep.svg"),
        "libpsm2",
    ),
    Experiment(
        "blink-21",
        "chains: forward, reduce and forward, reduce and broadcast",
        "ropewalk microbench chain --ranks 2:8 -b 1M -e 64M -f 4",
        (R + "microbench-2xh200.txt",),
    ),
    Experiment(
        "blink-23",
        "fan-in and fan-out: forward, reduce and forward",
        "ropewalk microbench fan-in --width 3 -b 1M -e 4M -f 4 -n 5 --set EMULATE=dgx1v "
        "--set EMULATE_GPUS=1,2,3,0,4 --set EMULATE_SLOWDOWN=1000",
        (R + "works-blink-23.txt",),
    ),
    Experiment(
        "blink-24",
        "broadcast from GPU 0 on three GPUs with and without a ring over NVLink",
        "benchmarks/emulation/run hybrid",
        (R + "emulation-hybrid.txt", R + "emulation-hybrid.svg"),
    ),
    Experiment(
        "blink-25",
        "broadcast over NVLink and PCIe at once, 3 to 8 GPUs",
        "benchmarks/emulation/run hybrid",
        (R + "emulation-hybrid.txt", R + "emulation-hybrid.svg"),
    ),
    Experiment(
        "blink-26",
        "all-reduce of a DGX-2's 16 GPUs by size",
        "benchmarks/emulation/run switches",
        (R + "emulation-switches.txt", R + "emulation-switches.svg"),
    ),
    Experiment(
        "blink-allocations",
        "broadcast and all-reduce on every class of allocations of a DGX-1",
        "benchmarks/emulation/run allocations",
        (R + "emulation-allocations.txt", R + "emulation-allocations.svg"),
    ),
    Experiment(
        "rccl-table-1",
        "five operations over one and over four NICs of a host",
        "benchmarks/nics/run paper",
        (R + "emulation-nics.txt", R + "nics.txt"),
        "root, iproute2",
    ),
    Experiment(
        "rccl-5-6",
        "bus bandwidth by size, before and after the choice of NICs",
        "benchmarks/emulation/run nics",
        (R + "emulation-nics.txt", R + "emulation-nics.svg"),
    ),
    Experiment(
        "gpudirect-matrices",
        "bandwidth and latency between each pair of GPUs, peer access off and on",
        "ropewalk p2p",
        (R + "p2p-2xh200.txt",),
        "GPUs",
    ),
    Experiment(
        "gpudirect-rings",
        "rates of rings and chains through all GPUs",
        "ropewalk microbench chain --ranks 2 --device cuda -b 1M -e 256M -f 16",
        (R + "microbench-2xh200.txt",),
        "GPUs",
    ),
    Experiment(
        "gpudirect-modes",
        "messages by copy engine, by kernel, through the host",
        "build/release/benchmarks/device_sweep",
        (R + "nccl-compare-2xh200-host-path.txt", R + "cuda-ipc-2xh200.txt"),
        "GPUs, and a build with -DRW_BENCHMARKS=ON",
    ),
)
