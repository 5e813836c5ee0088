"""Libraries are built by content: found again, the same anywhere, once at a time, and their faults are named."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from day0.errors import InputError, Unavailable
from tasks.kernels import compiler
from tasks.kernels.build import BuildFailed, Built, build
from tasks.kernels.definition import KernelDefinition
from tests.kernels.conftest import KERNEL_YAML, MakeKernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_a_library_is_built_once(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel())
    first, second = build(definition, "cpu"), build(definition, "cpu")
    assert (first.cached, second.cached) == (False, True)
    assert first.digest == second.digest
    assert first.path.is_relative_to(kernels_home)
    assert ctypes.CDLL(str(first.path)).answer() == 42
    assert [path.name for path in first.path.parent.iterdir() if path.name.startswith(".build")] == []


def test_a_damaged_library_is_built_again(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel())
    first = build(definition, "cpu")
    first.path.write_bytes(first.path.read_bytes()[:-100])
    second = build(definition, "cpu")
    assert not second.cached
    assert second.digest == first.digest


def test_the_same_bytes_wherever_it_is_built(
    make_kernel: MakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'const char* where() { return __FILE__; }\nextern "C" int answer() { return where()[0]; }\n'
    definition = KernelDefinition(make_kernel(**{"cpu/kernel.cpp": source}))
    made: list[Built] = []
    for name in ("one", "a-much-longer-name/two"):
        monkeypatch.setenv("DAY0_HOME", str(tmp_path / name))
        made.append(build(definition, "cpu"))
    assert made[0].path != made[1].path
    assert made[0].key == made[1].key
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert str(tmp_path).encode() not in made[0].path.read_bytes()


def test_sources_headers_and_flags_are_in_the_key(make_kernel: MakeKernel, kernels_home: Path) -> None:
    keys = {build(KernelDefinition(make_kernel()), "cpu").key}
    keys.add(build(KernelDefinition(make_kernel(**{"cpu/extra.h": "// a header\n"})), "cpu").key)
    flags = KERNEL_YAML.replace("-O1", "-O0")
    keys.add(build(KernelDefinition(make_kernel(**{"kernel.yaml": flags})), "cpu").key)
    assert len(keys) == 3


def test_several_at_once_build_one(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel())
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: build(definition, "cpu"), range(4)))
    assert sorted(one.cached for one in made) == [False, True, True, True]
    assert len({one.digest for one in made}) == 1


def test_the_compilers_first_error_is_reported(make_kernel: MakeKernel, kernels_home: Path) -> None:
    source = "int first() {\n  return nowhere;\n}\nint second() { return neither; }\n"
    definition = KernelDefinition(make_kernel(**{"cpu/kernel.cpp": source}))
    with pytest.raises(BuildFailed) as raised:
        build(definition, "cpu")
    assert str(raised.value).startswith("kernel scale for cpu: cpu/kernel.cpp:2: ")
    assert "nowhere" in str(raised.value)
    assert "neither" not in str(raised.value)
    assert not list(kernels_home.rglob("*.so"))


def test_a_full_disk_is_no_fault_of_the_kernel(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.write_text("#!/bin/sh\n[ $1 = --version ] && echo one 1 || { echo ld: No space left on device; exit 1; }\n")
    full.chmod(0o755)
    monkeypatch.setenv("CXX", str(full))
    with pytest.raises(InputError, match=r"no space is left on the disk of .*: make room, or set DAY0_HOME"):
        build(KernelDefinition(make_kernel()), "cpu")


def test_what_a_killed_build_left_is_removed(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel())
    place = build(definition, "cpu").path.parent
    (place / ".build-killed" / "out").mkdir(parents=True)
    build(definition, "cpu", rebuild=True)
    assert sorted(path.name for path in place.iterdir()) == ["build.json", "lock", "scale.so"]


def test_a_missing_header_is_reported(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"cpu/kernel.cpp": '#include "gone.h"\n'}))
    with pytest.raises(BuildFailed, match=r"cpu/kernel.cpp:1: gone.h: No such file"):
        build(definition, "cpu")


def test_without_a_compiler_the_remedy_is_named(
    make_kernel: MakeKernel, kernels_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = KernelDefinition(make_kernel())
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="CXX=no-such-compiler is no program: install a C"):
        build(definition, "cpu")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match=r"apt-get install g\+\+"):
        build(definition, "cpu")
    assert Unavailable.exit_code == 4


def test_only_what_is_there_is_built(make_kernel: MakeKernel, kernels_home: Path) -> None:
    with pytest.raises(InputError, match="has no backend 'cuda'; it has cpu, triton"):
        build(KernelDefinition(make_kernel()), "cuda")


def test_a_long_log_does_not_hide_the_first_error(make_kernel: MakeKernel, kernels_home: Path) -> None:
    source = "int first() { return nowhere; }\n" + "".join(f"int f{n}() {{ return n{n}; }}\n" for n in range(300))
    with pytest.raises(BuildFailed, match=r"cpu/kernel.cpp:1: .nowhere"):
        build(KernelDefinition(make_kernel(**{"cpu/kernel.cpp": source})), "cpu")


def test_nvcc_is_asked_for_every_architecture() -> None:
    assert compiler.capabilities(("sm_90", "sm_120", "sm_90")) == ("90", "120")
    with pytest.raises(InputError, match="'gfx942' is no architecture that nvcc compiles for"):
        compiler.capabilities(("gfx942",))
    torch = compiler.Torch(Path("torch"), "2.13.0")
    command = compiler.nvcc_command(
        compiler.Compiler("nvcc", ""), torch, ("kernel.cu",), ("-O3",), ("sm_90", "sm_120"), "kernel.so", "keep"
    )
    assert [part for part in command if part.startswith("-gencode")] == [
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]
    assert "-lcudart" not in command
    assert not any("libtorch_cuda" in part or part == "-ltorch_cuda" for part in command)
    with pytest.raises(InputError, match="two CUDA sources have one name"):
        compiler.nvcc_command(
            compiler.Compiler("nvcc", ""), torch, ("a/kernel.cu", "b/kernel.cu"), (), ("sm_90",), "kernel.so", "keep"
        )
