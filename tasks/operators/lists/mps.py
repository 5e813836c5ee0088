"""What torch's own tests expect to fail on MPS: torch/testing/_internal/common_mps.py. Read, never run."""

from __future__ import annotations

import ast

from tasks.operators.lists.document import Document
from tasks.operators.lists.model import Entry
from tasks.operators.lists.vendors import aten_of_opinfo

TABLE = "UNIMPLEMENTED_XFAILLIST"


def unimplemented(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """OpInfo's operators that MPS lacks, for all dtypes (`None`) or for some."""
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        document.refuse(f"is not Python that can be read: {error}")
    tables = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == TABLE
    ]
    if len(tables) != 1 or not isinstance(tables[0], ast.Dict):
        document.refuse(f"has not one table {TABLE}")
    found: dict[str, Entry] = {}
    for key, value in zip(tables[0].keys, tables[0].values, strict=True):
        operator = aten_of_opinfo(key.value) if isinstance(key, ast.Constant) else None
        if operator is None:
            continue
        dtypes = value.elts if isinstance(value, ast.List) else []
        names = tuple(dtype.attr for dtype in dtypes if isinstance(dtype, ast.Attribute))
        note = "torch's tests expect it to fail, as not implemented"
        document.add(found, operator, Entry(status="unknown", fails=names, note=note))
    return document.checked(found, "operators that MPS lacks")
