"""The table of gpu_kernels.py: which result decides a row, whether its limits are kept, and its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OURS = ("triton", "cuda")
#: As fast as compiled code means: within what two runs of the same code differ by.
NOISE = 1.02
HEAD = f"{'kernel':24} {'size':38} {'backend':9} {'us':>9} {'eager':>9} {'compiled':>9} {'share':>7} {'x comp.':>8}"


def judged(
    row: dict[str, Any], measured: Sequence[dict[str, Any]], reasons: Mapping[str, str], why: str
) -> list[dict[str, Any]]:
    """A result for each backend of a row; the fastest of ours that is right decides whether the limits are kept.

    Args:
        reasons: why a backend is not accepted, nothing where it is.
        why: nothing was measured.
    """
    described = {"kernel": row["kernel"], "title": row["title"], "judged": True, "kept": False, "seconds": None}
    described |= {"limits": {"share": row.get("share"), "over_compiled": row.get("over_compiled", 1)}, "notes": []}
    if not measured:
        return [described | {"backend": "none", "reason": f"not measured: {why}"}]
    results = [_against_limits(described | one, row, not reasons.get(one["backend"])) for one in measured]
    ours = [result for result in results if result["backend"] in OURS]
    right = [result for result in ours if result["seconds"] and not result["reason"]]
    best = min(right, key=lambda r: (not r["accepted"], r["seconds"])) if right else next(iter(ours), results[0])
    return [result | {"judged": result is best} for result in results]


def _against_limits(result: dict[str, Any], row: dict[str, Any], accepted: bool) -> dict[str, Any]:
    result["accepted"] = accepted
    if result["seconds"] and not result["reason"]:
        result["share"] = result["moved"] / result["seconds"] / result["bandwidth"]
        result["over_compiled"] = result["compiled"] / result["seconds"] if result["compiled"] else None
        fast = result["over_compiled"] is not None and result["over_compiled"] >= row.get("over_compiled", 1 / NOISE)
        result["kept"] = accepted and fast and result["share"] >= row.get("share", 0)
    return result


def line_of(result: dict[str, Any]) -> str:
    line = f"{result['kernel']:24} {result['title']:38} {result['backend']:9} "
    if result.get("reason") and not result["seconds"]:
        return f"{line}not kept: {result['reason']}"
    times = " ".join(f"{result[n] * 1e6:9.1f}" if result[n] else f"{'-':>9}" for n in ("seconds", "eager", "compiled"))
    if result["reason"]:
        return f"{line}{times}  not kept: {result['reason']}"
    over = result["over_compiled"]
    line += f"{times} {result['share']:6.1%} {f'{over:.2f}' if over else '-':>8}"
    limits = result["limits"]
    wanted = [f"share {limits['share']:.0%}"] if limits["share"] else []
    wanted.append(f"{limits['over_compiled']} x compiled")
    said = [f"{'kept' if result['kept'] else 'not kept'}: {', '.join(wanted)}"] if result["judged"] else []
    said += [] if result["accepted"] else ["not accepted"]
    return "; ".join([f"{line}  {said[0]}" if said else line, *said[1:], *result["notes"]])
