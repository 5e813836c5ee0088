"""A kernel's folder is read strictly, and every fault in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.errors import InputError
from day0.home import PROJECT
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.formula import evaluate
from tasks.kernels.schema import out_schema, parse
from tests.kernels.conftest import KERNEL_YAML, MakeKernel

NORM = "norm(Tensor x, Tensor? bias, int[] sizes, float eps=1e-6) -> (Tensor, Tensor)"


def test_a_schema_is_taken_apart() -> None:
    schema = parse(NORM)
    assert (schema.name, schema.outputs, schema.mutates) == ("norm", 2, False)
    assert [argument.name for argument in schema.arguments] == ["x", "bias", "sizes", "eps"]
    assert [argument.tensor for argument in schema.arguments] == [True, True, False, False]
    assert schema.arguments[1].optional
    assert out_schema(schema) == (
        "norm.out(Tensor x, Tensor? bias, int[] sizes, float eps=1e-6, *, Tensor(o0!) out0, Tensor(o1!) out1) -> ()"
    )


def test_an_operator_that_writes_has_no_out_overload() -> None:
    schema = parse("write(Tensor(a!) cache, Tensor slots) -> ()")
    assert schema.mutates
    assert schema.arguments[0].mutated
    assert out_schema(schema) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("norm", "no schema"),
        ("norm(Tensor x) -> int", "neither Tensor nor"),
        ("norm(Tensor x) -> ()", "must either return tensors or write"),
        ("norm(Tensor(a!) x) -> Tensor", "must either return tensors or write"),
        ("norm(int n) -> Tensor", "takes no tensor"),
        ("norm(Tensor x, Tensor x) -> Tensor", "twice"),
        ("norm(Tensor[] x) -> Tensor", "list of tensors"),
        ("norm(Device x, Tensor y) -> Tensor", "none of the types"),
        ("norm(Tensor x, int(a!) n) -> Tensor", "only a tensor"),
    ],
)
def test_a_malformed_schema_is_refused(schema: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(schema)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_formulas_are_pythons_arithmetic(rows: int, hidden: int) -> None:
    names = {"rows": rows, "hidden": hidden, "fp8": hidden % 2 == 0, "kind": "half"}
    text = "2 * rows * hidden + ceil(rows / hidden) + (1 if fp8 else rows // hidden) + max(rows, hidden) % 7"
    assert evaluate(text, names) == float(
        2 * rows * hidden + -(-rows // hidden) + (1 if hidden % 2 == 0 else rows // hidden) + max(rows, hidden) % 7
    )
    assert evaluate("rows if kind == 'half' else 0", names) == rows


@pytest.mark.parametrize(
    "text", ["size", "rows.real", "__import__('os')", "rows / 0", "-rows", "2 **", "(" * 500, "[rows]", "'rows'"]
)
def test_anything_else_is_no_formula(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        evaluate(text, {"rows": 3})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("flops: size", "flop: size"), "unknown key 'flop'; did you mean 'flops'"),
        (("name: scale", "name: scales"), "one name for both"),
        (("dtypes: [float32]", "dtypes: [float31]"), "'float31' is none of"),
        (("dtypes: [float32]", "dtypes: [float32, bfloat16]"), "no tolerance for bfloat16"),
        (("{float32: {ratio: 2", "{float32: {ratio: 0.5"), "ratio"),
        (("triton/kernel.py", "triton/kernels.py"), "there is no file triton/kernels.py"),
        (("cpu/kernel.cpp", "../../cpu/kernel.cpp"), "there is no file"),
        (("  triton: {module: ", "  flaggems: {module: "), "backends.flaggems.package"),
        (("aten::mul.Scalar", "mul"), "'mul' is neither an operator"),
        (("replaces:", "contiguous: [by]\nreplaces:"), "no tensor argument"),
    ],
)
def test_a_fault_in_kernel_yaml_is_named(make_kernel: MakeKernel, change: tuple[str, str], says: str) -> None:
    folder = make_kernel(**{"kernel.yaml": KERNEL_YAML.replace(*change)})
    with pytest.raises(InputError, match=says) as raised:
        KernelDefinition(folder)
    assert "kernel.yaml" in str(raised.value)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("CASES = []", "no list of cases"),
        ("CASES = [3]", "no dict of plain values"),
        ('CASES = [{"size": [1]}]', "no dict of plain values"),
        ('CASES = [{"rows": 1}]', "there is no 'size'; there are rows, element"),
        ('CASES = [{"size": 1}]', "nothing to time"),
        ('CASES = [{"size": 1, "bench": True}, {"size": 9, "huge": True}]', "nothing to accept"),
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
    ],
)
def test_a_fault_in_inputs_is_named(make_kernel: MakeKernel, inputs: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        _ = KernelDefinition(make_kernel(**{"inputs.py": inputs})).cases


def test_what_leads_out_of_the_folder_is_refused(make_kernel: MakeKernel, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("// of another\n")
    folder = make_kernel()
    (folder / "cpu" / "secret.h").symlink_to(secret)
    with pytest.raises(InputError, match=r"secret.h is a link that leads out of"):
        KernelDefinition(folder).digest("cpu")
    (folder / "reference.py").unlink()
    (folder / "reference.py").symlink_to(secret)
    with pytest.raises(InputError, match=r"reference.py leads out of"):
        KernelDefinition(folder)


def test_kernels_that_are_nowhere_are_not_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_KERNELS", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"there is no folder .*/nowhere, which DAY0_KERNELS names"):
        kernel_names()


def test_a_digest_follows_all_that_a_verdict_rests_on(make_kernel: MakeKernel) -> None:
    before = KernelDefinition(make_kernel()).digest("cpu")
    assert KernelDefinition(make_kernel()).digest("cpu") == before
    for name in ("reference.py", "inputs.py", "cpu/kernel.cpp", "cpu/header.h"):
        assert KernelDefinition(make_kernel(**{name: "// other\n"})).digest("cpu") != before
    other_backend = KernelDefinition(make_kernel()).digest("triton")
    assert KernelDefinition(make_kernel(**{"cpu/kernel.cpp": "// other\n"})).digest("triton") == other_backend


def test_what_another_project_computes_is_a_backend(make_kernel: MakeKernel) -> None:
    text = KERNEL_YAML + "  flaggems: {module: providers/flaggems.py, package: flag_gems, requires: '>=4.0'}\n"
    files = {"kernel.yaml": text, "providers/flaggems.py": "def run(x, by):\n    return x * by\n"}
    definition = KernelDefinition(make_kernel(**files))
    assert definition.backends == ("cpu", "triton", "flaggems")
    assert [path.name for path in definition.sources("flaggems")] == ["flaggems.py"]
    before = definition.digest("flaggems")
    assert KernelDefinition(make_kernel(**files, **{"providers/hub.py": "# another\n"})).digest("flaggems") == before
    changed = {**files, "providers/flaggems.py": "def run(x, by):\n    return by * x\n"}
    assert KernelDefinition(make_kernel(**changed)).digest("flaggems") != before
    with pytest.raises(InputError, match=r"there is no file providers/gone\.py"):
        KernelDefinition(
            make_kernel(**{"kernel.yaml": KERNEL_YAML + "  hub: {module: providers/gone.py, package: a}\n"})
        )


def test_a_kernel_is_found_by_name(make_kernel: MakeKernel) -> None:
    kernels = make_kernel().parent
    assert kernel_names(kernels) == ["scale"]
    assert find_kernel("scale", kernels).qualified == "day0::scale"
    with pytest.raises(InputError, match="did you mean 'scale'"):
        find_kernel("scales", kernels)


def test_the_projects_own_kernels_are_whole() -> None:
    names = kernel_names(PROJECT / "kernels")
    assert "fused_add_rms_norm" in names
    for name in names:
        definition = KernelDefinition(Path(PROJECT, "kernels", name))
        assert definition.cases
        assert any(case.get("huge") for case in definition.cases), f"{name} has no huge case"
