"""Compilers of kernels: found, asked for their version, and how each is called.

Calls are from the folder of a kernel's sources and name everything by relative paths: no path is in the output.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from day0.errors import EvidenceMissing, InputError, Unavailable

#: What every kernel is compiled with, before its own flags.
_COMMON = ("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp", "-Wall", "-Wno-psabi")
#: The version of torch's stable ABI that kernels are written to: with later headers they load in torch 2.10 and on.
TORCH_TARGET = "0x020A000000000000"
_CAPABILITY = re.compile(r"^sm_(\d{2,3}[af]?)$")


@dataclass(frozen=True)
class Compiler:
    """A compiler by its path, with the first line of what it says of itself."""

    path: str
    version: str


@dataclass(frozen=True)
class Torch:
    """The installed torch, found without importing it."""

    folder: Path
    version: str

    @property
    def includes(self) -> list[Path]:
        return [self.folder / "include", self.folder / "include" / "torch" / "csrc" / "api" / "include"]

    @property
    def library(self) -> Path:
        return self.folder / "lib"


def installed_torch() -> Torch:
    """Raises EvidenceMissing: torch is not installed here."""
    from importlib.metadata import version

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise EvidenceMissing("kernels need torch, which is not installed here: pip install 'day0[reference]'")
    return Torch(Path(spec.origin).parent, version("torch"))


def cxx() -> Compiler:
    """`$CXX`, g++ or clang++.

    Raises:
        Unavailable: there is none.
    """
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++"]:
        if path := shutil.which(name):
            return Compiler(path, _version(path))
    asked = f"CXX={wanted} is no program" if wanted else "there is neither g++ nor clang++ here"
    raise Unavailable(f"{asked}: install a C++ compiler (apt-get install g++) or set CXX to one")


def nvcc() -> Compiler:
    """nvcc of `$CUDA_HOME`, of PATH, of /usr/local/cuda*, or of NVIDIA's wheels (the extra `cuda`).

    Raises:
        Unavailable: there is none.
    """
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    on_path = shutil.which("nvcc")
    candidates = [home / "bin" / "nvcc" for home in homes]
    candidates += [Path(on_path)] if on_path else []
    candidates += [home / "bin" / "nvcc" for home in sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    wheels = importlib.util.find_spec("nvidia")
    for packages in wheels.submodule_search_locations or () if wheels else ():
        candidates += [home / "bin" / "nvcc" for home in sorted(Path(packages).glob("cu[0-9]*"), reverse=True)]
    for path in candidates:
        if os.access(path, os.X_OK):
            return Compiler(str(path), _version(str(path)))
    raise Unavailable(
        "there is no nvcc here, in CUDA_HOME, on PATH or in /usr/local/cuda: pip install 'day0[cuda]', or install the "
        "CUDA toolkit and set CUDA_HOME (no GPU is needed to compile)"
    )


def triton() -> Compiler:
    """The interpreter that has Triton, and Triton's version.

    Raises:
        EvidenceMissing: there is no Triton here.
    """
    from importlib.metadata import version

    if importlib.util.find_spec("triton") is None:
        raise EvidenceMissing("Triton, which compiles this kernel, is not installed here: pip install 'day0[kernels]'")
    return Compiler(sys.executable, f"triton {version('triton')}")


def capabilities(architectures: tuple[str, ...]) -> tuple[str, ...]:
    """("sm_90", "sm_120") as ("90", "120"): what nvcc compiles for.

    Raises:
        InputError: one is no architecture of NVIDIA's.
    """
    found = []
    for name in architectures:
        match = _CAPABILITY.match(name)
        if not match:
            raise InputError(f"{name!r} is no architecture that nvcc compiles for, such as sm_90")
        found.append(match[1])
    return tuple(dict.fromkeys(found))


def cxx_command(
    compiler: Compiler, torch: Torch, sources: tuple[str, ...], flags: tuple[str, ...], output: str
) -> list[str]:
    """One call from sources to a library."""
    return [
        compiler.path,
        *_COMMON,
        *flags,
        _unplaced(torch),
        *_torch_flags(torch),
        *sources,
        "-o",
        output,
        "-Wl,--build-id=none",
        *_linked(torch),
    ]


def nvcc_command(
    compiler: Compiler,
    torch: Torch,
    sources: tuple[str, ...],
    flags: tuple[str, ...],
    architectures: tuple[str, ...],
    output: str,
    scratch: str,
) -> list[str]:
    """The same by nvcc, with a binary for each architecture and PTX of the last for later ones.

    Internal symbols are named by a checksum of the source's absolute path, by its name and, where it defines nothing
    external, by the process; the library names the compiler's intermediate file, which is called after the process,
    too. With the path and the seed that are given here and a folder for such files, two builds have the same bytes.

    Raises:
        InputError: an architecture is not NVIDIA's, or two sources have one name.
    """
    wanted = capabilities(architectures)
    if len({Path(source).name for source in sources}) < len(sources):
        raise InputError(f"two CUDA sources have one name, which nvcc cannot tell apart: {', '.join(sources)}")
    code = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in wanted]
    code.append(f"-gencode=arch=compute_{wanted[-1]},code=compute_{wanted[-1]}")
    return [
        compiler.path,
        "-std=c++20",
        "-shared",
        "-DUSE_CUDA",
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        f"-Xcompiler=-fPIC,-fvisibility=hidden,{_unplaced(torch)}",
        "--keep",
        f"--keep-dir={scratch}",
        "-frandom-seed=day0",
        "-Xcudafe",
        "--orig_src_path_name=/kernel.cu",
        # Wheels have their libraries in lib/, where nvcc looks in lib64/.
        f"-L{Path(compiler.path).parent.parent / 'lib'}",
        *flags,
        *code,
        *_torch_flags(torch),
        *sources,
        "-o",
        output,
        "-Xlinker=--build-id=none",
        *_linked(torch),
    ]


def _torch_flags(torch: Torch) -> list[str]:
    return [f"-DTORCH_TARGET_VERSION={TORCH_TARGET}", *(f"-I{path}" for path in torch.includes)]


def _unplaced(torch: Torch) -> str:
    """Headers' names are in messages of checks, and so in the library."""
    return f"-ffile-prefix-map={torch.folder}=torch"


def _linked(torch: Torch) -> list[str]:
    return [f"-L{torch.library}", "-ltorch_cpu", "-ltorch", "-lc10"]


def _version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{path} is no compiler that runs: {error}") from error
    return " ".join(line.strip() for line in said.splitlines()[:5] if line.strip())
