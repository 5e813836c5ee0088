"""One pass of the watcher: what is new is claimed in the ledger, then started; each release once on each target.

The claim is a row under a unique constraint, made before anything starts: of several watchers one gets it, however
they run. It is kept as soon as a run is recorded; where none could begin it is given back for a later pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from threading import Event
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from day0.errors import Cancelled, Day0Error, InputError, Unavailable
from day0.ledger import Ledger, Run, Seen, now
from flows.releases import Candidate, Unreadable, in_folder, open_hub, since
from flows.watch_file import WatchFile

#: Seconds that a pass itself waits for a release to settle; a longer quiet period is for the next pass.
PATIENCE = 15.0

#: A claim without a run is that of a watcher that was killed before it began: starting takes minutes at most.
STALE = timedelta(hours=1)

MAX_BACKOFF = 1800.0


@dataclass(frozen=True)
class Started:
    """What `start` began: the run, and its verdict where it has ended."""

    run: str
    verdict: str | None = None


Start = Callable[[str, str], Started]
"""(SOURCE at its revision, target) → what it began. Unavailable or InputError: it could not even begin."""


@dataclass
class Released:
    """A release that this pass started. `runs` and `verdicts` are in the order of `targets`."""

    source: str
    revision: str
    targets: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    verdicts: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Reason:
    """A source, and why nothing was started for it."""

    source: str
    reason: str


@dataclass
class Pass:
    """What one pass did and saw."""

    released: list[Released] = field(default_factory=list)
    waiting: list[Reason] = field(default_factory=list)
    unreadable: list[Reason] = field(default_factory=list)
    unavailable: list[Reason] = field(default_factory=list)
    """Services that were needed and did not answer."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Watcher:
    """Looks at what the watch file names. `say` is told what happens, one line each; what stays as it is, once."""

    def __init__(self, file: WatchFile, start: Start, say: Callable[[str], None] = lambda _: None) -> None:
        self.file, self.start, self.say = file, start, say
        self.ledger = Ledger()
        self._said: set[str] = set()
        self._done: set[tuple[str, str, tuple[str, ...]]] = set()
        """Commits that have been started on these targets: they need not be looked at again."""

    def run_pass(self) -> Pass:
        """Look once at everything, then start what is new and whole, one after another."""
        result = Pass()
        ready: dict[str, tuple[Candidate, list[str]]] = {}
        for candidate, targets in self._candidates(result):
            left = [target for target in targets if self._unclaimed(candidate, target, result)]
            if not left:
                self._done.add((candidate.source, candidate.revision, targets))
            elif self._whole(candidate, result):
                _, known = ready.setdefault(candidate.source, (candidate, []))
                known += [target for target in left if target not in known]
        self._tell(result)  # before hours of adapting
        starts = 0
        for candidate, left in ready.values():
            if not self._settled(candidate, result):
                continue
            for target in left:
                if starts == self.file.max_runs:
                    reason = f"{target}: a pass starts at most {starts} runs (max_runs); the next pass continues"
                    result.waiting.append(Reason(candidate.source, reason))
                    continue
                starts += self._start(candidate, target, result)
        self._said = self._tell(result)
        return result

    def _candidates(self, result: Pass) -> Iterator[tuple[Candidate, tuple[str, ...]]]:
        for folder in self.file.folders:
            yield from self._usable(in_folder(folder.path, folder.wants), folder.targets, result)
        for organisation in self.file.organisations:
            targets = organisation.targets or self.file.targets
            source = f"hf:{organisation.name}/*"
            try:
                with open_hub(organisation.endpoint) as hub:
                    listed = list(hub.listed(organisation.name, since(self.file.max_age_days)))
                    wanted = [one for one in listed if organisation.wants(one.id.partition("/")[2])]
                    new = [one for one in wanted if (f"hf:{one.id}", one.sha, targets) not in self._done]
                    yield from self._usable((hub.look(one) for one in new), organisation.targets, result)
                if not wanted:
                    what = f"none of {len(listed)} repositories" if listed else "no repository"
                    age = f" (changed in the last {self.file.max_age_days:g} days)" if self.file.max_age_days else ""
                    result.waiting.append(Reason(source, f"{what}{age} matches yet"))
            except InputError as error:
                result.unreadable.append(Reason(source, str(error)))
            except Unavailable as error:
                result.unavailable.append(Reason(source, str(error)))

    def _usable(
        self, seen: Iterable[Candidate | Unreadable], targets: tuple[str, ...] | None, result: Pass
    ) -> Iterator[tuple[Candidate, tuple[str, ...]]]:
        for one in seen:
            if isinstance(one, Unreadable):
                result.unreadable.append(Reason(one.source, one.reason))
            else:
                yield one, targets or self.file.targets

    def _whole(self, candidate: Candidate, result: Pass) -> bool:
        try:
            lacking = candidate.lacks()
        except (InputError, Unavailable, OSError) as error:
            result.unreadable.append(Reason(candidate.source, str(error)))
            return False
        if lacking:
            result.waiting.append(Reason(candidate.source, lacking))
        return lacking is None

    def _settled(self, candidate: Candidate, result: Pass) -> bool:
        """Whether nothing has changed in the quiet period. A short one is waited for here."""
        wait = candidate.changed + self.file.quiet_seconds - time.time()
        if wait > PATIENCE:
            reason = f"it changed just now; it is taken when nothing has for {self.file.quiet_seconds:g} s"
            result.waiting.append(Reason(candidate.source, reason))
            return False
        time.sleep(max(wait, 0.0))
        try:
            same = candidate.again().content == candidate.content
        except (InputError, OSError) as error:
            result.unreadable.append(Reason(candidate.source, f"it cannot be read any more: {error}"))
            return False
        if not same:
            result.waiting.append(Reason(candidate.source, "it is still changing"))
        return same

    def _start(self, candidate: Candidate, target: str, result: Pass) -> bool:
        """Claim and start; False if another watcher has it or it could not begin."""
        claim = self._claim(candidate, target)
        if claim is None:
            return False
        self.say(f"new: {candidate.source} at {candidate.revision[:12]}: starting on {target}")
        try:
            with _hub_of(candidate):
                started = self.start(candidate.pinned, target)
        except BaseException as error:
            begun = self._settle_claim(claim, candidate, target)
            if begun:
                self.say(f"interrupted: {candidate.source} on {target}; `day0 rerun {begun}` continues it")
            if isinstance(error, Cancelled) or not isinstance(error, Day0Error):
                raise
            kind = result.unavailable if isinstance(error, Unavailable) else result.unreadable
            kind.append(Reason(candidate.source, f"{target}: {f'run {begun}' if begun else 'not started'}: {error}"))
            return False
        with self.ledger.session() as session:
            session.get_one(Seen, claim).run_id = started.run
        released = next((r for r in result.released if r.source == candidate.source), None)
        if released is None:
            result.released.append(released := Released(candidate.source, candidate.revision))
        released.targets.append(target)
        released.runs.append(started.run)
        released.verdicts.append(started.verdict)
        self.say(f"done: {candidate.source} on {target}: {started.verdict or 'announced'} ({started.run})")
        return True

    def _unclaimed(self, candidate: Candidate, target: str, result: Pass) -> bool:
        query = select(Seen).filter_by(source=candidate.source, revision=candidate.content, target=target)
        with self.ledger.session() as session:
            claim = session.scalars(query).first()
        if claim is None:
            return True
        if claim.run_id is None and now() - claim.created > STALE:
            return self._settle_claim(claim.id, candidate, target) is None
        return False

    def _claim(self, candidate: Candidate, target: str) -> int | None:
        claim = Seen(source=candidate.source, revision=candidate.content, target=target)
        try:
            with self.ledger.session() as session:
                session.add(claim)
        except IntegrityError:
            return None
        return claim.id

    def _settle_claim(self, claim_id: int, candidate: Candidate, target: str) -> str | None:
        """Keep the claim of a run that is recorded (its name is returned: `day0 rerun` continues it), else free it."""
        with self.ledger.session() as session:
            claim = session.get(Seen, claim_id)
            if claim is None:
                return None
            runs = select(Run.id).filter_by(source=candidate.source, target=target).where(Run.started >= claim.created)
            claim.run_id = session.scalars(runs.order_by(Run.started).limit(1)).first()
            if claim.run_id is None:
                session.delete(claim)
            return claim.run_id

    def _tell(self, result: Pass) -> set[str]:
        """Say what has not been said; returns all that holds now."""
        lines = [
            f"{kind}: {entry.source}: {entry.reason}"
            for kind in ("waiting", "unreadable", "unavailable")
            for entry in getattr(result, kind)
        ]
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                self.say(line)
        return set(lines)


def keep_watching(watcher: Watcher, interval: float, stop: Event) -> Iterator[Pass]:
    """Passes, `interval` seconds apart, until `stop` is set; further apart while a service does not answer."""
    failures = 0
    while not stop.is_set():
        done = watcher.run_pass()
        yield done
        if failures and not done.unavailable:
            watcher.say("everything answers again")
        failures = failures + 1 if done.unavailable else 0
        pause = min(interval * 2 ** min(failures, 16), max(interval, MAX_BACKOFF))
        if failures:
            watcher.say(f"next look in {pause:g} s, since {done.unavailable[0].source} did not answer")
        stop.wait(pause)


@contextmanager
def _hub_of(candidate: Candidate) -> Iterator[None]:
    """HF_ENDPOINT as the candidate needs it: what fetches the release reads it from there."""
    if candidate.endpoint is None:
        yield
        return
    saved = os.environ.get("HF_ENDPOINT")
    os.environ["HF_ENDPOINT"] = candidate.endpoint
    try:
        yield
    finally:
        if saved is None:
            del os.environ["HF_ENDPOINT"]
        else:
            os.environ["HF_ENDPOINT"] = saved
