"""Figures that pages quote are those of the result files that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
UNITS = {"": 1, "K": 1 << 10, "Ki": 1 << 10, "M": 1 << 20, "Mi": 1 << 20}

Rows = list[list[str]]
"""the cells of a table, line by line; the first line has its titles"""
Points = dict[str, dict[int, list[float]]]
"""of a result file: section, bytes, the figures of that line"""


def kept(file: str) -> str:
    return (RESULTS / file).read_text()


def table(name: str, *titles: str) -> Rows:
    """The only table of a page whose first line begins with these titles."""
    found: list[Rows] = []
    before = ""
    for line in (ROOT / name).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and not before.startswith("|"):
            found.append([])
        if line.startswith("|") and set("".join(cells)) - set("-: "):
            found[-1].append(cells)
        before = line
    matching = [rows for rows in found if rows[0][: len(titles)] == list(titles)]
    assert len(matching) == 1, f"{name}: {len(matching)} tables begin with {titles}"
    return matching[0]


def sentence(name: str, pattern: str) -> tuple[str, ...]:
    """The groups of a pattern that the page's text has; pages wrap their lines anywhere."""
    found = re.search(pattern, " ".join((ROOT / name).read_text().split()))
    assert found, f"{name} does not say: {pattern}"
    return found.groups()


def size(text: str) -> int:
    """Bytes of "8", "8 B", "64 KiB", "256 Ki", "2M", "NCCL, 64 KiB"."""
    found = re.search(r"(\d+) ?([KM]?i?)B?$", text)
    assert found, text
    return int(found[1]) * UNITS[found[2]]


def same(shown: str, figure: float) -> bool:
    """Whether the figure, rounded to the shown number of digits, equals the shown text."""
    number = shown.split()[0].rstrip("%")
    last_place = 10.0 ** -len(number.partition(".")[2])
    return abs(float(number) - figure) <= last_place / 2 * 1.001


def points(file: str) -> Points:
    """Lines that begin with a size, under the name of an operation (and the heading above it)."""
    found: Points = {}
    heading = name = ""
    for line in kept(file).splitlines():
        words = line.split()
        if line.startswith("## "):
            heading = line[3:] + ", "
        elif re.match(r"[a-z_]+(: |$)", line):
            name = heading + line
        elif re.match(r" *\d+[KM]? +[\d.]", line):
            figures = [float(word) for word in words[1:] if word[0].isdigit()]
            found.setdefault(name, {})[size(words[0])] = figures
    assert found, file
    return found


# ---- GPUs

NCCL_TIME, OWN_TIME, TIMES = 0, 3, 6  # columns of nccl_compare
GRAPH = "one process per GPU, CUDA graph"


def test_all_reduce_on_two_gpus() -> None:
    figures = points("nccl-compare-2xh200.txt")[f"all_reduce: {GRAPH}"]
    sizes = ["8 B", "64 KiB", "1 MiB", "8 MiB", "128 MiB", "512 MiB"]
    titles, nccl, own = table("README.md", "all-reduce", *sizes)
    for title, theirs, ours in zip(titles[1:], nccl[1:], own[1:]):
        assert same(theirs, figures[size(title)][NCCL_TIME]), (title, theirs)
        assert same(ours, figures[size(title)][OWN_TIME]), (title, ours)


def test_the_first_screen() -> None:
    shown = sentence(
        "README.md",
        r"takes ([\d.]+) to ([\d.]+) of NCCL's time on two H200, "
        r"([\d.]+) to ([\d.]+) on four H100, and, between two processes on host memory with data "
        r"that comes from memory, of the time of the faster of Open MPI and MPICH "
        r"([\d.]+) to ([\d.]+) on an EPYC and ([\d.]+) to ([\d.]+) on a Xeon ",
    )
    for file, least, most in (
        ("nccl-compare-2xh200.txt", *shown[:2]),
        ("nccl-compare-4xh100.txt", *shown[2:4]),
    ):
        lines = points(file)[f"all_reduce: {GRAPH}"].values()
        ratio = [line[OWN_TIME] / line[NCCL_TIME] for line in lines]
        assert same(least, min(ratio)), file
        assert same(most, max(ratio)), file
    for file, least, most in (
        ("peers-fresh-epyc.txt", *shown[4:6]),
        ("peers-fresh-xeon.txt", *shown[6:]),
    ):
        pair = [ratio for _, ratio in ratios(file, "2 ranks", ", all_reduce")]
        assert same(least, min(pair)), file
        assert same(most, max(pair)), file


def test_other_operations_on_two_gpus() -> None:
    figures = points("nccl-compare-2xh200.txt")
    titles, *rows = table("README.md", "", "all-gather", "reduce-scatter")
    assert [row[0] for row in rows[::2]] == ["NCCL, 64 KiB", "NCCL, 128 MiB"]
    for nccl, own in zip(rows[::2], rows[1::2]):
        for title, theirs, ours in zip(titles[1:], nccl[1:], own[1:]):
            line = figures[f"{title.replace('-', '_')}: {GRAPH}"][size(nccl[0])]
            assert same(theirs, line[NCCL_TIME]), (title, nccl[0], theirs)
            assert same(ours, line[OWN_TIME]), (title, nccl[0], ours)


def test_four_gpus() -> None:
    figures = points("nccl-compare-4xh100.txt")
    titles, *rows = table("README.md", "NCCL / Ropewalk")
    assert len(rows) >= 6
    assert len(titles[1:]) == len(figures)
    for row in rows:
        for title, shown in zip(titles[1:], row[1:]):
            line = figures[f"{title.replace('-', '_')}: {GRAPH}"][size(row[0])]
            assert same(shown, line[TIMES]), (title, row[0], shown)


def test_where_four_gpus_are_slower() -> None:
    begin, most = sentence(
        "README.md",
        r"a reduce takes longer than NCCL's from (\d+ MiB) on; all-reduce, broadcast and "
        r"all-to-all do so at some sizes, by up to (\d+)%; the other operations never do",
    )
    longer = {
        name.partition(":")[0]: {
            bytes_: line[OWN_TIME] / line[NCCL_TIME] - 1
            for bytes_, line in lines.items()
            if line[TIMES] < 1
        }
        for name, lines in points("nccl-compare-4xh100.txt").items()
    }
    reduces = points("nccl-compare-4xh100.txt")[f"reduce: {GRAPH}"]
    assert sorted(longer.pop("reduce")) == [b for b in sorted(reduces) if b >= size(begin)]
    assert {name for name, some in longer.items() if some} == {
        "all_reduce",
        "broadcast",
        "all_to_all",
    }
    assert same(most, 100 * max(ratio for some in longer.values() for ratio in some.values()))


def test_nccl_over_the_plugin() -> None:
    figures = points("nccl-net-2xh200.txt")["all_reduce"]
    titles, *rows = table(
        "README.md", "all-reduce", "8 B", "64 KiB", "1 MiB", "8 MiB", "128 MiB", ""
    )
    assert len(rows) == 3
    for network, row in enumerate(rows):  # time and rate of each in turn
        for title, shown in zip(titles[1:-1], row[1:-1]):
            assert same(shown, figures[size(title)][2 * network]), (row[0], title, shown)
        assert same(row[-1], figures[128 << 20][2 * network + 1]), row


def releases() -> dict[str, list[str]]:
    """By release: the line over cuda_ipc."""
    lines = (line.split() for line in kept("nccl-net-versions-2xh200.txt").splitlines())
    return {words[0]: words for words in lines if len(words) > 1 and words[1] == "cuda_ipc"}


def test_releases_of_nccl() -> None:
    ran = sorted([*releases(), "2.28.9"])  # that one in a file of its own
    (named,) = sentence(
        "docs/network-plugin.md",
        r"NCCL ([\d., and]+) ran on two H200, over `shm` and `cuda_ipc`, with the plugin",
    )
    assert sorted(re.findall(r"[\d.]*\d", named)) == ran
    ends = (ran[0], ran[-1])
    assert sentence("README.md", r"H200 of one host, NCCL (\S+) to (\S+) ") == ends
    assert sentence("docs/network-plugin.md", r"`shm`: (\S+) to (\S+) on two H200") == ends
    assert sentence("CHANGELOG.md", r"run with six releases from (\S+) to (\S+),") == ends
    assert len(ran) == 6


def test_sendrecv_over_cuda_ipc() -> None:
    newer, older = sentence(
        "docs/network-plugin.md", r"took ([\d.]+) ms under 2\.28\.9; under 2\.21\.5, .*?, ([\d.]+)"
    )
    assert same(newer, points("nccl-net-2xh200.txt")["sendrecv"][128 << 20][4] / 1000)
    assert same(older, float(releases()["2.21.5"][-1].partition("(")[0]) / 1000)


def test_the_graph_file_under_nccl() -> None:
    page = "docs/nic-balance.md"
    rate, largest = sentence(page, r"reached (\d+) GB/s in an all-reduce of (\d+ MiB)")
    lines = [line.split() for line in kept("nccl-graph-2xh200.txt").splitlines()]
    assert [same(rate, float(words[2])) for words in lines if words[0] == "256M"] == [True]
    assert size(largest) == 256 << 20
    rate, other = sentence(page, r"search it reaches \[(\d+) GB/s at (\d+ MiB)\]")
    figures = points("nccl-compare-2xh200.txt")["all_reduce: one process per GPU, stream"]
    assert same(rate, figures[size(other)][1])


# ---- host memory

RATIO, OF_LIMIT = -2, -1  # columns of benchmarks/peers


def ratios(file: str, ranks: str = "", operation: str = "") -> list[tuple[int, float]]:
    """Bytes, and Ropewalk's time over the best peer's."""
    return [
        (bytes_, figures[RATIO])
        for name, lines in points(file).items()
        if name.startswith(ranks) and name.endswith(operation)
        for bytes_, figures in lines.items()
    ]


COMPARED = "docs/host-memory-compared.md"


def at_most(file: str, limit: float, ranks: str = "") -> str:
    return str(sum(ratio <= limit for _, ratio in ratios(file, ranks)))


def test_all_reduce_between_two_processes() -> None:
    name = "2 ranks pinned to 2 cores, shared memory, all_reduce"
    epyc, xeon = (points(f"peers-fresh-{processor}.txt")[name] for processor in ("epyc", "xeon"))
    titles, *rows = table("README.md", "bytes", "Open MPI", "MPICH", "Ropewalk")
    assert titles[4:6] == ["of the best peer", "times the limit"]
    assert titles[6].startswith("of the best peer, [Xeon]")
    assert len(rows) >= 8
    for row in rows:
        line = epyc[size(row[0])]
        shown = [*line[:3], line[RATIO], line[OF_LIMIT], xeon[size(row[0])][RATIO]]
        assert [same(cell, figure) for cell, figure in zip(row[1:], shown)] == [True] * 6, row


def test_time_of_a_cache_line() -> None:
    epyc, xeon = sentence(
        "README.md",
        r"a cache line goes from core to core, (\d+) ns on this EPYC and (\d+) ns on that Xeon",
    )
    for file, shown in (("peers-fresh-epyc.txt", epyc), ("peers-fresh-xeon.txt", xeon)):
        assert re.findall(r"cache line, one way: (\d+) ns", kept(file)) == [shown]


def test_points_on_the_first_page() -> None:
    fast, *counts = sentence(
        "README.md",
        r"takes at most ([\d.]+) of the faster peer's time at (\d+) of (\d+) points, "
        r"and at most 1\.1 at (\d+)\.",
    )
    file = "peers-fresh-epyc.txt"
    assert counts == [at_most(file, float(fast)), str(len(ratios(file))), at_most(file, 1.1)]


def test_points_by_processor() -> None:
    titles, *rows = table(COMPARED, "processor, data", "ranks", "at most 0.9", "at most 1.1")
    assert titles[4:6] == ["points", "worst"]
    assert len(rows) == 11
    for row in rows:
        (file,) = re.findall(r"results/([\w.-]+)", row[0])
        ranks = f"{row[1]} ranks"
        found = [ratio for _, ratio in ratios(file, ranks)]
        counts = [at_most(file, limit, ranks) for limit in (0.9, 1.1)]
        assert row[2:5] == [*counts, str(len(found))], row
        assert same(row[5], max(found)), row
        reduces = dict(ratios(file, ranks, "all_reduce"))
        for cell, bytes_ in zip(row[6:], (8, 256 << 10, 2 << 20, 64 << 20)):
            assert same(cell, reduces[bytes_]), row


def test_crowded_cores_and_in_place() -> None:
    limit, some, all_, worst, least, most = sentence(
        COMPARED,
        r"take at most ([\d.]+\d) of its time at (\d+) of (\d+) points "
        r"and at most ([\d.]+\d) at all, and all-reduces of 64 KiB to 16 MiB of two ranks "
        r"([\d.]+\d) to ([\d.]+\d)\.",
    )
    file = "peers-crowded-xeon.txt"
    four = [ratio for _, ratio in ratios(file, "4 ranks")]
    assert (some, all_) == (at_most(file, float(limit), "4 ranks"), str(len(four)))
    assert same(worst, max(four))
    two = [ratio for _, ratio in ratios(file, "2 ranks", "all_reduce")]
    assert same(least, min(two))
    assert same(most, max(two))
    some, all_, limit, least, most = sentence(
        COMPARED,
        r"(\d+) of (\d+) points take at most ([\d.]+\d), "
        r"all-reduces ([\d.]+\d) to ([\d.]+\d); over 1.1",
    )
    file = "peers-inplace-xeon.txt"
    assert (some, all_) == (at_most(file, float(limit)), str(len(ratios(file))))
    reduces = [r for n in ("2", "4") for _, r in ratios(file, f"{n} ranks", "all_reduce")]
    assert same(least, min(reduces))
    assert same(most, max(reduces))


def test_all_points_over_tcp() -> None:
    some, all_, limit, least, most, last_least, last_most = sentence(
        COMPARED,
        r"(\d+) of (\d+) points take at most ([\d.]+\d) of the time on two cores .*? "
        r"the others are .*? of four ranks at ([\d.]+) to ([\d.]+) "
        r"\(by the \S+ rank's time\]\S+ at ([\d.]+) to ([\d.]+)[;)]",
    )
    assert all_ == str(len(ratios("peers-tcp.txt")))
    assert some == at_most("peers-tcp.txt", float(limit))
    over = [ratio for _, ratio in ratios("peers-tcp.txt", "4 ranks") if ratio > float(limit)]
    assert same(least, min(over))
    assert same(most, max(over))
    last = [ratio for _, ratio in ratios("peers-tcp-last-rank.txt")]
    assert same(last_least, min(last))
    assert same(last_most, max(last))
    some, all_, limit, worst, fast, slow = sentence(
        COMPARED,
        r"results/peers-mpi5-tcp-last-rank-xeon\.txt\), (\d+) of (\d+) points took at most "
        r"([\d.]+\d) and the slowest, a broadcast of 8 bytes among four ranks, ([\d.]+\d); .*? "
        r"the scatters at ([\d.]+) to ([\d.]+) of Open MPI's",
    )
    file = "peers-mpi5-tcp-last-rank-xeon.txt"
    assert (some, all_) == (at_most(file, float(limit)), str(len(ratios(file))))
    assert same(worst, max(ratio for _, ratio in ratios(file)))
    assert same(worst, dict(ratios(file, "4 ranks", "broadcast"))[8])
    words = [line.split() for line in kept("scatter-trees-tcp.txt").splitlines()]
    scatters = {
        int(line[1]): float(line[-1])
        for line in words
        if line[:1] == ["scatter"] and len(line) == 9
    }
    short = [ratio for bytes_, ratio in scatters.items() if bytes_ <= 16 << 10]
    assert len(short) == 5
    assert (same(fast, min(short)), same(slow, max(short))) == (True, True)


def test_all_points_of_gloo() -> None:
    times, all_ = sentence(COMPARED, r"takes ([\d.]+) times as long or longer at all (\d+) points")
    lines = [line for lines in points("peers-gloo.txt").values() for line in lines.values()]
    assert all_ == str(len(lines))
    assert same(times, min(line[0] / line[1] for line in lines))


def test_joining() -> None:
    processes, threads, idle = sentence(
        "README.md",
        r"256 processes join in ([\d.]+) s on the two cores, 256 threads in ([\d.]+) s; an idle "
        r"communicator of two ranks holds (\d+) KiB",
    )
    text = kept("join.txt")
    for begins, shown in (
        ("256 ranks as processes: join, s", processes),
        ("256 ranks as threads of one process: join, s", threads),
        ("  idle: private memory, KiB", idle),
    ):
        (line,) = (line for line in text.splitlines() if line.startswith(begins))
        assert same(shown, float(line.split()[-2])), begins  # the median


def test_joining_an_emulated_machine() -> None:
    best, median = sentence(
        "README.md",
        r"1,024 ranks of an emulated machine, threads of one process, join in ([\d.]+) s at best, "
        r"with a median of ([\d.]+) s",
    )
    lines = kept("join.txt").splitlines()
    (line,) = (line for line in lines if line.startswith("1024 ranks of an emulated machine"))
    assert same(best, float(line.split()[-3])) and same(median, float(line.split()[-2]))


# ---- emulated

WORKS = "benchmarks/works/README.md"


def emulated(file: str, *begins: str) -> list[str]:
    """The cells of the only line of a result file that begins so."""
    lines = [line.split() for line in kept(file).splitlines()]
    (found,) = (cells for cells in lines if cells[: len(begins)] == list(begins))
    return found


def test_two_emulated_hosts() -> None:
    bridge = sentence(
        WORKS,
        r"by a bridge, emulated: all-reduce ([\d.]+) of ([\d.]+) GB/s, "
        r"all-gather ([\d.]+) of ([\d.]+), broadcast ([\d.]+) of ([\d.]+);",
    )
    (*_, psm2) = sentence(WORKS, r"(64 MiB: )([\d.]+) of 12.00 GB/s, emulated")
    rows = [
        emulated("emulation-hosts.txt", "dolphin-k2200-x2", operation)
        for operation in ("all_reduce", "all_gather", "broadcast")
    ]
    for row, own, bound in zip(rows, bridge[::2], bridge[1::2]):
        assert (own, bound) == (row[3], row[5]), row
    assert psm2 == emulated("emulation-hosts.txt", "cornelis-p100-opa-x2", "all_reduce")[4]


def test_the_published_rule_on_two_emulated_hosts() -> None:
    shown = sentence(
        WORKS,
        r"by the published rule: "
        + "; ".join(
            rf"{name} ([\d.]+), ([\d.]+) \(([\d.]+)\)"
            for name in ("all-reduce", "all-gather", "broadcast", "reduce", "reduce-scatter")
        )
        + r" .*?own choice gains ([\d.]+) to ([\d.]+)",
    )
    rows = [
        emulated("emulation-nics.txt", operation, "2")
        for operation in ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
    ]
    for i, row in enumerate(rows):
        assert list(shown[3 * i : 3 * i + 3]) == [row[5], row[6], row[8]], row
    own = [float(row[9]) for row in rows]
    assert [float(gain) for gain in shown[15:]] == [min(own), max(own)]


def test_allocations_and_two_classes_of_links() -> None:
    rows = re.findall(r"([\d.]+) +\d+M x\d+", kept("emulation-allocations.txt"))
    (most,) = sentence(WORKS, r"up to ([\d.]+) times the ring over PCIe")
    assert same(most, max(map(float, rows)))
    least, most, less = sentence(
        WORKS,
        r"([\d.]+) to ([\d.]+) GB/s more where nothing must be set up, "
        r"with seven GPUs ([\d.]+) less",
    )
    gains = {
        cells[0]: float(cells[4])
        for cells in map(str.split, kept("emulation-hybrid.txt").splitlines())
        if len(cells) == 11 and cells[0].startswith("0,")
    }
    assert same(less, -gains.pop("0,1,2,3,4,5,6"))
    assert same(least, min(gains.values())) and same(most, max(gains.values()))


# ---- computed


def test_rules_for_nics() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for line in kept("simulation.txt").partition("NICs of")[2].splitlines():
        words = line.split()
        if len(words) == 5 and words[1].startswith("all_"):
            found[words[0], words[1]] = words[2:]
    titles, *rows = table("docs/nic-balance.md", "rule", "busbw of either")
    assert titles[2:6] == ["all-gather algbw", "simulated", "all-reduce algbw", "simulated"]
    assert len(rows) == 3
    for row in rows:
        for operation, shown in (("all_gather", row[2:4]), ("all_reduce", row[4:6])):
            planned, builtin, _ = (float(figure) for figure in found[row[0], operation])
            assert same(shown[0], planned), row
            assert same(shown[1], builtin), row
        first = float(found["first-ring", "all_gather"][0])
        assert same(row[6], float(found[row[0], "all_gather"][0]) / first), row
        assert same(row[1], float(found[row[0], "all_gather"][0]) * 7 / 8), row


def column(file: str, machine: str, number: int, plane: str = "") -> float:
    """A figure of the line of a machine, in the tables of benchmarks/planning."""
    lines = [line.split() for line in kept(file).splitlines() if line.startswith(machine + " ")]
    (words,) = (words for words in lines if plane in ("", words[1]))
    return float(words[number].rstrip("%"))


def test_few_trees() -> None:
    eight, thirty_two, one = sentence(
        "docs/planning.md",
        r"two DGX H100: (\d+%) of the bound with 8 trees, (\d+%) with 32; the NVLinks of one "
        r"DGX-1V: (\d+%) with 8",
    )
    file = "planning-few-trees.txt"
    assert same(eight, column(file, "dgx-h100-x2", 4, "all"))
    assert same(thirty_two, column(file, "dgx-h100-x2", 6, "all"))
    assert same(one, column(file, "dgx1v", 4, "nvlink"))


def test_three_phases() -> None:
    low, high, h100, a100, mi250 = sentence(
        "docs/planning.md",
        r"\((\d+) and (\d+%) where hosts share .*? the bound on five of nine, (\d+%) on two DGX "
        r"H100, (\d+%) on two DGX A100, and (\d+%) on two MI250",
    )
    file = "planning-three-phase.txt"
    assert same(low, column(file, "rccl-4gpu-1nic-x2", 2))
    assert same(high, column(file, "rccl-4gpu-4nic-x2", 2))
    assert same(h100, column(file, "dgx-h100-x2", 4, "all"))
    assert same(a100, column(file, "dgx-a100-x2", 4, "all"))
    assert same(mi250, column(file, "mi250-16gcd-x2", 4))
    rates = {words[0]: words[4] for words in map(str.split, kept(file).splitlines()[3:])}
    assert len(rates) == 9
    assert sum(rate == "100.0%" for rate in rates.values()) == 5


def test_times_to_plan() -> None:
    limit, most, packed, optimal, largest = sentence(
        "docs/planning.md",
        r"up to 16 GPUs takes less than ([\d.]+) s .*? chips, (([\d.]+)) s for an all-reduce by "
        r"packed trees and ([\d.]+) s for a broadcast by optimal ones; two MI250 of 16 GCDs take "
        r"([\d.]+) s",
    )
    file = "planning-times.txt"
    lines = [line.split() for line in kept(file).splitlines()[4:]]
    seconds = [float(word) for words in lines if int(words[1]) <= 16 for word in words[2:]]
    assert max(seconds) < float(limit)
    assert same(most, max(seconds))
    assert same(packed, column(file, "dgx2-detailed", 6))
    assert same(optimal, column(file, "dgx2-detailed", 4))
    assert same(largest, column(file, "mi250-16gcd-x2", 6))
    (changelog,) = sentence("CHANGELOG.md", r"up to 16 GPUs is planned in less than ([\d.]+) s")
    assert changelog == limit


def test_clusters() -> None:
    hosts, limit, memory = sentence(
        "docs/planning.md",
        r"- (\d+) hosts of 8 H100 .*? the bound in less than a second, the plan in less than "
        r"(\d+), checked as a whole, ([\d.]+) GiB",
    )
    lines = [words for words in map(str.split, kept("planning-clusters.txt").splitlines()) if words]
    largest = [words for words in lines if words[0] == hosts]
    assert len(largest) == 4
    assert all(float(words[4]) < 1 and float(words[8]) < float(limit) for words in largest)
    assert all(words[6] == "100.0000%" and words[10] == "holds" for words in largest)
    assert same(memory, max(float(words[-1]) for words in largest))


def test_simulated_rates() -> None:
    least, apart = sentence(
        "docs/simulation.md", r"built-in engine came to ([\d.]+) or more, .*? agree to ([\d.]+\d)"
    )
    lines = [
        words for words in map(str.split, kept("simulation.txt").splitlines()) if len(words) == 7
    ]
    pairs = [(float(words[5]), float(words[6])) for words in lines if words[6][0].isdigit()]
    assert len(pairs) > 100
    assert min(builtin for builtin, _ in pairs) >= float(least)
    assert max(abs(a - b) for a, b in pairs) <= float(apart) * 1.001
    millions, ratio = sentence("docs/simulation.md", r"with ([\d.]+) million ([\d.]+\d),")
    (deepest,) = (
        words for words in lines if words[0] == "mi250-16gcd-x2" and words[2] == "all_reduce"
    )
    assert same(millions, float(deepest[4]) / 1e6)
    assert same(ratio, float(deepest[5]))


def test_number_of_rules() -> None:
    (shown,) = sentence("CHANGELOG.md", r"against (\d+) rules that NCCL relies on")
    made = (ROOT / "docs" / "check-plugin.md").read_text().partition("<!-- rules")[2]
    assert shown == str(len(re.findall(r"^\| `", made.partition("<!-- end")[0], flags=re.M)))


def test_mutants() -> None:
    report = kept("mutants.txt")
    head, _, *lines = report.splitlines()
    rows = [re.split(r"  +", line) for line in lines[: lines.index("")]]
    shown = table("docs/testing.md", "layer", "tried")
    columns = [rows[0].index(title) for title in shown[0]]
    assert shown == [[row[column] for column in columns] for row in rows]
    version, seed = re.findall(r"\d[\d.]*", head)[:2]
    noticed, tried = (rows[-1][rows[0].index(title)] for title in ("noticed", "tried"))
    pattern = r"version ([\d.]+), seed (\d+): (\d+) of (\d+) changes were noticed"
    assert sentence("docs/testing.md", pattern) == (version.rstrip("."), seed, noticed, tried)
    for survivor in report.split("\nsurvived: ")[1:]:
        file = survivor.partition(":")[0]
        explained = "\n  explained: " in survivor
        assert explained or f"`{file}`" in (ROOT / "docs" / "testing.md").read_text(), file


@pytest.mark.parametrize(("shown", "figure", "wanted"), [("1.9", 1.85, True), ("1.9", 1.84, False)])
def test_a_figure_is_compared_as_it_is_rounded(shown: str, figure: float, wanted: bool) -> None:
    assert same(shown, figure) is wanted
