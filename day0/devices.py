"""Whether an accelerator is here. torch is asked in a process of its own, and never imported by the one that asks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys

from day0 import home, process
from day0.errors import EvidenceMissing
from day0.target_operators import Device

#: Seconds in which a device opens, its driver and its module of torch with it; a broken one may never.
LIMIT = 180.0

#: Versions of the wheels that PyTorch itself publishes, with what they were built for.
_UPSTREAM = re.compile(r"[^+]*(\+(cpu|cu\d+|rocm[\d.]+|git\w+))?")


class DeviceAbsent(EvidenceMissing):
    """The device is not here, or cannot be used. The message says why, as a clause."""


def hardware(device: Device) -> str:
    """What the device calls itself, such as `NVIDIA H200`, after a tensor has been on it and back.

    Raises:
        DeviceAbsent: it is not here: no torch, another vendor's torch, no such module, no such device.
        StageTimeout, Cancelled: the stage's own time was up.
    """
    if why := lacking(device):
        raise DeviceAbsent(why)
    if device.key == "CPU":
        return platform.machine()  # it need not be opened
    found: list[str] = []

    def listen(line: str) -> None:
        if line.startswith("device: "):
            found.append(line.removeprefix("device: "))

    command = [sys.executable, "-m", "day0.device_probe", device.name, *device.modules]
    try:
        process.run_within(LIMIT, command, cwd=home.PROJECT, on_line=listen)
    except process.ProcessFailed as error:
        last = next((line.strip() for line in reversed(error.tail) if line.strip()), "its process printed nothing")
        raise DeviceAbsent(f"no {device.name} here: {last[:300]}") from error
    except process.TimedOut as error:
        raise DeviceAbsent(f"no {device.name} here: it did not open in {LIMIT:g} s") from error
    if not found:
        raise DeviceAbsent(f"no {device.name} here: its process gave no answer")
    return found[-1]


def lacking(device: Device) -> str | None:
    """Why the device cannot be here, as far as that shows without opening it; None: it may be."""
    if why := other_torch(device.torch_build, device.torch_plugin):
        return why
    version = _version("torch") or ""
    if device.key == "CUDA" and device.torch_plugin is None and version.endswith("+cpu"):
        return f"the torch installed here ({version}) was built without CUDA"
    modules = [name for name in device.modules if not _importable(name)]
    return f"{', '.join(modules)}, which brings {device.name}, is not installed here" if modules else None


def upstream(device: Device) -> bool:
    """Whether the device is one of PyTorch's own builds, whose operators PyTorch tests: its answers can be trusted."""
    version = _version("torch") or ""
    return device.key == "CPU" or (
        device.key == "CUDA" and device.torch_plugin is None and _UPSTREAM.fullmatch(version) is not None
    )


def other_torch(build: str | None, plugin: str | None, version: str | None = None) -> str | None:
    """Why the installed torch is not the target's own; None: it is.

    Args:
        build: a regular expression for the version of the target's torch.
        plugin: the package that makes an installed torch the target's.
        version: of torch; None: of the installed one.
    """
    version = _version("torch") if version is None else version
    if version is None:
        return "torch is not installed here"
    if build and not re.search(build, version):
        return f"the torch installed here ({version or 'of an unknown build'}) is not the target's"
    if plugin and _version(plugin) is None:
        return f"{plugin} is not installed here"
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _importable(module: str) -> bool:
    """Of its package only: to find what lies in a package imports the package, and torch with it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None
