"""`ropewalk check-plugin`: whether a NCCL network plugin does what NCCL relies on, and how fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ropewalk import plugin_check
from ropewalk.cli import console
from ropewalk.cli.bench import parse_size

HELP = """
Check a NCCL or RCCL network plugin against the rules that NCCL relies on, and measure it.

The plugin is loaded as NCCL loads it, in the newest version that it exports (v4 to v12), and
driven as NCCL's threads drive it, mostly between two processes of this host. Each rule is checked
in processes of its own: a plugin that crashes or hangs fails that rule, by the name of the
function, and the next one goes on. No GPU is needed; where there is one, GPU memory is checked too.

One line per rule says passed, failed (what was expected, what came, which warnings the plugin
logged meanwhile) or skipped (what is missing). Then follow latency and bandwidth per size, beside
what copying the same memory without a plugin does in the same run.

Examples:

\b
  ropewalk check-plugin libnccl-net-ropewalk.so
      all rules, then the measures
  ropewalk check-plugin ./libnccl-net-mine.so --only zero-bytes --only groups
      these rules, and those that they need
  ropewalk check-plugin ./libnccl-net-mine.so --version 8 --no-measure
      as NCCL 2.20 to 2.23 see it
  ropewalk check-plugin ./libnccl-net-mine.so -b 8 -e 64M -f 2 -J mine.json
  ropewalk check-plugin --list
      the rules, and what in NCCL relies on each

Exit status: 0 when no rule failed, 1 when one did, 2 for a wrong command line, 3 when the plugin
cannot be used on this machine (its init or devices says so), so that nothing was checked.
"""

UNUSABLE = ("library", "symbol", "members", "init", "devices")
"""rules without which nothing else can be checked"""


def sizes_between(begin: int, end: int, factor: int) -> list[int]:
    """Sizes from begin to end, each `factor` times the one before."""
    sizes = []
    size = begin
    while size <= end:
        sizes.append(size)
        size *= factor
    return sizes


def plugin_line(plugin: dict[str, Any]) -> str:
    """What was loaded."""
    others = ", ".join(f"v{number}" for number in plugin["versions"] if number != plugin["version"])
    also = f" (also {others})" if others else ""
    return f"# {plugin['name']}: {plugin['file']}, version {plugin['version']}{also}"


def log_lines(log: list[dict[str, Any]]) -> list[str]:
    """Warnings of the plugin, each with the process and the function that logged it."""
    lines = []
    for line in log:
        by = f" by the {line['side']}" if line["side"] else ""
        where = f" in {line['call']}" if line["call"] else ""
        lines.append(f"logged{by}{where}: {' '.join(line['text'].split())}")
    return lines


def device_line(number: int, device: dict[str, Any]) -> str:
    """One device of the plugin."""
    kinds = [
        name
        for name, key in (("host", "host_memory"), ("GPU", "gpu_memory"), ("DMA-BUF", "dma_buf"))
        if device[key]
    ]
    pci_path = f", {device['pci_path']}" if device["pci_path"] else ""
    return (
        f"# device {number}: {device['name']}, {device['speed_mbps'] / 1000:g} Gbit/s, "
        f"{' and '.join(kinds)} memory, {device['max_recvs']} grouped receives{pci_path}"
    )


def rule_lines(rule: dict[str, Any]) -> list[str]:
    """The outcome of a rule, and its reason."""
    lines = [f"{rule['outcome']:<7}  {rule['id']:<20} {rule['title']}"]
    if rule["outcome"] == "skipped":
        lines[0] += f" (missing: {rule['missing']})"
    elif rule["outcome"] == "failed":
        side = f"{rule['side']}: " if rule["side"] else ""
        lines.append(f"         {side}expected: {rule['expected']}")
        lines.append(f"         {' ' * len(side)}came:     {rule['came']}")
        lines += [f"         {line}" for line in log_lines(rule["log"])]
        if rule["log_left_out"]:
            lines.append(f"         and {rule['log_left_out']} other lines in its log")
    return lines


def measure_lines(measure: dict[str, Any]) -> list[str]:
    """Latency and bandwidth per size, as a table."""
    memory = "host memory" if measure["memory"] == "host" else "GPU memory"
    if "missing" in measure:
        return [f"# {memory}: not measured (missing: {measure['missing']})"]
    if "failed" in measure:
        return [f"# {memory}: not measured ({measure['failed']})"]
    lines = [
        f"# {memory}, two processes; medians (latency: half round trip)",
        f"#{'bytes':>11} {'latency us':>11} {'least us':>9} {'GB/s':>8} {'most':>8}"
        f" {'memcpy':>8} {'of it':>6} {'vm_readv':>9} {'of it':>6}",
    ]

    def number(value: Optional[float], width: int, digits: int = 2) -> str:
        return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"

    def median(row: dict[str, Any], key: str) -> Optional[float]:
        return None if row[key] is None else row[key]["median"]

    for row in measure["sizes"]:
        lines.append(
            f"{row['bytes']:>12} {number(row['latency_us']['median'], 11)}"
            f" {number(row['latency_us']['min'], 9)} {number(median(row, 'bandwidth'), 8, 3)}"
            f" {number((row['bandwidth'] or {}).get('max'), 8, 3)}"
            f" {number(median(row, 'memcpy'), 8)} {number(row['of_memcpy'], 6)}"
            f" {number(median(row, 'kernel_copy'), 9)} {number(row['of_kernel_copy'], 6)}"
        )
    return lines


def summary(rules: list[dict[str, Any]]) -> str:
    """How many passed, failed and were skipped."""
    count = {
        outcome: sum(rule["outcome"] == outcome for rule in rules)
        for outcome in ("passed", "failed", "skipped")
    }
    return ", ".join(f"{number} {outcome}" for outcome, number in count.items())


def list_lines(rules: list[dict[str, Any]]) -> list[str]:
    """The rules with what relies on them."""
    lines = []
    for rule in rules:
        lines += [f"{rule['id']}: {rule['title']}", f"    {rule['relies']}", f"    {rule['where']}"]
    return lines


def print_part(part: dict[str, Any]) -> None:
    """What was found, as text."""
    if "plugin" in part:
        print(plugin_line(part["plugin"]))
        for number, device in enumerate(part["plugin"]["devices"]):
            print(device_line(number, device))
        for line in log_lines(part["plugin"]["log"]):
            print(f"# {line}")
    elif "rule" in part:
        print("\n".join(rule_lines(part["rule"])), flush=True)
    elif "measure" in part:
        print("\n".join(measure_lines(part["measure"])), flush=True)


def exit_status(rules: list[dict[str, Any]]) -> int:
    """1 when a rule failed, 3 when the plugin says that it cannot be used here."""
    if any(rule["outcome"] == "failed" for rule in rules):
        return console.WRONG
    if any(rule["outcome"] == "skipped" and rule["id"] in UNUSABLE for rule in rules):
        return console.FAILURE
    return console.OK


def check_plugin(
    file: Annotated[
        Optional[str], typer.Argument(metavar="[FILE]", help="The plugin's library.")
    ] = None,
    only: Annotated[
        Optional[list[str]],
        typer.Option("--only", metavar="RULE", help="Check this rule. Repeatable; default: all."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the rules and end.")] = False,
    version: Annotated[
        Optional[int],
        typer.Option("--version", help="Version of the interface; default: the newest exported."),
    ] = None,
    device: Annotated[int, typer.Option("--device", help="Device of the plugin.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="After which a wait for the plugin fails."
        ),
    ] = 10,
    connections: Annotated[
        int, typer.Option("--connections", help="Connections that rule leaks opens and closes.")
    ] = 1000,
    large: Annotated[
        bool, typer.Option("--large", help="Check a message above 2 GiB (4.5 GiB of memory) too.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure latency and bandwidth.")
    ] = True,
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size measured.")] = "8",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size measured.")] = "8M",
    factor: Annotated[int, typer.Option("-f", "--stepfactor", help="From size to size.")] = 4,
    log: Annotated[
        bool, typer.Option("--log", help="Show the plugin's log on standard error.")
    ] = False,
    output_file: Annotated[
        Optional[Path],
        typer.Option("-J", "--output_file", help="Write the results to this .json file too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """See HELP."""
    with console.reported():
        if list_:
            rules = plugin_check.rules()
            print(json.dumps(rules) if as_json else "\n".join(list_lines(rules)))
            return
        if file is None:
            console.fail("FILE is missing: the plugin's library", console.USAGE)
        first, last = parse_size(begin, "-b"), parse_size(end, "-e")
        if factor < 2:
            console.fail(f"-f {factor}: at least 2", console.USAGE)
        if first < 1 or first > last:
            console.fail(f"-b {begin} -e {end}: sizes from at least 1 up", console.USAGE)
        if not 0 < timeout <= 3600:
            console.fail(f"--timeout {timeout:g}: above 0, at most 3600 s", console.USAGE)
        if connections < 1:
            console.fail(f"--connections {connections}: at least 1", console.USAGE)
        report: dict[str, Any] = {"plugin": None, "rules": [], "measures": []}
        for part in plugin_check.check(
            file,
            version=version,
            device=device,
            only=only or (),
            sizes=sizes_between(first, last, factor) if measure and not only else (),
            timeout=timeout,
            connections=connections,
            large=large,
            log=log,
        ):
            if "rule" in part:
                report["rules"].append(part["rule"])
            elif "measure" in part:
                report["measures"].append(part["measure"])
            else:
                report.update(part)
            if not as_json:
                print_part(part)
    if as_json:
        print(json.dumps(report))
    else:
        for key, text in (
            ("fairness", "of 4 connections the slowest had {:.2f} of the messages of the fastest"),
            ("connections_per_second", "{:.0f} connections opened and closed a second"),
        ):
            if key in report:
                print("# " + text.format(report[key]))
        print(f"# {summary(report['rules'])}")
    if output_file is not None:
        try:
            output_file.write_text(json.dumps(report, indent=1) + "\n")
        except OSError as error:
            console.fail(f"-J {output_file}: {error.strerror}", console.USAGE)
    raise typer.Exit(exit_status(report["rules"]))
