"""A checklist of a model's operators, that the next model is compared with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pydantic import Field, ValidationError

from day0.artifacts.base import Frozen
from day0.artifacts.operators import Gap, News, Operator, OperatorReport, Status
from day0.errors import InputError
from day0.files import write_json
from tasks.operators.costs import work_class
from tasks.operators.ranking import is_there

FORMAT = "day0 operator checklist"


class Entry(Frozen):
    """An operator as a model calls it."""

    phases: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Of its tensors; none where they are not known."""
    work: str
    """The kind of kernel it needs."""
    status: Status
    """On the checklist's target."""


class Checklist(Frozen):
    """What a model calls."""

    format: str = Field(default=FORMAT, pattern=f"^{FORMAT}$")
    model: str
    target: str
    operators: dict[str, Entry] = Field(min_length=1)


def checklist_of(report: OperatorReport) -> Checklist:
    """A report's operators.

    Raises:
        InputError: the report has none, so that everything would be new to the next model.
    """
    found: dict[str, list[tuple[str, Operator]]] = {}
    for phase, content in report.phases.items():
        for o in content.operators:
            found.setdefault(o.name, []).append((phase, o))
    if not found:
        raise InputError("the scan found no operators, so there is no checklist to write")
    return Checklist(
        model=report.model,
        target=report.target,
        operators={
            name: Entry(
                phases=tuple(phase for phase, _ in calls),
                dtypes=tuple(sorted({dtype for _, o in calls for dtype in o.dtypes})),
                work=work_class(name),
                status=calls[0][1].status,
            )
            for name, calls in sorted(found.items())
        },
    )


def write_checklist(path: Path, report: OperatorReport) -> None:
    """Write a report's checklist.

    Raises:
        InputError: there is nothing to write, or the file cannot be written.
    """
    content = checklist_of(report).model_dump(mode="json")
    try:
        write_json(path, content)
    except OSError as error:
        raise InputError(f"the checklist {path} cannot be written: {error.strerror or error}") from error


def read_checklist(path: Path) -> Checklist:
    """Raises InputError: the file cannot be read, or is no checklist."""
    try:
        return Checklist.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"the checklist {path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path} is no operator checklist ({where + ': ' if where else ''}{first['msg']}): "
            "write one with day0 operators PATH --target T --checklist FILE"
        ) from error


def news_since(report: OperatorReport, before: Checklist) -> News:
    """What a model calls that the checklist's did not, and the kernels that have to be written for it."""
    now = checklist_of(report).operators
    new = [name for name in now if name not in before.operators]
    gaps = {gap.name: gap for gap in report.gaps}
    lacking = tuple(gaps[name] for name in new if name in gaps)
    return News(
        against=before.model,
        operators=tuple(sorted(lacking, key=_order)),
        there=tuple(name for name in new if is_there(now[name].status)),
        dtypes={
            name: added
            for name, entry in now.items()
            if name in before.operators
            and before.operators[name].dtypes
            and (added := tuple(d for d in entry.dtypes if d not in before.operators[name].dtypes))
        },
        gone=tuple(name for name in before.operators if name not in now),
        work=dict(Counter(gap.work for gap in lacking).most_common()),
    )


def _order(gap: Gap) -> tuple[float, str]:
    return (-(2.0 if gap.share is None else gap.share), gap.name)
