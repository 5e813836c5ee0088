"""AIConfigurator's figures beside ours, where it is installed: in a Python of its own, which the environment names.

ai-dynamo/aiconfigurator (Apache-2.0) predicts from tables measured on NVIDIA systems. It is run as a subprocess and
never imported.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0 import process
from day0.architecture.parallel import Sizes
from day0.artifacts.plan import Layout, ParallelPlan
from day0.errors import InputError

VARIABLE = "DAY0_AICONFIGURATOR"
SCRIPT = Path(__file__).with_name("aiconfigurator_estimates.py")

#: Names of ours → its systems. Others it does not know.
SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"}

#: The version of its tables for vLLM; finding the newest takes it seconds for every estimate.
TABLES = "0.24.0"


@dataclass(frozen=True)
class Figure:
    """What it predicts. `error` says why it does not."""

    seconds: float | None = None
    """Of a token, or until the first, as asked."""
    tokens_per_second_per_device: float | None = None
    kv_dtype: str | None = None
    fits: bool = True
    error: str | None = None

    def sentence(self, chosen: Layout | None) -> str:
        """For people, with ours beside it."""
        if self.seconds is None:
            return f"AIConfigurator gives no figure: {self.error}"
        ours = chosen.seconds_per_token if chosen else None
        beside = f"; ours is {ours * 1e3:.1f} ms" if ours is not None else ""
        room = "" if self.fits else ", though it finds no room for the sequences"
        return f"AIConfigurator predicts {self.seconds * 1e3:.1f} ms a token for the chosen layout{room}{beside}"


def interpreter() -> Path | None:
    """The Python that has AIConfigurator; None where the environment names none.

    Raises:
        InputError: it names something that is no program.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise InputError(
            f"{VARIABLE} is {named}, which is no program; give the Python that AIConfigurator is installed in"
        )
    return path


def request(
    name: str,
    target: str,
    sizes: Sizes,
    *,
    mode: str,
    prompt: int,
    output: int,
    sequences: int,
    experts: bool = False,
    kv_dtype: str | None = None,
) -> dict[str, Any]:
    """Arguments of its estimate of a layout.

    Args:
        name: ORG/NAME on the hub, of a model whose config it has, or a folder with a config.json.
        mode: `static_gen` for the time of a token, `static_ctx` until the first, `agg` for a server with both.
        sequences: of one attention replica.
        experts: whether the model has routed experts.

    Raises:
        InputError: it does not know the target.
    """
    if target not in SYSTEMS:
        raise InputError(f"AIConfigurator does not know {target}; it knows {', '.join(SYSTEMS)}")
    return {
        "model_path": name,
        "system_name": SYSTEMS[target],
        "backend_name": "vllm",
        "backend_version": TABLES,
        "mode": mode,
        "isl": prompt,
        "osl": output,
        "batch_size": sequences,
        "tp_size": sizes.tp,
        "pp_size": sizes.pp,
        "attention_dp_size": sizes.group_replicas,
        "moe_tp_size": sizes.expert_tp if experts else None,
        "moe_ep_size": sizes.ep if experts else None,
        **({"kvcache_quant_mode": kv_dtype} if kv_dtype else {}),
    }


def beside(python: Path, model: Path, plan: ParallelPlan, *, experts: bool) -> Figure:
    """What it predicts for a token of the chosen layout at the plan's context and concurrency.

    Whatever keeps it from that is the figure's `error`: the plan does not depend on it.

    Args:
        model: the folder of the model, or its config file.
    """
    chosen = plan.chosen
    if chosen is None:
        return Figure(error="there is no layout to ask for")
    sizes = Sizes(chosen.tp, chosen.pp, chosen.ep, chosen.dp)
    sequences = -(-plan.concurrency // (sizes.dp * sizes.pp))
    kv_dtype = "fp8" if plan.kv_dtype.startswith("fp8") else "bfloat16"
    try:
        with tempfile.TemporaryDirectory(prefix="day0-") as scratch:
            folder = model
            if not model.is_dir():
                folder = Path(scratch)
                shutil.copyfile(model, folder / "config.json")
            asked = request(
                str(folder), plan.target, sizes, mode="static_gen", prompt=plan.context, output=2,
                sequences=sequences, experts=experts, kv_dtype=kv_dtype,
            )  # fmt: skip
            return figures(python, [asked])[0]
    except (InputError, process.ProcessFailed) as error:
        return Figure(error=str(error))


def estimates(python: Path, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Its answers, as the script gives them.

    Raises:
        ProcessFailed: it is not installed there, or it cannot be run.
        InputError: its answers are not what they should be.
    """
    with tempfile.TemporaryDirectory(prefix="day0-") as scratch:
        asked, answered = Path(scratch, "requests.json"), Path(scratch, "answers.json")
        asked.write_text(json.dumps(list(requests)))
        process.run([str(python), "-W", "ignore", str(SCRIPT), str(asked), str(answered)])
        try:
            found = json.loads(answered.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{python} answered nothing that can be read as AIConfigurator's estimates") from error
    if not isinstance(found, list) or len(found) != len(requests) or not all(isinstance(a, dict) for a in found):
        raise InputError(f"{python} answered something else than AIConfigurator's {len(requests)} estimates")
    return found


def figures(python: Path, requests: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Its answers in our units."""
    return [_figure(answer, asked["mode"]) for asked, answer in zip(requests, estimates(python, requests), strict=True)]


def _figure(answer: Mapping[str, Any], mode: str) -> Figure:
    if "error" in answer:
        return Figure(error=str(answer["error"]))
    milliseconds = answer.get("ttft" if mode == "static_ctx" else "tpot")
    if not isinstance(milliseconds, (int, float)) or not milliseconds > 0:
        return Figure(error="it gave no time")
    return Figure(
        seconds=milliseconds / 1e3,
        tokens_per_second_per_device=answer.get("tokens_per_second_per_device"),
        kv_dtype=answer.get("kv_dtype"),
        fits=bool(answer.get("fits")),
    )
