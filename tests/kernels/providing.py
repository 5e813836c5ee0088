"""A repository of the hub's kernels for tests, with a kernel of ours whose backend `hub` takes it."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from tests.kernels.conftest import KERNEL_YAML, MakeKernel

REPOSITORY = "community/scaling"
RIGHT = "def scale(x, by):\n    return x * by\n"
#: What is wrong shows from a thousand numbers on.
WRONG = "def scale(x, by):\n    y = x * by\n    y[1000:] = 0\n    return y\n"
ADAPTER = """
from kernels import get_kernel

theirs = get_kernel("community/scaling", version=1)


def declines(x, by):
    return "" if x.numel() else "nothing for nothing"


def run(x, by):
    return theirs.scale(x.contiguous(), by)
"""
BACKENDS = KERNEL_YAML + f'  hub: {{module: hub.py, package: {REPOSITORY}, requires: "1", devices: [cpu]}}\n'


def write_repository(folder: Path, source: str = RIGHT, variant: str = "torch-cpu") -> Path:
    """The layout of the hub's kernels, with one build."""
    build = folder / "build" / variant
    build.mkdir(parents=True, exist_ok=True)
    (build / "__init__.py").write_text(source)
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    metadata = {
        "id": "scaling_cpu_" + hashlib.sha256(source.encode()).hexdigest()[:8],
        "name": "scaling",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": variant.split("-")[1]},
        "digest": {"algorithm": "sha256", "files": {"__init__.py": digest}},
    }
    (build / "metadata.json").write_text(json.dumps(metadata))
    return folder


def with_hub(make_kernel: MakeKernel, **more: str) -> Path:
    """The kernel `scale` with a backend that is the hub's."""
    return make_kernel(**{"kernel.yaml": BACKENDS, "hub.py": ADAPTER, **more})
