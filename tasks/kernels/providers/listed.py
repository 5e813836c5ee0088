"""Which adapters are offered for a target: those whose package has it for the device, and that no vendor's black list
of FlagGems (configs/operators/lists/flaggems-*.yaml) names.
"""

from __future__ import annotations

from functools import cache

from day0.config import read_yaml
from day0.home import configs
from day0.target import load_target
from day0.target_operators import operators_of
from tasks.kernels.definition import KernelDefinition, PackageBackend

_PREFIX = "flaggems-"


def fits(definition: KernelDefinition, backend: str, target: str) -> bool:
    """Whether the package, where a backend is one, has it for the target's device."""
    spec = definition.backend(backend)
    if not isinstance(spec, PackageBackend) or not spec.devices:
        return True
    return operators_of(load_target(target)).device in spec.devices


def black_listed(definition: KernelDefinition, backend: str, target: str) -> str:
    """Why an adapter is not offered for a target: every function that it calls is on the vendor's list; nothing: it is.

    Of an adapter that calls several, some of which work, those decline or fail in its acceptance.
    """
    spec = definition.backend(backend)
    if backend != "flaggems" or not isinstance(spec, PackageBackend) or not spec.calls:
        return ""
    for name in operators_of(load_target(target)).lists:
        listed = _functions(name) if name.startswith(_PREFIX) else {}
        notes = [f"{function} ({listed[function]})" for function in spec.calls if function in listed]
        if len(notes) == len(spec.calls):
            vendor = name.removeprefix(_PREFIX)
            return f"FlagGems' own list for {vendor} says that it does not work: {', '.join(notes)}"
    return ""


@cache
def _functions(name: str) -> dict[str, str]:
    """What a list says is missing, by FlagGems' name, with the note."""
    listed = read_yaml(configs() / "operators" / "lists" / f"{name}.yaml")["operators"]
    found = {}
    for operator, entry in listed.items():
        about = {"status": entry} if isinstance(entry, str) else entry
        if operator.startswith("flag_gems::") and about["status"] == "missing":
            found[operator.removeprefix("flag_gems::")] = str(about.get("note") or "listed")
    return found
