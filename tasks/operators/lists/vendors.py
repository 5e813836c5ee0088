"""The files in which vendors keep what their backends have."""

from __future__ import annotations

import re
from typing import Any

from tasks.operators.lists.document import Document, in_aten
from tasks.operators.lists.model import Entry

#: C++ names of dtypes, as Gaudi's file has them.
CXX_DTYPES = {
    "BFloat16": "bfloat16",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "Char": "int8",
    "Byte": "uint8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
    "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fn": "float8_e4m3fn",
}


def op_plugin(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """Ascend's op_plugin_functions.yaml: operators with the torch releases that each of two interfaces is there for.

    What stands under `custom` and torch does not have is in the namespace npu. An operator that the newest release no
    longer has is `unknown`: it depends on the release.
    """
    content = document.mapping(document.yaml(), "the whole file")
    releases = document.words(content.get("all_version")) or document.refuse("has no all_version")
    versions: dict[str, list[Any]] = {}
    for section in ("official", "symint", "quant", "custom"):
        for item in document.sequence(content.get(section) or [], section):
            declaration = document.mapping(item, f"an operator of {section}")
            name = document.operator(declaration.get("func"), section)
            own = section == "custom" or name.startswith(("npu_", "_npu_"))
            given = [declaration[key] for key in ("acl_op", "op_api") if declaration.get(key)]
            versions.setdefault(f"{'npu' if own else 'aten'}::{name}", []).extend(given)
    found = {}
    for name, given in versions.items():
        newest = not given or any(_reaches(document, value, releases) for value in given)
        old = ", ".join(sorted({" to ".join(document.words(value)) for value in given}))
        found[name] = Entry() if newest else Entry(status="unknown", note=f"for torch {old} only")
    return document.checked(found, "op-plugin's functions")


def _reaches(document: Document, versions: Any, releases: list[str]) -> bool:
    """Whether `all_version`, `[v2.1, newest]` or `v2.1, v2.2` includes the newest release."""
    return bool({"all_version", "newest", releases[-1]} & set(document.words(versions)))


def torch_npu(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """torchgen's file of a backend outside torch, as torch_npu has it: `supported` and `custom`."""
    content = document.mapping(document.yaml(), "the whole file")
    found = {}
    for section, namespace in (("supported", "aten"), ("custom", options.get("namespace", "npu"))):
        for item in document.sequence(content.get(section) or [], section):
            declaration = item.get("func") if isinstance(item, dict) else item
            found[f"{namespace}::{document.operator(declaration, section)}"] = Entry()
    return document.checked(found, "torchgen's file of a backend")


def opinfo_failures(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """Ascend's unsupported_ops_info: OpInfo's operator → its test → dtypes that fail. Options: `test`, the one read."""
    test = options.get("test") or document.refuse("has many tests, and the list's options name none")
    found: dict[str, Entry] = {}
    for name, tests in document.mapping(document.yaml(), "the whole file").items():
        dtypes = document.words(document.mapping(tests, f"{str(name)[:60]!r}").get(test))
        operator = aten_of_opinfo(name)
        if operator and dtypes:
            note = f"left out of {test}"
            fails = tuple(sorted(d for d in dtypes if d))
            document.add(found, operator, Entry(status="unknown", fails=fails, note=note))
    return document.checked(found, f"operators that fail {test}")


def aten_of_opinfo(name: Any) -> str | None:
    """`nn.functional.linear` → aten::linear.*; None for Python references and variants, which are no operators."""
    if not isinstance(name, str) or name.startswith(("_refs.", "ops.", "masked.")):
        return None
    name = name.removeprefix("nn.functional.").replace(".", "_")
    return f"aten::{name}.*" if re.fullmatch(r"\w+", name) else None


def musa(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """torch_musa's musa_functions.yaml: declarations; one with kernels for quantised tensors only is left out."""
    found = {}
    for item in document.sequence(document.yaml(), "the whole file"):
        declaration = document.mapping(item, "an operator's declaration")
        name = document.operator(declaration.get("func"), "func")
        dispatch = document.mapping(declaration.get("dispatch") or {}, f"the dispatch of {name}")
        keys = {word for given in dispatch for word in document.words(given)}
        if not keys or keys - {"QuantizedPrivateUse1"}:
            found[f"aten::{name}"] = Entry()
    return document.checked(found, "torch_musa's functions")


def gaudi(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """Gaudi's hpu_op.yaml: overload → how it is built, with dtypes. Options: `device`, such as Gaudi3."""
    found: dict[str, Entry] = {}
    for key, value in document.mapping(document.yaml(), "the whole file").items():
        name = document.operator(key, "its operators")
        content = document.mapping(value, f"{name}")
        schema = content.get("custom_op_schema")
        namespace = schema.partition("::")[0] if isinstance(schema, str) and "::" in schema else "aten"
        if not re.fullmatch(r"\w+", namespace):
            document.refuse(f"has a namespace of {name} that is none: {namespace[:60]!r}")
        dtypes = content.get("dtypes")
        dtypes = dtypes.get(options.get("device", "")) if isinstance(dtypes, dict) else dtypes
        known = tuple(CXX_DTYPES[word] for word in document.words(dtypes) if word in CXX_DTYPES)
        checks = document.words(content.get("fallback_check"))
        note = f"falls back to the CPU for some of: {', '.join(checks[1:])}" if checks[1:] else None
        document.add(found, f"{namespace}::{name}", Entry(dtypes=known, note=note))
    return document.checked(found, "Gaudi's operators")


def xpu_fallback(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """torch-xpu-ops' XPUFallback.cpp: the vector of operators that run on the CPU instead."""
    vector = re.search(r"fallback_list\s*=\s*\{(.*?)\}", document.text, re.DOTALL)
    if vector is None:
        document.refuse("has no fallback_list = {…}")
    names = re.findall(r'^\s*"([^"]*)"', vector[1], re.MULTILINE)  # a name that is commented out does not begin a line
    operators = [document.operator(name, "fallback_list") for name in names]
    return document.checked(in_aten(operators, status="fallback", via="CPU"), "a list of fallbacks")


def library_definitions(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """A C++ file that defines operators, `ops.def("name(Tensor x) -> Tensor")`. Options: `namespace`."""
    namespace = options.get("namespace") or document.refuse("is read for a namespace, and the list's options name none")
    names = re.findall(r'\bdef\(\s*"\s*([^"(]*)\s*[("]', document.text)
    found = {f"{namespace}::{document.operator(name, 'def')}": Entry() for name in names}
    return document.checked(found, "definitions of operators")
