"""What gpu_kernels.py needs beside Python: a GPU costs by the minute, so what is missing is told first."""

from __future__ import annotations

import importlib
import importlib.util
import sys

#: Modules, by the packages that have them. torch and Triton take seconds to import: that they are there must do.
NEEDS = {"PyYAML": "yaml", "pydantic": "pydantic", "packaging": "packaging", "numpy": "numpy"}
FOUND = {"torch": "torch", "triton": "triton"}


def lacking() -> str:
    """What is missing, and the remedy; nothing: all is here."""
    absent = [package for package, module in FOUND.items() if importlib.util.find_spec(module) is None]
    reasons = []
    for package, module in NEEDS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:  # its own absence, or that of something it needs
            absent.append(package)
            reasons.append(str(error))
    if not absent:
        return ""
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"missing here: {', '.join(absent)}{why}\n{sys.executable} -m pip install {' '.join(absent)}"


def leave_where_something_is_missing() -> None:
    """Exit code 2."""
    if said := lacking():
        print(said, flush=True)
        raise SystemExit(2)
