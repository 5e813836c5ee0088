"""Kernels for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

from day0.artifacts.kernels import Kernel
from day0.verdict import Verdict

_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow", Verdict.SKIPPED: "dim"}


def show_kernels(kernels: Sequence[Kernel], target: str, timed: bool = False) -> None:
    """A table of kernels, then why some are not accepted; after a build, why some are not built."""
    console = Console()
    if not kernels:
        console.print(f"no kernels are provided for {target}")
        return
    if any("built" in kernel.error for kernel in kernels):
        _show_builds(console, kernels)
        return
    timings = timed or any(kernel.speedup for kernel in kernels)
    names = [Column(title, no_wrap=True) for title in ("kernel", "backend", "verdict")]
    numbers = [Column(title, justify="right") for title in ("error", *(_TIMED if timings else ()))]
    judged = any(_ratio(kernel) != "-" for kernel in kernels)
    table = Table(*names, *numbers, "used", box=box.SIMPLE, padding=0, caption=_ERROR if judged else None)
    for kernel in kernels:
        colour = _COLOURS[kernel.verdict]
        row = [kernel.name, kernel.backend, f"[{colour}]{kernel.verdict}[/{colour}]", _ratio(kernel)]
        if timings:
            row += [_times(kernel, "eager"), _times(kernel, "compiled"), _share(kernel.roofline)]
        table.add_row(*row, "" if kernel.chosen is None else "yes")
    console.print(table)
    _show_reasons(console, kernels)
    for kernel in kernels:
        if place := kernel.error.get("exported"):
            text = f"{kernel.name} for {kernel.backend} is in {place}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)  # paths are copied from it
        if kernel.chosen and timed:
            console.print(f"{kernel.name} for {kernel.backend} is used: {kernel.chosen}", markup=False, highlight=False)
    for kernel in kernels if timed else ():
        for case in kernel.speedup.get("cases", ()):
            compiled = "" if case["compiled"] is None else f", compiled {case['compiled'] * 1e3:.3g} ms"
            console.print(
                f"{kernel.name} for {kernel.backend}, {case['dtype']}, {case['case']}: {case['kernel'] * 1e3:.3g} ms, "
                f"eager {case['eager'] * 1e3:.3g} ms{compiled}, {case['roofline']:.0%} of a copy's bandwidth, "
                f"outputs {case['outputs']}{'' if case['answered'] else ', by the reference: the package has none'}",
                markup=False,
                highlight=False,
            )


def _show_builds(console: Console, kernels: Sequence[Kernel]) -> None:
    """What was built. Verdicts are another matter, and other projects' kernels are not built here."""
    table = Table(*(Column(title, no_wrap=True) for title in ("kernel", "backend", "built")), box=box.SIMPLE, padding=0)
    ours = [kernel for kernel in kernels if "built" in kernel.error]
    for kernel in ours:
        built = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "[yellow]not here[/yellow]"}
        table.add_row(kernel.name, kernel.backend, built[kernel.error["built"]])
    console.print(table)
    _show_reasons(console, [kernel for kernel in ours if not kernel.error["built"]])
    for kernel in ours:
        if kernel.error["built"]:
            console.print(_built(kernel), markup=False, highlight=False, soft_wrap=True)


def _show_reasons(console: Console, kernels: Sequence[Kernel]) -> None:
    """Each once, with all that have it."""
    reasons: dict[str, list[str]] = {}
    for kernel in kernels:
        if reason := kernel.error.get("reason"):
            reasons.setdefault(reason, []).append(f"{kernel.name} for {kernel.backend}")
    for reason, which in reasons.items():
        whose = ", ".join(which) if len(which) == 1 or len(which) < len(kernels) else f"all {len(which)}"
        console.print(f"{whose}: {reason}", markup=False, highlight=False)


#: As `Sums.report` of acceptance/errors.py has it: the worst case's mean error above the absolute tolerance.
_ERROR = "error: the mean error over the framework's own, where it was judged"
_TIMED = ("over\neager", "over\ncompiled", "of a\ncopy")


def _built(kernel: Kernel) -> str:
    """Where a build lies and, of what was compiled ahead of time, how much spills."""
    functions = kernel.error.get("functions") or ()
    counted = f", {len(functions)} functions" if functions else ""
    if spilling := [function for function in functions if function["spills"]]:
        most = max(spilling, key=lambda function: function["spills"])
        counted += f", {len(spilling)} of which spill registers, most {most['name']}: {most['spills']} in each thread"
    return f"{kernel.name} for {kernel.backend} is built{counted}: {kernel.error['library']}"


def _ratio(kernel: Kernel) -> str:
    """The largest ratio of mean errors that was judged, over dtypes and outputs; nothing where all were exact or below
    the absolute tolerance."""
    ratios = [
        output["worst_ratio"]
        for by_output in kernel.error.values()
        if isinstance(by_output, dict)
        for output in by_output.values()
        if isinstance(output, dict) and output.get("worst_ratio")
    ]
    return f"{max(ratios):.2f}" if ratios else "-"


def _times(kernel: Kernel, name: str) -> str:
    value = kernel.speedup.get(name)
    return "-" if value is None else f"{value:.2f}×"


def _share(roofline: float | None) -> str:
    return "-" if roofline is None else f"{roofline:.0%}"
