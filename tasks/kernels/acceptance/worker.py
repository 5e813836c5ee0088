"""The acceptance's own process: `python -m tasks.kernels.acceptance.worker REQUEST ANSWER`.

Lines on standard output that begin with `at: ` say what is being tried, so that whoever started this process knows
where it was when it died.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from day0.device_probe import UNOPENED, open_device
from day0.files import write_json
from tasks.kernels import load
from tasks.kernels.acceptance.bridge import Bridge, BridgedStream, DeviceStream
from tasks.kernels.acceptance.examine import Candidate, Examination
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.huge import available_memory
from tasks.kernels.acceptance.interpreter import compute_as_devices_do, interpreting
from tasks.kernels.acceptance.records import OPENING, Answer, Request
from tasks.kernels.acceptance.tampering import Snapshot, check_threads, settled, threads
from tasks.kernels.definition import KernelDefinition, label

#: Threads that a kernel's own pool may keep, asleep.
_POOL = 64
_CODES = (torch.float8_e4m3fn, torch.float8_e5m2)


def main() -> None:
    request = Request.model_validate_json(Path(sys.argv[1]).read_bytes())
    write_json(Path(sys.argv[2]), accept(request).to_json())


def accept(request: Request) -> Answer:
    """Examine the kernel, and say what was found."""
    definition = KernelDefinition(Path(request.folder))
    say(OPENING)
    try:
        hardware = open_device(request.device, request.modules)
    except UNOPENED as why:
        return Answer(absent=brief(why), fault=None, error={})
    say("loading")
    settled()
    before, snapshot = threads(), Snapshot()
    library = Path(request.library) if request.library else None
    if interpreting():
        compute_as_devices_do()
    load.load(definition, request.backend, library, request.key)
    candidate = Candidate(load.operator(definition), load.out_operator(definition, request.backend))
    bridge = Bridge(definition, request.device) if request.bridged else None
    stream = DeviceStream(request.device)
    examination = Examination(
        definition,
        candidate,
        request.seed,
        device="cpu" if bridge else request.device,
        largest=request.largest,
        dtypes=request.dtypes,
        say=say,
        poison=bridge.poison if bridge else None,
        stream=BridgedStream(bridge, stream) if bridge and stream.exists else None,
    )
    error = examination.error
    error["device"] = hardware
    try:
        say("a first call")
        examination.run()
        if answered := load.calls(definition, request.backend):
            error["calls"] = answered.to_json()
        if bridge:
            bridge.finish()
        snapshot.check()
        error["threads_left"] = check_threads(before, _POOL)
        if request.dtypes is None or definition.file.dtypes[0] in request.dtypes:  # it is for that one alone
            say("opcheck")
            opcheck(definition, examination)
        say("huge")
        examination.huge(available_memory(request.device))
    except Fault as fault:
        return Answer(fault=str(fault), kind=fault.kind, error=error)
    return Answer(fault=None, error=error)


def opcheck(definition: KernelDefinition, examination: Examination) -> None:
    """torch's own checks of an operator: its schema, its meta function, tracing with fixed and with free sizes.

    Raises:
        Fault: names the check that failed.
    """
    name = definition.file.dtypes[0]
    case = next((c for c in examination.cases if all(v for v in c.values())), examination.cases[0])
    args = definition.make(case, getattr(torch, name), torch.Generator(examination.device), examination.device)
    checks = ["test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic"]
    if any(isinstance(value, torch.Tensor) and value.dtype in _CODES for value in args):
        # It compares arguments before and after by arithmetic that torch does not have for these. Changed arguments
        # and aliases have been looked for by then.
        checks.remove("test_schema")
    called = getattr(torch.ops.day0, definition.name).default
    results = torch.library.opcheck(called, args, test_utils=checks, raise_exception=False)
    for check, result in results.items():
        if result != "SUCCESS":
            detail = brief(result) if isinstance(result, BaseException) else str(result)
            raise Fault("opcheck", f"{name}, {label(case)}: {check}: {detail}")
    examination.error["opcheck"] = sorted(check.removeprefix("test_") for check in checks)


def say(where: str) -> None:
    print(f"at: {where}", flush=True)


if __name__ == "__main__":
    main()
