"""Compilers of kernels: found, asked for their version, and how each is called."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from day0.errors import EvidenceMissing, InputError, Unavailable

#: What every kernel is compiled with, before its own flags.
_COMMON = ("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp", "-Wall", "-Wno-psabi")
#: The version of torch's stable ABI that kernels are written to: with later headers they load in torch 2.10 and on.
TORCH_TARGET = "0x020A000000000000"
_ARCHITECTURE = re.compile(r"^(sm_)?(\d{2,3}[af]?)$")


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
    """nvcc of `$CUDA_HOME`, of PATH, or of /usr/local/cuda*.

    Raises:
        Unavailable: there is none.
    """
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    on_path = shutil.which("nvcc")
    candidates = [home / "bin" / "nvcc" for home in homes]
    candidates += [Path(on_path)] if on_path else []
    candidates += [home / "bin" / "nvcc" for home in sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    for path in candidates:
        if os.access(path, os.X_OK):
            return Compiler(str(path), _version(str(path)))
    raise Unavailable(
        "there is no nvcc here, in CUDA_HOME, on PATH or in /usr/local/cuda: install the CUDA toolkit (no GPU is "
        "needed to compile) and set CUDA_HOME"
    )


def architectures(text: str) -> tuple[str, ...]:
    """`sm_90,120` as ("90", "120"); what nvcc compiles for.

    Raises:
        InputError: one is no compute capability.
    """
    found = []
    for part in text.split(","):
        match = _ARCHITECTURE.match(part.strip())
        if not match:
            raise InputError(f"{part.strip()!r} is no GPU architecture such as sm_90")
        found.append(match[2])
    return tuple(dict.fromkeys(found))


def machine() -> str:
    """The architecture that a C++ kernel is for."""
    return platform.machine()


def cxx_command(
    compiler: Compiler, torch: Torch, sources: list[Path], flags: tuple[str, ...], output: Path
) -> list[str]:
    """One call from sources to a library, in whose bytes are no paths of this machine if `sources` are relative."""
    return [
        compiler.path,
        *_COMMON,
        *flags,
        _unplaced(torch),
        *_torch_flags(torch),
        *(str(source) for source in sources),
        "-o",
        str(output),
        "-Wl,--build-id=none",
        *_linked(torch),
    ]


def nvcc_command(
    compiler: Compiler,
    torch: Torch,
    sources: list[Path],
    flags: tuple[str, ...],
    wanted: tuple[str, ...],
    output: Path,
) -> list[str]:
    """The same by nvcc, with a binary for each architecture and PTX of the last for later ones."""
    code = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in wanted]
    code.append(f"-gencode=arch=compute_{wanted[-1]},code=compute_{wanted[-1]}")
    return [
        compiler.path,
        "-std=c++20",
        "-shared",
        "-DUSE_CUDA",
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        f"-Xcompiler=-fPIC,-fvisibility=hidden,{_unplaced(torch)}",
        # Names of temporary files would else be in the library.
        "--objdir-as-tempdir",
        *flags,
        *code,
        *_torch_flags(torch),
        *(str(source) for source in sources),
        "-o",
        str(output),
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
