"""torch's own declarations, native_functions.yaml: which operators have a kernel for a dispatch key.

An operator has one if its `dispatch` has a kernel for the key; if it is structured and computes through an out=
overload (`structured_delegate`) that has one; or if it is made from a `ufunc_inner_loop`, which torchgen turns into
kernels for CPU and CUDA without any dispatch key. Composites are not listed: they are there for every key, and what
they become may not be. CompositeExplicitAutogradNonFunctional is no support either: it calls the out= overload.
"""

from __future__ import annotations

from typing import Any

from tasks.operators.lists.document import Document
from tasks.operators.lists.model import Entry

UFUNC_KEYS = ("CPU", "CUDA")


def torch_declarations(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """The operators of a dispatch key.

    Options: `key`, such as CUDA.
    """
    key = options.get("key") or document.refuse("is read for a dispatch key, and the list's options name none")
    declared: dict[str, dict[Any, Any]] = {}
    for item in document.sequence(document.yaml(), "the whole file"):
        declaration = document.mapping(item, "an operator's declaration")
        name = document.operator(declaration.get("func"), "func")
        if name in declared:
            document.refuse(f"declares {name} twice, and which of the two holds is not known")
        declared[name] = declaration
    found: dict[str, Entry] = {}
    for name, declaration in declared.items():
        delegate = declaration.get("structured_delegate")
        if _has_kernel(document, declaration, key):
            found[f"aten::{name}"] = Entry()
        elif isinstance(delegate, str) and _has_kernel(document, declared.get(delegate.strip(), {}), key):
            found[f"aten::{name}"] = Entry(via=f"aten::{delegate.strip()}")
    return document.checked(found, f"torch's declarations for {key}")


def _keys(document: Document, declaration: dict[Any, Any]) -> set[str]:
    dispatch = declaration.get("dispatch") or {}
    return {word for keys in document.mapping(dispatch, "dispatch") for word in document.words(keys)}


def _has_kernel(document: Document, declaration: dict[Any, Any], key: str) -> bool:
    if "ufunc_inner_loop" in declaration and key in UFUNC_KEYS:
        return True
    return key in _keys(document, declaration)
