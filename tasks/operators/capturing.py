"""A capture had from a process of its own, or from a container; and an answer that is none."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from day0 import home, process
from day0.errors import EvidenceMissing
from day0.files import write_json
from day0.progress import report
from tasks.operators.measure import CONTEXT, PROMPT
from tasks.operators.records import Capture, CaptureRequest
from tasks.operators.resemblance import resembling
from tasks.operators.settings import OperatorSettings


class CaptureUnreadable(Exception):
    """The capture ended well and left no answer, or not one that can be read."""


class CaptureEndless(Exception):
    """The capture did not end in the time that it is given."""


def run_capture(config: Mapping[str, Any], settings: OperatorSettings) -> Capture:
    """The capture of this model, made by a process of its own."""
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if lacking:
        raise EvidenceMissing(
            f"the operator scan needs {' and '.join(lacking)}, which are not installed here: "
            "pip install 'day0[reference]'"
        )
    report("tracing the model")
    request = _request(config, settings).model_copy(update={"resembling": resembling(config)})
    return _captured(request, settings.trace_limit)


def run_own_code(config: Mapping[str, Any], settings: OperatorSettings, folder: Path) -> Capture:
    """The capture of this model by the release's own code; what is registered is asked of the torch here."""
    from tasks.operators.own_code import capture_by_code  # Docker: only where it is asked for

    request = _request(config, settings)
    found = capture_by_code(folder, request.model_copy(update={"modules": ()}))
    if found.unsupported:
        return found
    names = tuple(sorted(found.registrations))
    here = _captured(request.model_copy(update={"registrations_of": names}), settings.trace_limit)
    # Which kernels there are is a matter of the torch that will run the model, not of the one that traced it.
    packages = {**found.packages, "torch": here.packages["torch"]}
    return found.model_copy(
        update={"registrations": here.registrations, "key_readable": here.key_readable, "packages": packages}
    )


def _request(config: Mapping[str, Any], settings: OperatorSettings) -> CaptureRequest:
    return CaptureRequest(
        config=dict(config),
        prompt=settings.prompt,
        context=settings.context,
        dispatch_key=settings.operators.dispatch_key,
        # Where the device is not here, they may be there and fail.
        modules=settings.operators.modules if settings.hardware else (),
        graph=settings.graph,
        calls_at=(PROMPT, CONTEXT) if settings.hardware and settings.measure is not False else None,
    )


def _captured(request: CaptureRequest, limit: float) -> Capture:
    """A request answered by a process of its own within `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="day0-operators-") as folder:
        asked, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(asked, request.to_json())
        command = [sys.executable, "-m", "tasks.operators.capture", str(asked), str(answer)]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            process.run_within(limit, command, cwd=home.PROJECT, env=env)
        except process.TimedOut as error:
            raise CaptureEndless(f"it took longer than {limit:g} s") from error
        try:
            return Capture.model_validate_json(answer.read_bytes())
        except (OSError, ValidationError) as error:
            raise CaptureUnreadable(f"the trace left no answer that can be read: {error}") from error
