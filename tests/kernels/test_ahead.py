"""Triton kernels are compiled without a device, for the target's architecture, and their faults are named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from day0.artifacts.kernels import Kernel
from day0.errors import EvidenceMissing, InputError
from day0.home import configs
from day0.target import load_target
from day0.verdict import Verdict
from tasks.kernels.actions import act
from tasks.kernels.build import BuildFailed, Built, architecture_of, build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.recipes import shared_memory
from tasks.kernels.render import show_kernels
from tests.kernels.conftest import MakeKernel

pytestmark = [pytest.mark.reference, pytest.mark.triton]

#: It imports no torch, which takes a second; the project's own kernels do.
MODULE = """import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def scaled(x, by):
    return x * by


@triton.jit
def _scale(x, out, by, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, scaled(tl.load(x + at, at < size), by), at < size)


def run(x, by):
    out = x.new_empty(x.shape)
    _scale[(triton.cdiv(x.numel(), CONFIG["BLOCK"]),)](x, out, by, x.numel(), **CONFIG)
    return out


SIGNATURE = {"x": "*fp32", "out": "*fp32", "by": "fp32", "size": "i32"}
AHEAD = [{"function": _scale, "signature": SIGNATURE, "config": CONFIG, "divisible": ("x", "out")}]
"""
AHEAD = MODULE[MODULE.index("AHEAD = ") :]
BODY = "    return x * by\n"
INLINE = """    return tl.inline_asm_elementwise("nonsense.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
"""
#: What the fault is made of, and what is said of it, with the line.
FAULTS = {
    "name": ((BODY, "    return x * nowhere\n"), r"triton/kernel\.py:9: _scale-0: .*nowhere is not defined"),
    "shape": ((BODY, "    return x + tl.arange(0, 96)\n"), r"triton/kernel\.py:9: _scale-0: .*power of 2"),
    "syntax": ((BODY, "    return x *\n"), r"triton/kernel\.py:9: SyntaxError: invalid syntax"),
    "import": (("import triton\n", "import nothing_such\nimport triton\n"), r"triton/kernel\.py:1: .*No module named"),
    "empty": ((AHEAD, "AHEAD = []\n"), "AHEAD lists nothing to compile for sm_90"),
    "none": ((AHEAD, ""), "AHEAD lists nothing to compile for sm_90"),
    "raises": ((AHEAD, "def AHEAD(architecture):\n    return 1 / 0\n"), r"kernel\.py:26: AHEAD\('sm_90'\) raises Zero"),
    "no function": (("{\"function\": _scale,", "{\"function\": run,"), "run-0: function is no @triton.jit function"),
    "no entry": (("\"signature\": SIGNATURE,", ""), r"AHEAD\[0\] is no dict with function and signature"),
    "key": (("\"divisible\"", "\"aligned\""), r"AHEAD\[0\]: unknown key 'aligned'"),
    "lacks": ((', "size": "i32"}', "}"), "neither signature nor config gives the argument 'size'"),
    "extra": (('"size": "i32"}', '"size": "i32", "sizes": "i32"}'), "'sizes', which is no argument of _scale"),
    "option": (('"num_warps": 4', '"warps": 4'), "'warps' is neither an argument nor an option of Triton for sm_90"),
    "divisible": (('("x", "out")', '("x", "y")'), "divisible names 'y', which is not in the signature"),
    "threads": (("\"num_warps\": 4", "\"num_warps\": 64"), r"2048 threads in a block, of which there may be 1024"),
    "assembly": (
        (BODY, INLINE),
        r"kernel\.py:13: _scale-0: PTXASError: Not a name of any known instruction: 'nonsense'",
    ),
    "twice": (("AHEAD = [{", 'AHEAD = 2 * [{"name": "one", '), "the name 'one' is no file name, or is given twice"),
}  # fmt: skip


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"])
def test_it_is_compiled_for_every_architecture(make_kernel: MakeKernel, kernels_home: Path, architecture: str) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE}))
    built = build(definition, "triton", architecture)
    kinds = ("hsaco", "amdgcn") if architecture.startswith("gfx") else ("cubin", "ptx")
    (function,) = built.functions
    assert function["files"] == [f"_scale-0.{kind}" for kind in kinds]
    assert 0 < function["registers"] < 64
    assert (function["spills"], function["shared"]) == (0, 0)
    assert (function["metadata"]["num_warps"], function["metadata"]["enable_fp_fusion"]) == (4, True)
    assert (built.path / function["files"][0]).read_bytes()[:4] == b"\x7fELF"
    assert build(definition, "triton", architecture).cached


def test_the_same_bytes_wherever_it_is_built(
    make_kernel: MakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE}))
    made: list[Built] = []
    for name in ("one", "a-much-longer-name/two"):
        monkeypatch.setenv("DAY0_HOME", str(tmp_path / name))
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", str(len(made)))  # what a user has set changes nothing
        made.append(build(definition, "triton", "sm_90"))
    files = [sorted(path for path in one.path.iterdir() if path.name != "lock") for one in made]
    assert [path.name for path in files[0]] == ["_scale-0.cubin", "_scale-0.ptx", "build.json"]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert (made[0].key, made[0].digest) == (made[1].key, made[1].digest)
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in files[0])


def test_all_that_changes_the_binaries_is_in_the_key(make_kernel: MakeKernel, kernels_home: Path) -> None:
    built = build(KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE})), "triton", "sm_90")
    described = json.loads((built.path / "build.json").read_bytes())
    assert described["compiler"].startswith("triton 3.")
    assert described["architecture"] == "sm_90"
    assert described["environment"]["TRITON_DEFAULT_FP_FUSION"] == "1"
    other = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE.replace("x * by", "by * x")}))
    assert build(other, "triton", "sm_90").key != built.key


def test_a_damaged_binary_is_compiled_again(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE}))
    first = build(definition, "triton", "sm_90")
    (first.path / "_scale-0.cubin").unlink()
    second = build(definition, "triton", "sm_90")
    assert not second.cached
    assert second.digest == first.digest


def test_ahead_may_depend_on_the_architecture(make_kernel: MakeKernel, kernels_home: Path) -> None:
    ahead = AHEAD.replace(
        "AHEAD = [", 'def AHEAD(name):\n    return [{"name": f"for-{name}", **entry} for entry in ['
    ).strip()
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE.replace(AHEAD, ahead + "]\n")}))
    assert [one["name"] for one in build(definition, "triton", "sm_90").functions] == ["for-sm_90"]
    assert [one["name"] for one in build(definition, "triton", "gfx942").functions] == ["for-gfx942"]


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_first_error_has_file_and_line(make_kernel: MakeKernel, kernels_home: Path, fault: str) -> None:
    (old, new), says = FAULTS[fault]
    assert old in MODULE
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE.replace(old, new)}))
    with pytest.raises(BuildFailed, match=says) as raised:
        build(definition, "triton", "sm_90")
    assert str(raised.value).startswith("kernel scale for triton: triton/kernel.py:")
    assert len(str(raised.value).splitlines()) == 1
    assert not list(kernels_home.rglob("*.cubin"))


def test_an_error_that_llvm_tells_and_goes_on_from_is_one(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE.replace(BODY, INLINE)}))
    with pytest.raises(BuildFailed, match="_scale-0: could not allocate output register for constraint 'f'"):
        build(definition, "triton", "gfx942")


def test_more_shared_memory_than_there_is_is_rejected(make_kernel: MakeKernel, kernels_home: Path) -> None:
    transposed = """    at = tl.arange(0, 128)
    to = tl.arange(0, 256)
    tile = tl.load(x + at[:, None] * 256 + to[None, :])
    tl.store(out + to[:, None] * 128 + at[None, :], tl.trans(tile) * by)
"""
    start = MODULE.index("    at = tl.program_id")
    module = MODULE[:start] + transposed + MODULE[MODULE.index("\n\ndef run") :]
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": module}))
    (function,) = build(definition, "triton", "gfx950").functions
    taken = function["shared"]
    assert shared_memory("gfx942") < taken <= shared_memory("gfx950"), taken
    says = f"_scale-0 takes {taken} bytes of shared memory, and gfx942 has 65536 for a block"
    with pytest.raises(BuildFailed, match=says):
        build(definition, "triton", "gfx942")


def test_without_an_architecture_or_with_one_that_nobody_knows(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE}))
    with pytest.raises(InputError, match="Triton compiles for one architecture: give a target that has one"):
        build(definition, "triton")
    with pytest.raises(InputError, match=r"architectures.yaml has no limits of sm_70; it has sm_80, "):
        build(definition, "triton", "sm_70")


def test_without_triton_the_remedy_is_named(
    make_kernel: MakeKernel, kernels_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": MODULE}))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else found(name))
    with pytest.raises(EvidenceMissing, match=r"pip install 'day0\[kernels\]'"):
        build(definition, "triton", "sm_90")


def test_the_targets_say_what_is_compiled_for_them(make_kernel: MakeKernel) -> None:
    definition = KernelDefinition(make_kernel())
    assert architecture_of("h200", definition, "triton") == "sm_90"
    assert architecture_of("mi300x", definition, "triton") == "gfx942"
    assert architecture_of("h200", definition, "cpu") is None
    with pytest.raises(EvidenceMissing, match="compiled on the device, by the vendor's Triton of ascend-910b"):
        architecture_of("ascend-910b", definition, "triton")
    for path in (configs() / "targets").glob("*.yaml"):
        known = load_target(path.stem).architecture
        assert known is None or shared_memory(known.name) > 0


def test_a_build_for_a_vendors_triton_is_inconclusive(
    make_kernel: MakeKernel, kernels_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAY0_KERNELS", str(make_kernel(**{"triton/kernel.py": MODULE}).parent))
    (kernel,), verdict = act("build", (), "ascend-910b")
    assert (kernel.backend, kernel.verdict, verdict) == ("triton", Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert "vendor's Triton" in kernel.error["reason"]
    (kernel,), verdict = act("build", (), "h200")
    assert verdict is Verdict.PASS
    assert [function["name"] for function in kernel.error["functions"]] == ["_scale-0"]
    assert kernel.error["library_sha256"]


def test_people_are_told_what_spills(capsys: pytest.CaptureFixture[str]) -> None:
    functions = [
        {"name": name, "registers": 255, "spills": spills, "shared": 0} for name, spills in (("a", 0), ("b", 7))
    ]
    error = {"built": True, "library": "/kernels/KEY", "functions": functions}
    kernel = Kernel(
        name="scale", backend="triton", verdict=Verdict.INCONCLUSIVE, error=error, speedup={}, roofline=None, digest="0"
    )
    show_kernels((kernel,), "h200")
    said = " ".join(capsys.readouterr().out.split())
    assert "is built, 2 functions, 1 of which spill registers, most b: 7 in each thread: /kernels/KEY" in said
