"""The libraries under comparison: how each is built, started and read.

A *setting* is a set of options with which a library is started: if a library has options that
matter (its own shared-memory path or UCX's, ranks bound or free), all of them run, and the table
shows the best at each size.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import ROOT, LaunchError, run_program
from ranks import start_ranks

HERE = Path(__file__).resolve().parent
TITLES = {
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "ucc": "UCC",
    "gloo": "Gloo",
    "own_tcp": "own tcp",
    "ropewalk": "Ropewalk",
}
# In scenarios over libfabric Ropewalk's own transport `tcp` is a peer of its `ofi`.
PEERS = ("openmpi", "mpich", "ucc", "gloo", "own_tcp")

# How the ranks' times become one: its key in a row of mpi_bench and gloo_bench, and `bench -a`.
OVER_RANKS = {"mean": ("avg_us", "1"), "max": ("max_us", "3")}

# Open MPI refuses to run as root, as in containers, unless both variables are set.
OPENMPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# The provider that needs no hardware, and that all can use; from libfabric 1.18 on also `tcp`.
FABRIC = "tcp;ofi_rxm"

# The only form of these that PyTorch has; its others have separate outputs only.
GLOO_IN_PLACE = frozenset({"all_reduce", "reduce", "broadcast"})

# What MPI's launchers take for ssh when ranks of this machine are to be on two hosts.
OTHER_HOST = str(HERE / "other_host")


@dataclass(frozen=True)
class Scenario:
    """Where ranks run and how their bytes travel."""

    ranks: int
    medium: str  # "shm", "tcp", "ofi" or "mixed": half of the ranks as if on another host
    cpus: tuple[int, ...]
    fabric: str = FABRIC  # libfabric's provider, of "ofi"

    @property
    def name(self) -> str:
        return f"{self.ranks}-{self.medium}"

    @property
    def title(self) -> str:
        bound = "pinned to" if self.ranks <= len(self.cpus) else "on"
        medium = {
            "shm": "shared memory",
            "tcp": "TCP over the loopback interface",
            "ofi": f"libfabric's {self.fabric} over the loopback interface",
            "mixed": "as if on two hosts: shared memory within each, TCP over the loopback "
            "interface between them",
        }[self.medium]
        return f"{self.ranks} ranks {bound} {len(self.cpus)} cores, {medium}"

    @property
    def hosts(self) -> str:
        """Of "mixed", as mpirun takes them: each has half of the ranks, in order."""
        return f"near:{self.ranks // 2},far:{self.ranks - self.ranks // 2}"

    def host_of(self, rank: int) -> str:
        return "near" if rank < self.ranks // 2 else "far"


@dataclass(frozen=True)
class Setting:
    """A set of options with which a library is started."""

    library: str
    name: str
    launcher: tuple[str, ...] = ()  # options of mpirun
    environment: dict[str, str] = field(default_factory=dict)
    bound: bool = True  # each rank to one core; else to all cores of the scenario

    @property
    def title(self) -> str:
        return f"{self.library}: {self.name}"


@dataclass(frozen=True)
class SizePlan:
    size: int
    warmup: int
    iterations: int

    def __str__(self) -> str:
        return f"{self.size}:{self.warmup}:{self.iterations}"


@dataclass(frozen=True)
class Loop:
    """What is timed; the same for every library."""

    operation: str
    sizes: tuple[SizePlan, ...]
    blocking: bool
    over_ranks: str  # of OVER_RANKS
    limit_s: float  # per size, of a library that collapses
    region: int  # bytes of input, and of output, through which runs move; 0: hot
    in_place: bool = (
        False  # input and output are one buffer, of reduce, gather, scatter: the root's
    )

    @property
    def time_key(self) -> str:
        """Of a row."""
        return OVER_RANKS[self.over_ranks][0]


def settings_of(library: str, scenario: Scenario) -> list[Setting]:
    """The settings to run, the most usual first."""
    crowded = scenario.ranks > len(scenario.cpus)
    if library == "openmpi":
        return _openmpi(scenario, crowded)
    if library == "mpich":
        return _mpich(scenario)
    if library == "ucc":
        return _ucc(scenario, crowded)
    if library == "gloo":
        # With binding Gloo's threads share the rank's one core, which costs more than it gains.
        return [Setting("gloo", "free", bound=False), Setting("gloo", "bound")]
    environment = {}
    if scenario.medium == "tcp" or library == "own_tcp":
        # Unnamed, the network of one host's ranks would be shared memory.
        environment = {
            "ROPEWALK_LINKS": "network",
            "ROPEWALK_SOCKET_IFNAME": "=lo",
            "ROPEWALK_NET": "tcp",
        }
    elif scenario.medium == "ofi":
        environment = {
            "ROPEWALK_LINKS": "network",
            "ROPEWALK_SOCKET_IFNAME": "=lo",
            "ROPEWALK_NET": "ofi",
            "ROPEWALK_OFI_PROVIDER": scenario.fabric,
        }
    elif scenario.medium == "mixed":
        environment = {"ROPEWALK_SOCKET_IFNAME": "=lo", "ROPEWALK_NET": "tcp"}
    return [Setting(library, "bound", environment=environment)]


def _openmpi(scenario: Scenario, crowded: bool) -> list[Setting]:
    def setting(name: str, *options: str, bound: bool = True) -> Setting:
        # mpi_bench binds itself, before MPI_Init, by the same rule under every launcher.
        launcher = ["-n", str(scenario.ranks), "--bind-to", "none"]
        if crowded:
            launcher += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        return Setting("openmpi", name, (*launcher, *options), OPENMPI_ENVIRONMENT, bound)

    def mca(**parameters: str) -> list[str]:
        return [word for key, value in parameters.items() for word in ("--mca", key, value)]

    if scenario.medium == "tcp":
        tcp = mca(pml="ob1", btl="tcp,self", btl_tcp_if_include="lo")
        if crowded:
            return [setting("tcp", *tcp), setting("tcp, free", *tcp, bound=False)]
        return [setting("tcp", *tcp), setting("tcp, 2 links", *tcp, *mca(btl_tcp_links="2"))]
    if scenario.medium == "mixed":
        mixed = mca(pml="ob1", btl="vader,tcp,self", btl_tcp_if_include="lo")
        mixed += mca(plm_rsh_agent=OTHER_HOST, oob_tcp_if_include="lo")
        mixed += ["--host", scenario.hosts]
        return [setting("vader, tcp", *mixed), setting("vader, tcp, free", *mixed, bound=False)]
    if scenario.medium == "ofi":
        ofi = mca(pml="cm", mtl="ofi", mtl_ofi_provider_include=scenario.fabric)
        if scenario.fabric == FABRIC:
            ofi += ["-x", "FI_TCP_IFACE=lo"]
        # With it Open MPI 5.0.11 does not start over `tcp` ("Unsupported address format"). What
        # ranks of one host send to another interface's address goes over the loopback one, too.
        return [setting("ofi", *ofi)]
    vader = mca(pml="ob1", btl="vader,self")
    # Without a fabric Open MPI does not select UCX, unless every transport is allowed.
    ucx = mca(pml="ucx", pml_ucx_tls="any", pml_ucx_devices="any", btl="^openib")
    ucx += ["-x", "UCX_TLS=posix,cma,self"]
    if crowded:
        free = setting("vader, free", *vader, bound=False)
        return [setting("vader", *vader), free, setting("ucx", *ucx)]
    flat = setting("vader, coll sm", *vader, *mca(coll_sm_priority="90"))
    return [setting("vader", *vader), setting("ucx", *ucx), flat]


def _mpich(scenario: Scenario) -> list[Setting]:
    def setting(name: str, *options: str, **environment: str) -> Setting:
        return Setting("mpich", name, ("-n", str(scenario.ranks), *options), environment)

    # Debian builds MPICH for ch4:ucx. It has no setting that yields an idle core
    # (MPIR_CVAR_POLLS_BEFORE_YIELD changes nothing): ranks that outnumber cores wait for the
    # scheduler's slice to end, milliseconds each.
    if scenario.medium == "tcp":
        return [setting("ucx tcp", MPIR_CVAR_NOLOCAL="1", UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")]
    if scenario.medium == "mixed":
        hosts = ["-launcher", "ssh", "-launcher-exec", OTHER_HOST, "-hosts", scenario.hosts]
        return [setting("posix, ucx tcp", *hosts, UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")]
    if scenario.medium == "ofi":
        return [
            setting(
                "ofi",
                MPIR_CVAR_NOLOCAL="1",
                MPIR_CVAR_CH4_NETMOD="ofi",
                FI_PROVIDER=scenario.fabric,
                FI_TCP_IFACE="lo",
            )
        ]
    if scenario.ranks > len(scenario.cpus):
        return [setting("posix")]
    return [setting("posix"), setting("ucx", MPIR_CVAR_NOLOCAL="1", UCX_TLS="posix,cma,self")]


def _ucc(scenario: Scenario, crowded: bool) -> list[Setting]:
    """UCC under Open MPI: the component `coll ucc` passes it the collectives that it supports."""
    launcher = ["-n", str(scenario.ranks), "--bind-to", "none"]
    if crowded:
        launcher += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    for key, value in {
        "pml": "ucx",
        "pml_ucx_tls": "any",
        "pml_ucx_devices": "any",
        "coll_ucc_enable": "1",
        "coll_ucc_priority": "100",
    }.items():
        launcher += ["--mca", key, value]
    shared = scenario.medium == "shm"
    launcher += ["-x", "UCX_TLS=posix,cma,self" if shared else "UCX_TLS=tcp,self"]
    launcher += [] if shared else ["-x", "UCX_NET_DEVICES=lo"]
    return [Setting("ucc", "ucx", tuple(launcher), OPENMPI_ENVIRONMENT)]


class Libraries:
    """The programs under comparison, compiled if necessary."""

    def __init__(
        self, build: Path, ropewalk: Path, python: str, prefixes: dict[str, Path] | None = None
    ) -> None:
        """`prefixes`: where `openmpi` and `mpich` are installed, if not as Debian installs them."""
        self.prefixes = prefixes or {}
        self.build = build
        self.ropewalk = ropewalk
        self.python = python
        self.versions: dict[str, str] = {}

    def program(self, mpi: str, name: str) -> str:
        """`mpicc` and the like of `openmpi` or `mpich`."""
        if mpi in self.prefixes:
            return str(self.prefixes[mpi] / "bin" / name)
        return f"{name}.{mpi}" if name in ("mpicc", "mpirun") else name

    def obstacle(self, library: str, scenario: Scenario, loop: Loop) -> str:
        """Why the library has no figures there; "" if it has."""
        if library == "mpich" and scenario.medium == "ofi" and not self._mpich_has_libfabric():
            return "built without libfabric (mpichversion)"
        if library == "gloo" and loop.in_place and loop.operation not in GLOO_IN_PLACE:
            return f"PyTorch has no {loop.operation} in place"
        if scenario.medium != "mixed" or library in ("ropewalk", "own_tcp"):
            return ""
        if library == "gloo":
            return "has TCP alone"
        if library == "ucc":
            return "UCX looks for itself which ranks are on its host"
        try:
            run_program([OTHER_HOST, "far", "true"])
        except LaunchError as error:
            return f"no host by another name: {error}"
        return ""

    def _mpich_has_libfabric(self) -> bool:
        lines = run_program([self.program("mpich", "mpichversion")]).splitlines()
        return any("Device" in line and "ofi" in line for line in lines)

    def name_libfabric(self) -> None:
        """Adds the version of the libfabric that Ropewalk loads to its own."""
        file = os.environ.get("ROPEWALK_OFI_LIBRARY", "libfabric.so.1")
        try:
            version = int(ctypes.CDLL(file).fi_version())
        except OSError:
            return
        self.versions["ropewalk"] += f", libfabric {version >> 16}.{version & 0xFFFF}"

    def prepare(self, library: str) -> None:
        """Builds what `library` needs, or throws LaunchError with what is missing."""
        self.build.mkdir(parents=True, exist_ok=True)
        if library in ("openmpi", "mpich"):
            compiler = self.program(library, "mpicc")
            if shutil.which(compiler) is None:
                packages = "openmpi-bin libopenmpi-dev" if library == "openmpi" else "mpich"
                advice = f"install Debian's {packages}, or give --{library} PREFIX"
                raise LaunchError(f"no {compiler}: {advice}")
            source = HERE / "mpi_bench.c"
            target = self.build / f"mpi_bench.{library}"
            run_program([compiler, "-std=c11", "-O2", str(source), "-o", str(target)])
        elif library == "ucc":
            # Debian 12 has neither UCC nor an Open MPI that was built with it.
            components = run_program([self.program("openmpi", "ompi_info"), "--parsable"])
            if "mca:coll:ucc:" not in components:
                raise LaunchError("this Open MPI has no component coll ucc")
            self.prepare("openmpi")
            self.versions["ucc"] = "through Open MPI's coll ucc"
        elif library == "gloo":
            probe = "import torch.distributed as d; assert d.is_gloo_available()"
            try:
                run_program([self.python, "-c", probe])
            except LaunchError as error:
                raise LaunchError(f"no torch with Gloo in {self.python}: {error}") from error
        elif not self.ropewalk.exists():
            raise LaunchError(f"no {self.ropewalk}: build Ropewalk, or give --ropewalk PATH")
        else:
            self.versions[library] = run_program([str(self.ropewalk), "--version"]).strip()

    def facts(self) -> dict[str, str]:
        """The facts that decide the speed of the peers' shared memory."""
        try:
            info = self.program("openmpi", "ompi_info")
            output = run_program([info, "--param", "btl", "vader", "--level", "9", "--parsable"])
        except LaunchError:
            return {}
        key = "btl_vader_single_copy_mechanism:value:"
        values = [line.split(key)[1] for line in output.splitlines() if key in line]
        return {"openmpi_single_copy_mechanism": values[0] if values else "unknown"}

    def measure(
        self, setting: Setting, scenario: Scenario, loop: Loop, factor: int
    ) -> tuple[list[dict[str, float]], str]:
        """One launch: a row for each size, and the error if any.

        A row is {size, iterations, avg_us or max_us, or both, wrong}.
        Rows that were complete before a failure count; "" when nothing failed.
        """
        cpus = ",".join(str(cpu) for cpu in scenario.cpus)
        fence = ["taskset", "-c", cpus]  # those cores of a larger machine, for free ranks too
        limit_s = 30 + 4 * loop.limit_s * len(loop.sizes)
        if setting.library in ("ropewalk", "own_tcp"):
            return self._measure_ropewalk(setting, scenario, loop, factor, fence)
        if setting.library == "gloo":
            command = [*fence, self.python, "-W", "ignore", str(HERE / "gloo_bench.py")]
            command += ["--ranks", str(scenario.ranks), "--limit-s", str(loop.limit_s)]
            command += ["--cpus", cpus] if setting.bound else []
            command += ["--blocking"] if loop.blocking else []
            command += ["--region", str(loop.region)]
        else:
            mpi = "openmpi" if setting.library == "ucc" else setting.library
            program = str(self.build / f"mpi_bench.{mpi}")
            command = [*fence, self.program(mpi, "mpirun"), *setting.launcher, program]
        command += [loop.operation]
        if setting.library != "gloo":
            command += [cpus if setting.bound else "-", str(int(loop.blocking)), str(loop.limit_s)]
            command += [str(loop.region), str(int(loop.in_place))]
        command += [str(plan) for plan in loop.sizes]
        failure = ""
        try:
            output = run_program(command, setting.environment, limit_s)
        except LaunchError as error:
            output, failure = error.output, str(error)
        rows = []
        for line in output.splitlines():
            if not (line.startswith("{") and line.endswith("}")):
                continue
            row = json.loads(line)
            if "library" in row:
                self.versions.setdefault(setting.library, row["library"])
            else:
                rows.append(row)
        return rows, failure

    def _measure_ropewalk(
        self, setting: Setting, scenario: Scenario, loop: Loop, factor: int, fence: list[str]
    ) -> tuple[list[dict[str, float]], str]:
        rows: list[dict[str, float]] = []
        for run in runs_of_equal_iterations(loop.sizes, factor):
            with tempfile.TemporaryDirectory() as folder:
                # As in nccl-tests, `bench -J` does not overwrite an existing file.
                file = Path(folder) / "results.json"
                command = [*fence, str(self.ropewalk), "bench", loop.operation]
                command += ["--pin"]
                command += ["-b", str(run[0].size), "-e", str(run[-1].size), "-f", str(factor)]
                command += ["-n", str(run[0].iterations), "-w", str(run[0].warmup)]
                command += ["-z", str(int(loop.blocking)), "-c", "1", "-d", "float", "-o", "sum"]
                command += ["-r", "0", "-J", str(file)]
                command += ["-a", OVER_RANKS[loop.over_ranks][1]]
                command += [] if loop.region else ["--hot"]
                try:
                    _run_ropewalk(command, setting, scenario)
                    rows += rows_of_bench(json.loads(file.read_text()), loop, run[0].iterations)
                except (LaunchError, KeyError, TypeError, ValueError) as error:
                    return rows, f"{type(error).__name__}: {error}"
        return rows, ""


def _run_ropewalk(command: list[str], setting: Setting, scenario: Scenario) -> None:
    if scenario.medium != "mixed":
        run_program([*command, "--ranks", str(scenario.ranks)], setting.environment, 120)
        return
    hosts = [{"ROPEWALK_HOST_ID": scenario.host_of(rank)} for rank in range(scenario.ranks)]
    environments = [setting.environment | host for host in hosts]
    start_ranks(Path(command[0]), command[1:], environments, 120)


def rows_of_bench(document: dict[str, Any], loop: Loop, iterations: int) -> list[dict[str, float]]:
    """The rows of a file that `ropewalk bench -J` wrote."""
    moved = document["buffers"]["region_bytes"]
    if moved != loop.region:
        raise LaunchError(f"buffers moved through {moved} bytes, not {loop.region}")
    # MPI and PyTorch broadcast in place alone.
    column = "in_place" if loop.in_place or loop.operation == "broadcast" else "out_of_place"
    return [
        {
            "size": int(result["size"]),
            "iterations": iterations,
            loop.time_key: float(result[column]["time"]),
            "wrong": int(float(result[column]["nwrong"] or 0)),
        }
        for result in document["results"]
    ]


def runs_of_equal_iterations(sizes: tuple[SizePlan, ...], factor: int) -> list[list[SizePlan]]:
    """Cuts `sizes` into stretches that one call of `bench` (-b -e -f -n -w) covers."""
    runs: list[list[SizePlan]] = []
    for plan in sizes:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and plan.size == last.size * factor
            and (plan.warmup, plan.iterations) == (last.warmup, last.iterations)
        ):
            runs[-1].append(plan)
        else:
            runs.append([plan])
    return runs


def default_python() -> str:
    """The Python of the project's environment if there is one, else the running interpreter."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable
