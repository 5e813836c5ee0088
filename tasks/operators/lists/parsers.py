"""Which parser reads which kind of file."""

from __future__ import annotations

from collections.abc import Callable

from day0.errors import InputError
from tasks.operators.lists import declarations, flaggems, mps, vendors
from tasks.operators.lists.document import Document
from tasks.operators.lists.model import Entry

Parser = Callable[[Document, dict[str, str]], dict[str, Entry]]

PARSERS: dict[str, Parser] = {
    "torch": declarations.torch_declarations,
    "op-plugin": vendors.op_plugin,
    "torchgen-backend": vendors.torch_npu,
    "opinfo-failures": vendors.opinfo_failures,
    "musa": vendors.musa,
    "gaudi": vendors.gaudi,
    "xpu-fallback": vendors.xpu_fallback,
    "library-definitions": vendors.library_definitions,
    "flaggems": flaggems.operators,
    "flaggems-black-list": flaggems.black_list,
    "mps-unimplemented": mps.unimplemented,
}


def parse(document: Document, parser: str, options: dict[str, str]) -> dict[str, Entry]:
    """The operators that the document lists.

    Raises:
        InputError: there is no such parser, or the document is not what it reads.
    """
    if parser not in PARSERS:
        raise InputError(f"there is no parser {parser!r} of operator lists; there are: {', '.join(PARSERS)}")
    return PARSERS[parser](document, options)
