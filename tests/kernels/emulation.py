"""CUDA kernels on the CPU: the source, with CUDA's language from tests/kernels/emulated, as a kernel of the CPU.

    python -m tests.kernels.emulation FOLDER LIBRARY

compares such a kernel's outputs with the reference's, over its small cases, dtypes and some layouts.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

EMULATED = Path(__file__).with_name("emulated")
#: Elements of the largest argument: fibers are slow.
LARGEST = 18_000
_LAUNCH = re.compile(r"(\w+<[^<>;]*>)<<<(.+?), (.+?), 0, stream>>>\((\w+)\)")
#: What of the device's own is another on the CPU.
_CHANGED = (
    ("tensor.is_cuda()", "tensor.is_cpu()"),
    ("(day0, CUDA, library)", "(day0, CPU, library)"),
    ("../../common/cuda/operator.h", "operator.h"),
    ('extern "C" __attribute__((weak)) AOTITorchError', "inline AOTITorchError"),
    ("int32_t device, void** stream);", "int32_t, void**) { return AOTI_TORCH_SUCCESS; }"),
    ("aoti_torch_get_current_cuda_stream != nullptr", "true"),
)


def emulate(kernel: Path, folder: Path, *faults: tuple[str, str]) -> Path:
    """A kernel's folder whose CPU backend is the CUDA backend of `kernel`, with faults planted in its source."""
    place = folder / kernel.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(EMULATED, place / "cpu")
    for name in ("reference.py", "inputs.py"):
        shutil.copyfile(kernel / name, place / name)
    shared = (kernel.parent / "common" / "cuda" / "operator.h").read_text()
    source = (kernel / "cuda" / "kernel.cu").read_text()
    for old, new in faults:
        assert old in source, old
        source = source.replace(old, new)
    source = re.sub(r"const torch::stable::accelerator::DeviceGuard guard\([^;]*\);", "", source)
    source = _LAUNCH.sub(r"emulated::launch(\2, dim3(\3), [&] { \1(\4); })", source)
    assert "<<<" not in source
    for old, new in _CHANGED:
        shared, source = shared.replace(old, new), source.replace(old, new)
    (place / "cpu" / "operator.h").write_text(shared)
    (place / "cpu" / "kernel.cpp").write_text(source)
    text = (kernel / "kernel.yaml").read_text()
    text = text[: text.index("backends:\n")]
    backend = "backends: {cpu: {sources: [cpu/kernel.cpp], flags: [-O1, -Icpu, -Wno-unknown-pragmas]}}\n"
    (place / "kernel.yaml").write_text(text + backend)
    return place


def main(folder: str, library: str) -> None:
    import torch

    from tasks.kernels.definition import KernelDefinition, label
    from tasks.kernels.load import as_tuple, load, operator

    definition = KernelDefinition(Path(folder))
    load(definition, "cpu", Path(library))
    compute = operator(definition)
    tried = 0
    for case in definition.cases:
        if case.get("huge"):
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            args = definition.make(case, dtype, torch.Generator().manual_seed(tried), "cpu")
            if args[0].numel() > LARGEST:
                continue
            for layout in (lambda x: x, _strided, _with_nan):
                given = (layout(args[0]), *args[1:])
                wide = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given)
                found, wanted = as_tuple(compute(*given)), as_tuple(definition.reference(*given))
                if definition.comparable is not None:
                    found, wanted = definition.comparable(wide, found), definition.comparable(wide, wanted)
                for one, other in zip(found, wanted, strict=True):
                    where = f"{label(case)} {dtype} {layout.__name__}"
                    tolerance = {"rtol": 2e-5, "atol": 2e-6} if one.dtype.itemsize > 2 else {}
                    torch.testing.assert_close(
                        one, other, equal_nan=True, msg=lambda text, where=where: f"{where}: {text}", **tolerance
                    )
                tried += 1
    assert tried > 20, f"only {tried} were small enough"
    print(f"{tried} compared")


def _strided(x: Any) -> Any:
    """Every second number of wider rows, whose others are NaN."""
    import torch

    wide = torch.full((x.shape[0], 2 * x.shape[1] + 3), float("nan"), dtype=x.dtype)
    view = wide[:, 3::2]
    view.copy_(x)
    return view


def _with_nan(x: Any) -> Any:
    """With a NaN and both infinities."""
    x = x.clone()
    if x.numel():
        x.view(-1)[x.numel() // 2] = float("nan")
        x.view(-1)[0] = float("inf")
        x.view(-1)[-1] = -float("inf")
    return x


if __name__ == "__main__":
    main(*sys.argv[1:])
