"""Asks AIConfigurator for estimates. Run by the Python that has it, never imported: REQUESTS.json ANSWERS.json.

Each request has the arguments of its `cli_estimate` (model_path, system_name, backend_name, mode, isl, osl,
batch_size, tp_size, …). Each answer has milliseconds (`ttft`, `tpot`) and `fits`, or `error`; and `parts`, milliseconds
by operator, of the modes that compute one pass. Many in one process, since its tables take seconds to load.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any


def main(requests: Path, answers: Path) -> None:
    logging.disable(logging.CRITICAL)
    estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
    found = [answer(estimate, request) for request in json.loads(requests.read_text())]
    answers.write_text(json.dumps(found))


def answer(estimate: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = estimate(**request)
    except Exception as error:  # its own kinds are many; each request is answered by itself
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    parts: dict[str, float] = {}
    if request.get("mode", "agg") != "agg":
        passed = {**found.summary.get_context_latency_dict(), **found.summary.get_generation_latency_dict()}
        parts = {name: round(float(value), 3) for name, value in passed.items()}
    return {
        "ttft": round(float(found.ttft), 4),
        "tpot": round(float(found.tpot), 4),
        "tokens_per_second_per_device": round(float(found.tokens_per_second_per_gpu), 4),
        "kv_dtype": found.raw.get("kvcache"),
        "fits": found.kv_cache_warning is None,
        "parts": parts,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
