"""The smoke report as tables."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from day0.artifacts.smoke import ExactParity, SmokeReport

_COLOUR = {"pass": "green", "fail": "red", "inconclusive": "yellow", "skipped": "dim"}


def show(report: SmokeReport, console: Console | None = None) -> None:
    """Print parity by prompt, then every check."""
    console = console or Console()
    if report.prompts:
        parity = Table(
            "prompt", "path", "tokens", "error", "p99", "rounding", "ratio", "top-1", title="Log-probabilities (nats)"
        )
        for p in report.prompts:
            parity.add_row(
                escape(p.prompt), p.path, str(p.tokens), f"{p.error.mean:.4f}", f"{p.error.p99:.3f}",
                f"{p.reference_error.mean:.4f}", _number(p.ratio), _number(p.top1_agreement),
            )  # fmt: skip
        console.print(parity)
    if report.exact:
        show_exact(report.exact, console)
    checks = Table("check", "verdict", "why", title="Checks")
    for check in report.checks:
        colour = _COLOUR[check.verdict]
        checks.add_row(check.name, f"[{colour}]{check.verdict}[/{colour}]", escape(check.reason))
    console.print(checks)
    console.print(f"smoke: [{_COLOUR[report.verdict]}]{report.verdict}[/]: {escape(report.reason)}")


def show_exact(exact: ExactParity, console: Console) -> None:
    """Print the comparison at float32."""
    error = exact.error
    name, largest = max(exact.worst.items(), key=lambda item: item[1])
    console.print(
        f"engine at float32: mean error {error.mean:.2g} nats, p99 {error.p99:.2g}, "
        f"max {largest:.2g} ({escape(name)}), {error.count} positions"
    )


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
