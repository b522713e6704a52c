"""Compiles kernels for every kind of GPU, with CUDA 12 and 13: `make cuda-architectures`.

nvcc compiles for what it knows (sm_75 to sm_121 by CUDA 13). CUDA 12, the last that has sm_70,
has no nvcc on PyPI, but its compiler as a library (NVRTC) and its headers: the kernels go through
that, and the host's sources are checked against its runtime's headers. Nothing is linked, no GPU
is needed, and the objects are thrown away. What a compiler does not have is skipped by name.

    dev/cuda_architectures.py --site build/cuda12/lib/python3.11/site-packages --jobs 2
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "tests" / "cuda_architectures" / "kernels.cu"
# V100; T4; A100; A10, A40, RTX 30; L4, L40S, RTX 40; H100, H200; B200; B300; RTX 50.
WANTED = [70, 75, 80, 86, 89, 90, 100, 103, 120]


def nvcc_path() -> str | None:
    return os.environ.get("CUDACXX") or shutil.which("nvcc")


def nvcc_architectures(nvcc: str) -> list[int]:
    listed = subprocess.run(
        [nvcc, "--list-gpu-arch"], check=True, capture_output=True, text=True
    ).stdout
    return [int(number) for number in re.findall(r"compute_(\d+)\b", listed)]


@functools.cache
def quickly(nvcc: str) -> list[str]:
    """Options for code that nothing runs, where this nvcc has them (12.9 and later)."""
    help_text = subprocess.run([nvcc, "--help"], capture_output=True, text=True).stdout
    return ["--Ofast-compile=max"] if "--Ofast-compile" in help_text else []


def by_nvcc(nvcc: str, architecture: int) -> str:
    """Compiles for one architecture. Returns what went wrong."""
    run = subprocess.run(
        [
            *(nvcc, "-cubin", f"-arch=sm_{architecture}", "-std=c++20", "--fmad=false"),
            *(
                "--expt-relaxed-constexpr",
                "-Werror",
                "all-warnings",
                f"-I{ROOT}/src",
                f"-I{ROOT}/include",
            ),
            *quickly(nvcc),
            *(str(KERNELS), "-o", os.devnull),
        ],
        capture_output=True,
        text=True,
    )
    return (
        ""
        if run.returncode == 0
        else (run.stdout + run.stderr).strip() or f"exit status {run.returncode}"
    )


class Nvrtc:
    """NVIDIA's compiler for device code, as a library."""

    def __init__(self, site: Path) -> None:
        nvidia = site / "nvidia"
        self.library = ctypes.CDLL(str(next((nvidia / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*"))))
        self.includes = [
            ROOT / "tests" / "cuda_architectures" / "nvrtc_std",
            ROOT / "src",
            ROOT / "include",
            *(nvidia / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")),
        ]

    def version(self) -> str:
        """As "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> list[int]:
        """Those that it compiles for: 70 is sm_70."""
        count = ctypes.c_int()
        self._check(self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self.library.nvrtcGetSupportedArchs(numbers))
        return list(numbers)

    def compile(self, architecture: int) -> str:
        """As by_nvcc()."""
        program = ctypes.c_void_p()
        source = KERNELS.read_bytes()
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source, KERNELS.name.encode(), 0, None, None
            )
        )
        options = [
            *(f"--gpu-architecture=sm_{architecture}", "--std=c++20", "--fmad=false"),
            *(
                "--device-as-default-execution-space",
                *(f"--include-path={path}" for path in self.includes),
            ),
        ]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self.library.nvrtcCompileProgram(program, len(options), encoded)
        log = self._log(program)
        size = ctypes.c_size_t()
        if status == 0:
            status = self.library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        if status != 0:
            return log or f"NVRTC: error {status}"
        return "" if size.value else "NVRTC has made no code"

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(self.library.nvrtcGetProgramLog(program, log))
        return log.value.decode(errors="replace").strip()

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"NVRTC: error {status}")


def host_sources() -> list[Path]:
    found = [*ROOT.glob("src/**/cuda/*.cc")]
    return sorted(path for path in found if not path.name.endswith("_test.cc"))


def check_host_source(site: Path, source: Path) -> str:
    """Whether a source of the host's fits the headers of CUDA 12's runtime."""
    run = subprocess.run(
        [
            *(
                os.environ.get("CXX", "c++"),
                "-std=c++20",
                "-fsyntax-only",
                "-Wall",
                "-Wextra",
                "-Werror",
            ),
            *(f"-I{ROOT}/src", f"-I{ROOT}/include"),
            *(f"-isystem{site}/nvidia/{part}/include" for part in ("cuda_runtime", "cuda_nvcc")),
            str(source),
        ],
        capture_output=True,
        text=True,
    )
    return "" if run.returncode == 0 else run.stderr.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--site", type=Path, help="folder with CUDA 12's packages of PyPI (nvidia/cuda_nvrtc, ...)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()

    tasks: list[tuple[str, Callable[[], str]]] = []
    skipped: list[str] = []
    covered: set[int] = set()

    def add(compiler: str, architectures: list[int], compile_one: Callable[[int], str]) -> None:
        for number in WANTED:
            if number not in architectures:
                skipped.append(f"{compiler}: sm_{number}: this compiler does not have it")
                continue
            covered.add(number)
            tasks.append((f"{compiler}: sm_{number}", lambda number=number: compile_one(number)))  # type: ignore[misc]

    nvcc = nvcc_path()
    if nvcc is None:
        skipped.append("nvcc: not found (PATH, CUDACXX)")
    else:
        release = re.search(
            r"release ([\d.]+)",
            subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout,
        )
        add(
            f"nvcc {release[1] if release else ''}",
            nvcc_architectures(nvcc),
            lambda number: by_nvcc(nvcc, number),
        )
    if args.site is None or not (args.site / "nvidia" / "cuda_nvrtc").is_dir():
        skipped.append("NVRTC of CUDA 12: not installed (make build/.cuda12)")
    else:
        site: Path = args.site
        nvrtc = Nvrtc(site)
        add(f"NVRTC {nvrtc.version()}", nvrtc.architectures(), nvrtc.compile)
        for source in host_sources():
            tasks.append(
                (
                    f"headers of CUDA {nvrtc.version()}: {source.relative_to(ROOT)}",
                    lambda source=source: check_host_source(site, source),  # type: ignore[misc]
                )
            )
    begin = time.monotonic()
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for (name, _), wrong in zip(tasks, pool.map(lambda task: task[1](), tasks), strict=True):
            print(f"{name}: {'FAILED' if wrong else 'compiled'}", flush=True)
            if wrong:
                failed += 1
                print(wrong[:4000])
    told = [f"skipped: {line}" for line in skipped]
    told += [f"compiled by none: sm_{number}" for number in WANTED if number not in covered]
    told.append(
        f"{len(tasks) - failed} compiled, {failed} failed, {len(skipped)} skipped, "
        f"{time.monotonic() - begin:.0f} s"
    )
    print("\n".join(told))
    if summary := os.environ.get("RW_SUMMARY"):
        with Path(summary).open("a") as file:
            file.writelines(f"GPU architectures: {line}\n" for line in told)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
