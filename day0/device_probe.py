"""Opens a device: `python -m day0.device_probe NAME [MODULE]...` prints what it calls itself.

Imports torch: only processes of their own use it.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterable

import torch

#: What is raised where a device is not there: torch was built without it, its module or a library of the driver is
#: missing, or the driver finds none.
UNOPENED = (ImportError, OSError, RuntimeError, AssertionError, AttributeError, NotImplementedError)


def open_device(name: str, modules: Iterable[str] = ()) -> str:
    """Import the modules that bring a device, move a tensor there and back, and say what the device calls itself.

    Raises:
        ImportError, OSError, RuntimeError, AssertionError, AttributeError: see UNOPENED.
    """
    for module in modules:
        importlib.import_module(module)
    device = torch.device(name)
    if torch.ones(2).to(device).cpu().tolist() != [1.0, 1.0]:
        raise RuntimeError(f"a tensor that was on {name} and came back is another one")
    if device.type == "cpu":
        return platform.machine()
    called = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(called(device.index or 0)) if callable(called) else name


if __name__ == "__main__":
    try:
        print(f"device: {open_device(sys.argv[1], sys.argv[2:])}", flush=True)
    except UNOPENED as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
