"""Kernels for the simulated accelerator, as a provider would offer them: each composed of other operators of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Composed:
    operator: str
    replaces: str
    reference: str
    """The one output, of the arguments in float64."""
    compute: str
    """The same, at any dtype, by operators that the device has."""
    arguments: str = "(torch.randn(case['rows'], case['columns'], generator=generator, device=device).to(dtype),)"


KERNELS = {
    "silu": Composed(
        "silu(Tensor x) -> Tensor",
        "aten::silu",
        "torch.nn.functional.silu(x)",
        "(x.float() / (1 + torch.exp(-1 * x.float()))).to(x.dtype)",
    ),
    "rsqrt": Composed(
        "rsqrt(Tensor x) -> Tensor",
        "aten::rsqrt",
        "torch.rsqrt(x)",
        "torch.sqrt(x.float()).reciprocal().to(x.dtype)",
        "(torch.randn(case['rows'], case['columns'], generator=generator, device=device).abs().add(0.1).to(dtype),)",
    ),
    "neg": Composed(
        "neg(Tensor x) -> Tensor", "aten::neg", "torch.neg(x)", "torch.where(x == 0, x, 0 - x)"
    ),
    "mean": Composed(
        "mean(Tensor x, int[1]? dim, bool keepdim) -> Tensor",
        "aten::mean.dim",
        "torch.mean(x, dim, keepdim)",
        "(x.float().sum(dim, keepdim) / math.prod(x.shape[d] for d in dim)).to(x.dtype)",
        "(torch.randn(case['rows'], case['columns'], generator=generator, device=device).to(dtype), [-1], True)",
    ),
}  # fmt: skip

_FILE = """
name: {name}
what: A stand-in for {replaces}, composed of other operators.
operator: "{operator}"
replaces: ["{replaces}"]
dtypes: [float32, bfloat16]
tolerance:
  float32: {{ratio: 4, atol: 1.0e-7, reason: a few roundings more than the framework's own}}
  bfloat16: {{ratio: 2, atol: 1.0e-7, reason: computed in float32 and rounded once}}
bytes: 2 * rows * columns * element
flops: rows * columns
backends:
  triton: {{module: triton/kernel.py}}
"""


def write_kernels(root: Path, names: tuple[str, ...] = tuple(KERNELS)) -> Path:
    """Write folders of kernels (see kernels/README.md); their `triton` module is plain torch."""
    for name in names:
        kernel = KERNELS[name]
        arguments = ", ".join(
            part.split()[1] for part in kernel.operator.partition("(")[2].partition(")")[0].split(", ")
        )
        folder = root / name
        (folder / "triton").mkdir(parents=True)
        (folder / "kernel.yaml").write_text(
            _FILE.format(name=name, operator=kernel.operator, replaces=kernel.replaces).lstrip()
        )
        (folder / "reference.py").write_text(
            f"import torch\n\n\ndef reference({arguments}):\n    return ({kernel.reference},)\n"
        )
        (folder / "inputs.py").write_text(
            "import torch\n\nCASES = [\n"
            "    {'rows': 3, 'columns': 33},\n    {'rows': 1, 'columns': 7},\n    {'rows': 0, 'columns': 8},\n"
            "    {'rows': 64, 'columns': 256, 'bench': True},\n]\n\n\n"
            f"def make(case, dtype, generator, device):\n    return {kernel.arguments}\n"
        )
        (folder / "triton" / "kernel.py").write_text(
            "import math\n\nimport torch\n\nAHEAD = []\n\n\n"
            f"def run({arguments}):\n    return ({kernel.compute}).contiguous()\n"
        )
    return root
