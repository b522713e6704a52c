# ruff: noqa: E501  (lines of tables)
"""A DGX-2 by size, and both classes of links of a DGX-1V at once (figures 24 to 26 of Blink).

Parts of `benchmarks/emulation/run`. What was measured is kept in emulation-*.json beside the
tables, so that a run that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any, Callable

from ropewalk import planning

MACHINES = Path(__file__).resolve().parents[2] / "tests" / "topologies"
Row = dict[Any, Any]


class Kept:
    """Measurements by key, written when each is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, key: str, measure: Callable[..., Any], *args: Any) -> Any:
        if key not in self.rows:
            self.rows[key] = measure(*args)
            print(key, self.rows[key], flush=True)
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n")
        return self.rows[key]


def size_name(size: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def parse_size(name: str) -> int:
    return int(name[:-1]) * {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10}[name[-1]]


def drawing() -> Any:
    """Matplotlib; nothing without it."""
    if importlib.util.find_spec("matplotlib") is None:
        print("without Matplotlib: no picture", flush=True)
        return None
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


# ---- DGX-2 ------------------------------------------------------------------------------------

NAMES = {
    "": "chosen",
    "plan-one-hop": "one-hop trees",
    "plan-binary-tree": "double binary trees",
    "plan-ring": "rings",
}
# Messages that links' latencies make long are short beside what this host takes, unless links are
# slowed more; long ones would take hours. Of the longest the data repeats, so that 16 ranks of 1 GiB
# take 2 GiB of memory: sizes, slowdown, bytes that repeat.
SPANS = (
    ("1K-1M", 20000, ""),
    ("4M-16M", 8000, ""),
    ("1G", 20000, "16M"),
    ("64M", 20000, "16M"),
    ("256M", 20000, "16M"),
)


def switches(bench: Any, options: argparse.Namespace) -> list[str]:
    """DGX-2: one-hop trees against double binary trees and ring, 1 KiB to 1 GiB."""
    path = str(MACHINES / "dgx2.json")
    gpus = tuple(range(16))
    kept = Kept(options.out / "emulation-switches.json")
    times: dict[int, dict[str, float]] = {}
    chosen: dict[int, str] = {}
    for sizes, slowdown, period in SPANS:
        for name in NAMES:
            force = name and f"all_reduce={name}"
            if period and not name:
                # By its name, so that not each rank compares all candidates anew.
                told = kept.get(f"choice for {sizes}", choice, bench, path, gpus, parse_size(sizes))
                force = f"all_reduce={told}"
            factor = options.slowdown or slowdown
            key = f"{sizes} {NAMES[name]}, slowed {factor} times"
            lines = kept.get(key, bench, path, "all_reduce", gpus, sizes, force, factor, 0, period)
            for line in lines:
                times.setdefault(int(line["size"]), {})[NAMES[name]] = line["us"]
    for size in times:
        key = f"choice for {size_name(size)}"
        chosen[size] = kept.get(key, choice, bench, path, gpus, size)
    lines = [
        "All-reduce on a DGX-2 (16 GPUs behind NVSwitches), us by size. chosen: by the tuner,",
        "unasked, and its name. rings / chosen: how much longer rings take. Links slowed 20000 times up to",
        "1 MiB, 8000 times beyond; each time is one call, verified, up to 16 MiB the better of in place and",
        "not. From 64 MiB on ranks are threads, out of place, and data repeats each 16 MiB: the output of",
        "rank 0 is whole and verified whole, of the others' what was written last in each period.",
        "",
        f"{'size':>6}"
        + "".join(f"{name:>21}" for name in NAMES.values())
        + f"  {'choice':<20}{'trees/chosen':>13}{'rings/chosen':>13}{'GB/s':>8}",
    ]
    for size, row in sorted(times.items()):
        lines.append(
            f"{size_name(size):>6}"
            + "".join(f"{row[name]:>21.1f}" for name in NAMES.values())
            + f"  {chosen[size]:<20}{row['double binary trees'] / row['chosen']:>13.2f}"
            f"{row['rings'] / row['chosen']:>13.2f}{size / row['chosen'] / 1e3:>8.2f}"
        )
    draw_switches(times, options.out / "emulation-switches.svg")
    return lines


def choice(bench: Any, path: str, gpus: tuple[int, ...], size: int) -> str:
    return str(bench.explain(path, "all_reduce", gpus, str(size))["chosen"])


def draw_switches(times: dict[int, dict[str, float]], path: Path) -> None:
    pyplot = drawing()
    if pyplot is None:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    sizes = sorted(times)
    styles = {
        "rings": ("s", "-", "#8a6d00"),
        "double binary trees": ("^", "-", "#d55e00"),
        "one-hop trees": ("o", "-", "#009e73"),
        "chosen": ("x", "--", "#0072b2"),
    }
    for name, (marker, line, colour) in styles.items():
        us = [times[size][name] for size in sizes]
        rate = [size / time / 1e3 for size, time in zip(sizes, us)]
        for axis, values in ((left, us), (right, rate)):
            axis.plot(sizes, values, marker=marker, linestyle=line, color=colour, label=name)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [size_name(size) for size in sizes])
        axis.set_xlabel("bytes of each rank")
        axis.grid(alpha=0.3)
    left.set_yscale("log")
    left.set_ylabel("us")
    right.set_ylabel("algbw, GB/s")
    left.legend()
    figure.suptitle("All-reduce on a DGX-2, 16 GPUs, emulated")
    figure.savefig(path, metadata={"Date": None})


# ---- both classes of links of a DGX-1V --------------------------------------------------------

NUMBERS = tuple(tuple(range(count)) for count in range(3, 9))
SETUPS_MS = (0.0, 1.0, 5.0)  # of the class over PCIe, for each call
LONG = "128M"  # 16 MiB where only PCIe is used: it is so slow
BYTES = 500e6  # of the calls that the set-up time is counted for


def hybrid(bench: Any, options: argparse.Namespace) -> list[str]:
    """DGX-1V, broadcast: NVLink alone, PCIe alone, both; and what figure 24 has."""
    path = str(MACHINES / "dgx1v.json")
    slowdown = options.slowdown or 4000
    kept = Kept(options.out / "emulation-hybrid.json")

    def rate(gpus: tuple[int, ...], name: str, size: str) -> float:
        key = f"{','.join(map(str, gpus))} {name or 'chosen'} {size}, slowed {slowdown} times"
        force = name and f"broadcast={name}"
        return float(
            kept.get(
                key, lambda: bench(path, "broadcast", gpus, size, force, slowdown, 0)[-1]["algbw"]
            )
        )

    rows: list[Row] = []
    for gpus in NUMBERS:
        row: Row = {
            "gpus": gpus,
            "nvlink": rate(gpus, "plan-optimal", options.given_size or LONG),
            "pcie": rate(gpus, "plan-optimal-pcie", "16M"),
            "both": rate(gpus, "plan-optimal-hybrid", options.given_size or LONG),
        }
        for setup in SETUPS_MS:
            us, _ = planning.split([(row["nvlink"], 0.0), (row["pcie"], setup * 1e3)], BYTES)
            row[setup] = BYTES / us / 1e3
        rows.append(row)
    lines = [
        "Broadcast on a DGX-1V, the first GPUs, algbw in GB/s: trees over NVLink alone (128 MiB), over",
        "PCIe alone (16 MiB), and two sets of trees at once, one for each class of links (128 MiB), each",
        f"measured, links slowed {slowdown} times. Right of these, computed from the two measured rates by",
        "equation 8 of Blink: 500 MB where the class over PCIe starts so many ms later in each call, as",
        "where peer access must be switched off first. Published for figure 25: 2 to 5 GB/s more than",
        "NVLink alone, about 5 with 3 and 4 GPUs, about 2 with 7 and 8.",
        "",
        f"{'gpus':<18}{'NVLink':>8}{'PCIe':>8}{'both':>8}{'gain':>8}"
        + "".join(f"{f'{setup:g} ms':>10}{'gain':>7}" for setup in SETUPS_MS),
    ]
    for row in rows:
        lines.append(
            f"{','.join(map(str, row['gpus'])):<18}{row['nvlink']:>8.2f}{row['pcie']:>8.2f}"
            f"{row['both']:>8.2f}{row['both'] - row['nvlink']:>8.2f}"
            + "".join(
                f"{row[setup]:>10.2f}{row[setup] - row['nvlink']:>7.2f}" for setup in SETUPS_MS
            )
        )
    lines += [
        "",
        "Broadcast from GPU 0 as in figure 24, 64 MiB (rings over PCIe 16 MiB). Published: on 0,1,3 NCCL",
        "builds two rings over NVLink, on 0,1,4 none, so that it goes over PCIe.",
        "",
        f"{'gpus':<10}{'chosen':<22}{'GB/s':>8}{'ring':>8}  {'ring':<18}{'ratio':>6}",
    ]
    for gpus in ((0, 1, 3), (0, 1, 4)):
        told = bench.explain(path, "broadcast", gpus, "64M")
        names = [each["algorithm"] for each in told["candidates"]]
        ring = "plan-ring" if "plan-ring" in names else "ring"
        own = rate(gpus, "", "64M")
        other = rate(gpus, ring, "16M" if ring == "ring" else "64M")
        where = "over NVLink" if ring == "plan-ring" else "over PCIe"
        lines.append(
            f"{','.join(map(str, gpus)):<10}{told['chosen']:<22}{own:>8.2f}{other:>8.2f}  {where:<18}"
            f"{own / other:>6.2f}"
        )
    draw_hybrid(rows, options.out / "emulation-hybrid.svg")
    return lines


def draw_hybrid(rows: list[Row], path: Path) -> None:
    pyplot = drawing()
    if pyplot is None:
        return
    figure, axis = pyplot.subplots(figsize=(8, 4), layout="constrained")
    places = range(len(rows))
    for shift, key, label, colour in (
        (-0.27, "nvlink", "NVLink alone", "#8a6d00"),
        (0.0, "both", "NVLink and PCIe", "#0072b2"),
        (0.27, "pcie", "PCIe alone", "#999999"),
    ):
        heights = [row[key] for row in rows]
        bars = axis.bar([p + shift for p in places], heights, 0.25, label=label, color=colour)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set_xticks(list(places), [f"0 to {len(row['gpus']) - 1}" for row in rows])
    axis.set_xlabel("GPUs")
    axis.set_ylabel("algbw, GB/s")
    axis.set_title("Broadcast on a DGX-1V, emulated")
    axis.legend(loc="upper left")
    figure.savefig(path, metadata={"Date": None})
