"""Kernels for people."""

from __future__ import annotations

from typing import Any

import pytest

from day0.artifacts.kernels import Kernel
from day0.verdict import Verdict
from tasks.kernels.render import show_kernels


def made(backend: str = "cpu", verdict: Verdict = Verdict.PASS, **more: Any) -> Kernel:
    about: dict[str, Any] = {"error": {}, "speedup": {}, "roofline": None, "digest": "0"}
    return Kernel(name="scale", backend=backend, verdict=verdict, **(about | more))


def shown(capsys: pytest.CaptureFixture[str], *kernels: Kernel) -> list[str]:
    show_kernels(kernels, "cpu")
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def judged(ratio: float, worst: float) -> dict[str, Any]:
    return {"output 0": {"ratio": ratio, "worst_ratio": worst}}


def test_the_ratio_is_the_one_that_was_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """Of errors far below the absolute tolerance none was, whatever their ratio."""
    below, above = {"float32": judged(9.43, 0.0)}, {"float32": judged(9.43, 0.0), "bfloat16": judged(1.0, 1.02)}
    lines = shown(capsys, made(error=below), made("triton", error=above))
    assert "scale cpu pass -" in lines
    assert "scale triton pass 1.02" in lines


def test_a_reason_that_many_have_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"reason": "not accepted yet"}
    untried = [made(backend, Verdict.INCONCLUSIVE, error=error) for backend in ("cuda", "triton")]
    assert shown(capsys, made(), *untried)[-1] == "scale for cuda, scale for triton: not accepted yet"
    assert shown(capsys, *untried)[-1] == "all 2: not accepted yet"


def test_paths_are_whole_where_lines_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    library = "/a/long/folder" * 8 + "/scale.so"
    assert shown(capsys, made(error={"built": True, "library": library}))[-1] == f"scale for cpu is built: {library}"


def test_timings_are_shown_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    timed = made(speedup={"eager": 4.6, "compiled": 1.4}, roofline=0.92, chosen="the only accepted one")
    assert "scale cpu pass - 4.60× 1.40× 92% yes" in shown(capsys, timed, made("triton"))


def test_after_a_build_it_is_said_what_was_built(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what was, "not accepted yet" is no news; of what was not, the compiler's first error is."""
    untried = {"reason": "not accepted yet"}
    lines = shown(
        capsys,
        made("hub", Verdict.INCONCLUSIVE, error=untried),
        made("cuda", Verdict.INCONCLUSIVE, error=untried | {"built": True, "library": "/kernels/KEY"}),
        made("triton", Verdict.FAIL, error={"built": False, "reason": "triton/kernel.py:9: nowhere is not defined"}),
    )
    assert "scale cuda yes" in lines
    assert "scale triton no" in lines
    assert lines[-2:] == [
        "scale for triton: triton/kernel.py:9: nowhere is not defined",
        "scale for cuda is built: /kernels/KEY",
    ]
    assert not [line for line in lines if "not accepted" in line or "hub" in line]
