"""What the torch of this process has registered for operators."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from tasks.operators.records import EXPLICIT, IMPLICIT, NON_FUNCTIONAL, Registration


def registrations(names: set[str], key: str | None) -> dict[str, Registration]:
    """What torch has for each operator, and for the out= overloads that structured ones compute through."""
    delegates = structured_delegates()
    keys = sorted({"CPU", IMPLICIT, EXPLICIT, NON_FUNCTIONAL} | ({key} if key else set()))
    known = set(torch._C._dispatch_get_all_op_names())
    names = names | {delegates[name] for name in names if name in delegates}
    return {
        name: Registration(
            exists=name in known,
            keys=tuple(k for k in keys if name in known and has_kernel(name, k)),
            delegate=delegates.get(name),
        )
        for name in sorted(names)
    }


def is_readable(key: str | None) -> bool:
    """Whether this build of torch has kernels for a dispatch key at all, so that one not found is one not there."""
    return key is None or has_kernel("aten::mm.out", key)


def has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def structured_delegates() -> dict[str, str]:
    """Structured operator → the out= overload with its kernel, from the declarations that torch ships."""
    declared = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    found, name = {}, ""
    # Two keys of 2,600 entries: reading them as YAML would take seconds.
    for line in declared.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            name = match[1]
        elif match := re.match(r"  structured_delegate: ([\w.]+)", line):
            found[f"aten::{name}"] = f"aten::{match[1]}"
    return found
