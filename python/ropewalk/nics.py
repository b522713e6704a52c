"""The choice of a NIC for each channel, and the graph file for NCCL."""

from __future__ import annotations

import json
from typing import Any, Optional

from ropewalk._library import json_of, library
from ropewalk.arguments import a
from ropewalk.topology import Topology


def nic_report(
    topology: Topology,
    *,
    host: int = 0,
    measured: Optional[dict[str, float]] = None,
    channels: int = 0,
    one_rail: bool = False,
    graph: str = "",
) -> dict[str, Any]:
    """Compares rules that assign a host's NICs to channels.

    Args:
        topology: the machine; a single host is judged as two equal hosts.
        host: whose NICs.
        measured: rates of NICs in GB/s by id, instead of nominal ones.
        channels: how many; 0 for what lets every NIC have its share.
        one_rail: the network joins only NICs with the same number on their hosts.
        graph: text of a graph file to judge as well.

    Returns:
        "rules" (first-ring, least-used, balanced, and given), each with rate, loads and channels;
        "ratio" of balanced to first-ring; "graph", the file's text; "environment"; "words".

    Raises:
        ArgumentError: the host, its GPUs or NICs are not there, or the graph file is wrong.
    """
    request = {
        "host": host,
        "measured": measured or {},
        "channels": channels,
        "one_rail": one_rail,
        "graph": graph,
    }
    machine: Topology = a(Topology, topology, "topology")
    report: dict[str, Any] = json_of(
        library().rwNicReport, machine.c_handle, json.dumps(request).encode()
    )
    return report
