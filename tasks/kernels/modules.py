"""A kernel's Python files, loaded from where they lie."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from day0.errors import InputError


def load_module(path: Path) -> ModuleType:
    """A Python file as a module of its own, not found by name.

    Raises:
        InputError: it cannot be imported; the sentence says why.
    """
    name = f"day0_kernel_{path.parent.name}_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # torch.compile looks a function's module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a foreign file raises, it is that file's fault
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """Raises InputError: the module has no function of that name."""
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{module.__file__} has no function {name}")
    found: Callable[..., Any] = function
    return found
