"""The text table and the check of the targets."""

from __future__ import annotations

from libraries import TITLES
from limits import Limits, bound_us
from results import Place, Results

NOTES = """\
Times in microseconds per operation: mean over iterations, then {over_ranks}, then the
{statistic} of {rounds} rounds in which the libraries took turns. Float32, sum, root 0.
{form}
bytes as in nccl-tests: the larger of what a rank sends and receives. {loop}
{memory}
Of several settings of a library the best at each size stands here; the JSON has all.
Gloo (through PyTorch, the loop in Python) has TCP only: its column is the same in both media.
N/A under a table: the library cannot do that.
limit: what this machine's cores and memory allow any library (hops, bytes over bandwidth); it
does not know of TCP, and no TCP transport comes near it.
Under libfabric Ropewalk over its own transport tcp is one of the peers (own tcp).
ratio: Ropewalk over the best peer, below 1 is faster. /limit: Ropewalk (without it, the best peer)
over the limit."""


OUT_OF_PLACE = "Out of place where the library has that form (broadcast: in place everywhere)."
IN_PLACE = """\
In place: one buffer for input and output, of reduce, gather and scatter at the root. The output of
a reduce-scatter is at the buffer's begin under MPI, in the rank's own block under Ropewalk."""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.4g}"


def bound_of(results: Results, limits: Limits, place: Place) -> float:
    scenarios = results.document["scenarios"]
    assert isinstance(scenarios, dict)
    scenario = scenarios[place.scenario]
    return bound_us(
        limits,
        place.operation,
        scenario["ranks"],
        len(scenario["cpus"]),
        place.size,
        bool(results.document["blocking"]),
        results.document.get("region_bytes", 0) != 0,
        bool(results.document.get("in_place")),
    )


def limits_of(results: Results) -> Limits:
    facts = results.document["limits"]
    assert isinstance(facts, dict)
    return Limits.from_json(facts)


def _heading(results: Results, limits: Limits) -> list[str]:
    document = results.document
    machine = document["machine"]
    versions = document["versions"]
    assert isinstance(machine, dict) and isinstance(versions, dict)
    lines = ["# Collectives on host memory: Ropewalk and its peers", "#"]
    lines += [f"# {key.replace('_', ' ')}: {value}" for key, value in machine.items()]
    lines += [f"# {TITLES[key]}: {value}" for key, value in versions.items()]
    lines += [f"# {key}: {document[key]}" for key in ("commit", "command", "start", "end")]
    load = document["load_average"]
    assert isinstance(load, list)
    lines.append(f"# load average: {load[0]:.2f} before, {load[-1]:.2f} after")
    lines.append("#")
    copies = ", ".join(f"{rate:.1f} at {_size(at)}" for at, rate in limits.copy_gb_per_s)
    reads = ", ".join(f"{rate:.1f} at {_size(at)}" for at, rate in limits.read_gb_per_s)
    lines.append(
        f"# cache line, one way: {limits.line_one_way_us * 1e3:.0f} ns; many at once: "
        f"{limits.line_stream_us * 1e3:.1f} ns each; switch of processes on a core: "
        f"{limits.switch_us * 1e3:.0f} ns"
    )
    lines.append(f"# one core copies, GB/s: {copies}")
    lines.append(f"# one core reads, GB/s: {reads}")
    facts = document["facts"]
    assert isinstance(facts, dict)
    copy = facts.get("openmpi_single_copy_mechanism", "unknown")
    permitted = "permitted" if limits.single_copy else "refused by the kernel"
    lines.append(f"# kernel-assisted copy: {permitted}; Open MPI vader uses: {copy}")
    lines.append("#")
    loop = "Iterations back to back."
    if document["blocking"]:
        loop = "A barrier after each iteration."
    over_ranks = "that of the last rank" if document.get("over_ranks") == "max" else "over ranks"
    notes = NOTES.format(
        statistic=results.statistic,
        rounds=document["rounds"],
        over_ranks=over_ranks,
        form=IN_PLACE if document.get("in_place") else OUT_OF_PLACE,
        loop=loop,
        memory=_memory(document.get("region_bytes", 0)),
    )
    return lines + [f"# {line}" for line in notes.splitlines()]


def _memory(region: object) -> str:
    if not region:
        return "Hot: all operations use the same buffers, from caches that hold them."
    assert isinstance(region, int)
    return (
        f"Fresh: each operation uses other memory, within {_size(region)} of input, and of output"
        " (in place: of both)."
    )


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def table(results: Results) -> str:
    """Everything, as text."""
    limits = limits_of(results)
    lines = _heading(results, limits)
    libraries = results.libraries()
    scenarios = results.document["scenarios"]
    assert isinstance(scenarios, dict)
    titles = [TITLES[name] for name in libraries]
    for scenario in results.scenarios():
        lines += ["", f"## {scenarios[scenario]['title']}"]
        for operation in results.operations(scenario):
            columns = "".join(f"{title:>11}" for title in titles)
            lines += ["", operation]
            lines.append(f"{'bytes':>11}{columns}{'limit':>11}{'ratio':>8}{'/limit':>8}  best peer")
            for place in results.rows(scenario, operation):
                lines.append(_row(results, limits, libraries, place))
    failures = results.document["failures"]
    assert isinstance(failures, list)
    lines += [""] + [f"N/A: {text}" for text in results.document.get("obstacles", [])]
    lines += [f"failed: {failure}" for failure in failures]
    lines += [f"WRONG: {text}" for text in results.wrong()]
    return "\n".join(lines).rstrip() + "\n"


def _row(results: Results, limits: Limits, libraries: list[str], place: Place) -> str:
    found = {name: results.best(place, name) for name in libraries}
    bound = bound_of(results, limits, place)
    peer = results.best_peer(place)
    own = found.get("ropewalk")
    ratio = own.time_us / peer.time_us if own and peer else None
    shown = own or peer
    distance = shown.time_us / bound if shown else None
    times = "".join(f"{_number(best.time_us if best else None):>11}" for best in found.values())
    name = f"{TITLES[peer.library]} ({peer.setting})" if peer else "-"
    return (
        f"{place.size:>11}{times}{_number(bound):>11}"
        f"{'-' if ratio is None else f'{ratio:.2f}':>8}"
        f"{'-' if distance is None else f'{distance:.1f}':>8}  {name}"
    )


def target_of(results: Results, place: Place) -> float | None:
    """The target: the largest allowed ratio to the best peer's time; None: no target."""
    scenarios = results.document["scenarios"]
    assert isinstance(scenarios, dict)
    scenario = scenarios[place.scenario]
    if scenario["medium"] in ("tcp", "mixed"):
        # Senders that run ahead of the root make the mean of the ranks say little over sockets.
        return 1.1 if results.document.get("over_ranks") == "max" else None
    if scenario["medium"] == "ofi" and results.document.get("over_ranks") == "max":
        return 1.0 if place.size >= 64 << 10 else 1.2
    if scenario["medium"] != "shm":
        return None
    if scenario["ranks"] > len(scenario["cpus"]):
        return 1.1
    if place.operation == "all_reduce" and place.size >= 64 << 10:
        return 0.7
    return 0.9


def check(results: Results) -> tuple[list[str], int]:
    """Misses of the targets, one line each, worst first, and the number of checked figures."""
    misses: list[tuple[float, str]] = []
    checked = 0
    for place in results.places:
        target = target_of(results, place)
        peer = results.best_peer(place)
        if target is None or peer is None:
            continue
        checked += 1
        own = results.best(place, "ropewalk")
        where = f"{place.scenario} {place.operation} {place.size} B"
        if own is None:
            misses.append((float("inf"), f"{where}: Ropewalk has no figure"))
            continue
        ratio = own.time_us / peer.time_us
        if ratio > target:
            misses.append(
                (
                    ratio / target,
                    f"{where}: {_number(own.time_us)} us is {ratio:.2f} of {TITLES[peer.library]} "
                    f"({peer.setting}) {_number(peer.time_us)} us, target {target:g}",
                )
            )
    misses.sort(key=lambda miss: -miss[0])
    return [text for _, text in misses], checked
