"""The one-page report and the folder's README, from templates; what a model or a file name says is escaped."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from day0.errors import Day0Error
from day0.profile_plots import profile_plots
from day0.verdict import Rung, Verdict, worst
from tasks.recipe import plots
from tasks.recipe.evidence import Evidence, milliseconds, rows, size

_TEMPLATES = Path(__file__).parent / "templates"


def render_report(evidence: Evidence, files: list[str], records: Path | None) -> str:
    """report.html: complete in itself.

    `files` are the recipe's other files; `records` is the benchmark's file of requests, for the gaps' distribution.
    """
    return (
        _environment(autoescape=True)
        .get_template("report.html.j2")
        .render(**_common(evidence), files=files, plots=list(_plots(evidence, records)), cards=list(_cards(evidence)))
    )


def render_readme(evidence: Evidence, files: list[str]) -> str:
    """README.md: how to use the folder."""
    return (
        _environment(autoescape=False)
        .get_template("README.md.j2")
        .render(**_common(evidence), files=files, completion=_completion(evidence.launch.served_model_name))
    )


def _completion(model: str) -> str:
    """A request that proves the service ready, as one word for a shell; no markup in it, as JSON's own escapes."""
    body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 8})
    return shlex.quote(body.replace("<", "\\u003c"))


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size, "ms": milliseconds, "line": _one_line}
    return environment


def _common(evidence: Evidence) -> dict[str, Any]:
    next_rung, lacking = evidence.next_rung()
    table = rows(evidence)
    return {
        "e": evidence,
        "model": evidence.snapshot.name,
        "launch": evidence.launch,
        "rows": table,
        "rung": evidence.rung,
        "rungs": list(Rung),
        "next_rung": next_rung,
        "lacking": lacking,
        "follow_up": evidence.follow_up(),
        "given": [kernel.name for kernel in evidence.launch.given],
        "verdict": worst(row.verdict or Verdict.INCONCLUSIVE for row in table),
    }


def _one_line(text: str) -> str:
    """For Markdown: on one line, and no markup in it."""
    return " ".join(text.split()).replace("`", "'").replace("<", "‹").replace(">", "›")


def _cards(evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    """The numbers at the top: (what, value, condition)."""
    smoke, benchmark = evidence.smoke, evidence.benchmark
    if smoke and smoke.ratio is not None:
        yield (
            "error, against rounding",
            f"{smoke.ratio:.2f}×",
            "engine's mean error over the reference's own at its dtype",
        )
    if smoke and smoke.top1_agreement is not None:
        yield "top-1 agreement", f"{smoke.top1_agreement:.1%}", "with the float32 reference, near ties aside"
    if benchmark is None:
        return
    for cell in benchmark.cells:
        if cell.concurrency == 1 and cell.prefix_cache == "cold" and cell.ttft and cell.tpot:
            lengths = f"concurrency 1, cold, {benchmark.conditions['input_tokens']} tokens in"
            yield "TTFT p50", milliseconds(cell.ttft.p50), lengths
            yield "TPOT p50", milliseconds(cell.tpot.p50), lengths
    best = max(
        (cell for cell in benchmark.cells if cell.output_tokens_per_second is not None),
        key=lambda cell: cell.output_tokens_per_second or 0.0,
        default=None,
    )
    if best and best.output_tokens_per_second:
        condition = f"concurrency {best.concurrency}, {best.prefix_cache} prefix cache"
        yield "output tokens/s", f"{best.output_tokens_per_second:.1f}", condition
    if benchmark.roofline:
        yield "of the memory roofline", f"{benchmark.roofline.share:.0%}", "decode at concurrency 1"


def _plots(evidence: Evidence, records: Path | None) -> Iterator[tuple[str, Markup]]:
    """(caption, SVG). The SVG is matplotlib's own, which escapes its texts."""
    if evidence.smoke and evidence.smoke.prompts:
        yield "Parity with the reference, by prompt", Markup(plots.parity(evidence.smoke.prompts))
    cells = [cell for cell in evidence.benchmark.cells if cell.ttft and cell.tpot] if evidence.benchmark else []
    if cells:
        yield "Latency by concurrency and prefix cache", Markup(plots.latency(cells))
    if records is not None and (by_cell := _gaps(records)):
        yield "Inter-token latency, all tokens", Markup(plots.gaps(by_cell))
    for caption, svg in profile_plots(evidence.profile):
        yield caption, Markup(svg)
    if evidence.plan.chosen:
        yield "Memory of the fullest device", Markup(plots.memory(evidence.plan.chosen.per_device))


def _gaps(records: Path) -> list[tuple[str, list[float]]]:
    """Seconds between successive tokens, by cell, of the requests that were complete.

    Raises:
        Day0Error: the file is not what the benchmark writes.
    """
    cells: dict[str, list[float]] = {}
    try:
        for line in records.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["fault"] is None:
                arrivals = record["arrivals"]
                between = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
                cells.setdefault(f"{record['concurrency']} × {record['prefix_cache']}", []).extend(between)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Day0Error(f"the benchmark's record {records} cannot be read: {error}; run the benchmark again") from error
    return [(name, values) for name, values in cells.items() if values]
