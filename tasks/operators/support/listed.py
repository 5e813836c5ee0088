"""What dated lists say: a vendor's of its backend, a library's of its kernels, and what of either fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from day0.artifacts.operators import Status
from day0.target_operators import TargetOperators
from tasks.operators.lists.model import Entry, OperatorList, load_list
from tasks.operators.records import Registration
from tasks.operators.support.findings import Finding

#: Where several lists of one backend differ, the one that has it counts: each is of a part of the backend.
BEST: tuple[Status, ...] = ("native", "composite", "fallback", "unknown", "missing")


@dataclass(frozen=True)
class Named:
    """An entry with the list that has it."""

    name: str
    content: OperatorList
    entry: Entry

    @property
    def source(self) -> str:
        return f"list {self.name}: {self.content.source.describe()}"


class Listed:
    """The lists that a target's config names, and the names in the config itself."""

    def __init__(
        self,
        operators: TargetOperators,
        registrations: Mapping[str, Registration],
        lists: Mapping[str, OperatorList] | None = None,
    ) -> None:
        found = {name: load_list(name) for name in operators.lists} if lists is None else lists
        self.backend = {name: content for name, content in found.items() if content.role == "backend"}
        self.doubts = {name: content for name, content in found.items() if content.role == "backend_doubts"}
        self.library = {name: content for name, content in found.items() if content.role == "library"}
        self.lacks = {name: content for name, content in found.items() if content.role == "library_lacks"}
        self.own = frozenset(operators.operators)
        self.own_source = operators.source
        self.registrations = registrations

    @property
    def empty(self) -> bool:
        """No list tells what the backend has."""
        return not self.backend and not self.own

    @property
    def source(self) -> str:
        """All lists of the backend, for a finding that rests on none of them naming an operator."""
        kept = [f"list {name}: {content.source.describe()}" for name, content in self.backend.items()]
        return "; ".join(kept or [self.own_source])

    def kernel(self, overload: str, dtypes: Collection[str] = ()) -> Finding | None:
        """What the backend's lists say of this overload, or of the out= overload that it computes through."""
        registration = self.registrations.get(overload)
        delegate = registration.delegate if registration else None
        for name in (overload, delegate):
            if name and (finding := self._entry(name, dtypes)):
                same = name == overload or finding.status != "native"
                return finding if same else finding.model_copy(update={"via": name})
        return None

    def _entry(self, overload: str, dtypes: Collection[str]) -> Finding | None:
        if overload in self.own or f"{overload.partition('.')[0]}.*" in self.own:
            return Finding(kind="listed", status="native", source=self.own_source)
        named = _find(self.backend, overload)
        if not named:
            return None
        best = min(named, key=lambda n: BEST.index(n.entry.status))
        date = best.content.source.date
        finding = Finding(
            kind="listed",
            status=best.entry.status,
            via=best.entry.note if best.entry.status == "unknown" else best.entry.via,
            source=best.source,
            date=date.isoformat() if date else None,
            detail=best.entry.note,
        )
        lacking = sorted(set(dtypes) - set(best.entry.dtypes)) if best.entry.dtypes else []
        if not lacking:
            return finding
        return finding.model_copy(update={"status": "missing", "detail": f"not for {', '.join(lacking)}"})

    def doubted(self, overload: str, dtypes: Collection[str] = ()) -> tuple[str, ...]:
        """Where the vendor's own tests fail: with these dtypes, or where none are given with any."""
        said = []
        for doubt in _find(self.doubts, overload):
            fails = doubt.entry.fails
            if not dtypes or not fails or set(dtypes) & set(fails):
                why = f"{doubt.entry.note or 'it fails'} ({', '.join(fails) or 'any dtype'})"
                said.append(f"{overload} is in doubt by its vendor's own tests: {why}, {doubt.source}")
        return tuple(said)

    def offered(self, overload: str) -> tuple[str, ...]:
        """What libraries say: that they have a kernel, and whether it is known to fail on the vendor's devices."""
        said = []
        for offer in _find(self.library, overload):
            own = offer.entry.via or overload.partition("::")[2]
            lacks = _find(self.lacks, f"flag_gems::{own}")
            detail = f" ({offer.entry.note})" if offer.entry.note else ""
            if lacks:
                why = "; ".join(f"{lack.entry.note or 'no reason'}, {lack.source}" for lack in lacks)
                said.append(f"{offer.name} has a kernel{detail} that does not work there: {why}")
            else:
                said.append(f"{offer.name} has a kernel{detail}, not proven there: {offer.source}")
        return tuple(said)


def _find(lists: Mapping[str, OperatorList], overload: str) -> list[Named]:
    return [
        Named(name, content, entry) for name, content in lists.items() if (entry := content.find(overload)) is not None
    ]
