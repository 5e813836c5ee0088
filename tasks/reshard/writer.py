"""Carries a plan out in one streaming pass: every source byte read once, every target byte written once, both hashed.

Each source shard is read from front to back by one thread, several at once. Memory is bounded by the pool of
buffers, whatever the size of the model. No tensor library is involved: a split is a copy of byte ranges.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from day0 import deadline, progress
from day0.checkpoint import Checkpoint
from day0.errors import InputError
from day0.landing import AT_ONCE, Landing
from tasks.reshard.hashing import BufferPool, Control, Helpers, Stopped
from tasks.reshard.jobs import FinishJob, ShardResult
from tasks.reshard.journal import Journal
from tasks.reshard.moves import shareable
from tasks.reshard.reflink import supports_reflink
from tasks.reshard.remaining import Remaining
from tasks.reshard.shard_jobs import ShardJobs
from tasks.reshard.shard_pass import ShardPass, buffers_for, run_finish, run_shard
from tasks.reshard.targets import Target, Targets, write_at
from tasks.reshard.writes import Fill, WritePlan

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FanOut = Callable[[Callable[[Any], Any], Sequence[Any], Callable[[Any], None]], None]
"""Calls a function with each of some arguments, anywhere, and here a second one with each result as it comes."""


@dataclass(frozen=True)
class Hashes:
    """SHA-256 of the shards that were read and of the files that were written, by name; empty with hashes off.

    `errors` are what conversions lose, by tensor: see `Converter.errors`.
    """

    sources: Mapping[str, str]
    targets: Mapping[str, str]
    errors: Mapping[str, Mapping[str, float]]


def write_files(
    plan: WritePlan,
    checkpoint: Checkpoint,
    root: Path,
    expected: Mapping[str, str] | None = None,
    *,
    hashes: bool = True,
    threads: int | None = None,
    journal: Path | None = None,
    fan_out: FanOut | None = None,
    landing: Landing | None = None,
) -> Hashes:
    """Write every file of the plan below `root`, which exists.

    Args:
        expected: SHA-256 that source shards must have, by name.
        hashes: whether to take SHA-256 of all that is read and written.
        threads: how many shards are taken at once; as many as there are cores by default.
        journal: where to keep what is done. If it is there already, what it records is not done again, and whatever
            else lies in `root` is removed.
        fan_out: where shards are taken, if not by threads of this process: see tasks/reshard/fanout.py.
        landing: where shards are waited for, if they are still arriving; `checkpoint` then has only their headers.

    Raises:
        CheckFailed: a source shard's bytes are not those that are expected.
        InputError: no space, or a source that cannot be read or changed meanwhile.
    """
    try:
        run = _Run(plan, checkpoint, root, expected or {}, hashes, Journal(journal), landing)
        run.prepare()
        if fan_out:
            run.by_fan_out(fan_out)
        else:
            run.by_threads(threads or _cores())
        return run.hashes()
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(
                f"{root}: {error.strerror} while {plan.bytes_written:,} bytes were being written; "
                f"make space and try again ({_kept(journal)})"
            ) from error
        raise InputError(f"{error.filename or root}: {error.strerror} ({_kept(journal)})") from error
    except EOFError as error:
        raise InputError(f"{checkpoint.root}: {error}; try again ({_kept(journal)})") from error


def _kept(journal: Path | None) -> str:
    if journal and journal.exists():
        return f"what is done is kept in {journal.parent}, for the same command to go on from"
    return "nothing was kept"


class _Run:
    """One run over a plan: what is left of it to do, and what is recorded."""

    def __init__(
        self,
        plan: WritePlan,
        checkpoint: Checkpoint,
        root: Path,
        expected: Mapping[str, str],
        hashes: bool,
        journal: Journal,
        landing: Landing | None = None,
    ) -> None:
        self.plan, self.checkpoint, self.root, self.landing = plan, checkpoint, root, landing
        self.expected, self.with_hashes, self.journal = expected, hashes, journal
        self.limit = deadline.current()
        self.control = Control(self.limit)
        self.left = Remaining(plan, checkpoint, root, expected, hashes, journal)
        self.jobs = ShardJobs(plan, checkpoint, root, expected, hashes, self.left, landing)

    def prepare(self) -> None:
        """Check the space, and make every file that is not whole: at its full size, with its header and fills."""
        _allow_open_files(len(self.plan.files) + 64 * _cores())
        names = {file.name for file in self.plan.files}
        for path in [path for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir()]:
            if path.relative_to(self.root).as_posix() not in names:
                path.unlink()
        self._check_space()
        self.journal.forget(self.left.shards)
        fills: dict[int, list[Fill]] = defaultdict(list)
        for fill in self.plan.fills:
            fills[fill.target].append(fill)
        for number in self.left.targets:
            self.control.check()
            file = self.plan.files[number]
            path = self.root / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.ftruncate(descriptor, file.nbytes)
                write_at(descriptor, memoryview(file.header), 0)
                for fill in fills[number]:
                    _write_fill(descriptor, fill)
            finally:
                os.close(descriptor)

    def by_threads(self, count: int) -> None:
        """Take the shards by threads of this process, `count` at once; others wait for the disk meanwhile.

        Threads that find no shard left copy or hash for those that have one. Shards that are still arriving are
        followed, all of them at the same time: who waits for more of one lets another thread have its turn.
        """
        following = AT_ONCE if self.landing else 0
        threads = 2 * count + following
        size, needed = buffers_for(count)
        # A thread may hold one while it waits for more of a shard: those that have their turn must never lack any.
        helpers, buffers = Helpers(), BufferPool(size, needed + (threads if following else 0), self.control)
        targets = Targets(self.root, self.left.targets, helpers, self.control)
        waiting: deque[str | int] = deque([*self.left.without_shard(), *self.left.shards])
        pending, lock, turns = len(waiting), threading.Lock(), threading.Semaphore(count)
        errors: list[BaseException] = []

        def sleep(seconds: float) -> None:
            turns.release()
            try:
                time.sleep(seconds)
            finally:
                turns.acquire()
            self.control.check()

        def take(name: str) -> ShardResult:
            while True:
                job = self.jobs.make(name, self.left.targets, sleep, follow=True)
                growth = self.jobs.growth(job, sleep)
                try:
                    return ShardPass(job, targets, buffers, helpers, self.control, growth).run()
                except FileNotFoundError:  # its folder got its final name before the file was opened
                    if self.landing is None:
                        raise

        def work() -> None:
            nonlocal pending
            try:
                while True:
                    with turns:
                        with lock:
                            what = waiting.popleft() if waiting else None
                        if what is None:
                            if not (self.with_hashes or self.landing):
                                helpers.help()  # within its turn: more that copy than cores would gain nothing
                            break
                        result = take(what) if isinstance(what, str) else None
                    finished = targets.shard_done(self.left.reached[what] if isinstance(what, str) else [what])
                    with lock:
                        if result:
                            self.journal.add(replace(result, finished=tuple(finished)))
                        else:
                            self.journal.add_targets(finished)
                        pending -= 1
                        if not pending:
                            helpers.close()
                if self.with_hashes:
                    helpers.help()
            except BaseException as error:  # handed on to the caller's thread
                with lock:
                    errors.append(error)
                self.control.stop()
                helpers.close()

        workers = [threading.Thread(target=work, name=f"reshard-{n}") for n in range(threads if pending else 0)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.25)
                    self._report()
                    self.limit.check()
        finally:
            self.control.stop()
            helpers.close()
            for worker in workers:
                if worker.ident:
                    worker.join()
            targets.close()
        if errors:
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])

    def by_fan_out(self, fan_out: FanOut) -> None:
        """Take the shards wherever `fan_out` has them run; then finish the files that several of them wrote to."""
        shared = {number for number, target in self.left.targets.items() if target.shards > 1}
        unhashed = {n: replace(t, hashed=False) if n in shared else t for n, t in self.left.targets.items()}

        def taken(result: ShardResult) -> None:
            self.journal.add(result)
            self.control.add(self.checkpoint.files[result.name].file_bytes)
            self._report()

        fan_out(run_shard, [self.jobs.make(name, unhashed) for name in self.left.shards], taken)
        rest = sorted(shared.union(self.left.without_shard()))
        jobs = [FinishJob(str(self.root), self._as_it_lies(number)) for number in rest]
        fan_out(run_finish, jobs, lambda finished: self.journal.add_targets([finished]))

    def hashes(self) -> Hashes:
        """What the journal has of all shards and targets."""
        if not self.with_hashes:
            return Hashes({}, {}, self._errors())
        sources = {name: self.journal.shards[name].sha256 or "" for name in self.left.reached}
        targets = {file.name: self.journal.targets[file.name].sha256 or "" for file in self.plan.files}
        return Hashes(sources, targets, self._errors())

    def _errors(self) -> dict[str, Mapping[str, float]]:
        return {name: e for shard in self.left.reached for name, e in self.journal.shards[shard].errors.items()}

    def _report(self) -> None:
        total = sum(self.checkpoint.files[name].file_bytes for name in self.left.shards)
        progress.report("resharding", min(self.control.done, total), total, "B")

    def _as_it_lies(self, number: int) -> Target:
        file = self.plan.files[number]
        return Target(file.name, file.nbytes, ((0, file.nbytes),), 1, self.with_hashes)

    def _check_space(self) -> None:
        there = sum(path.stat().st_blocks * 512 for path in self.root.rglob("*") if path.is_file())
        needed, free = self.plan.bytes_written - there, shutil.disk_usage(self.root).free
        if needed > free and self.left.reached:
            source = self.checkpoint.path(next(iter(self.left.reached)))
            if supports_reflink(self.root, source):
                needed -= sum(shareable(self.plan.streams.get(name, ())) for name in self.left.shards)
        if needed > free:
            raise InputError(f"not enough space for {self.root}: {needed:,} bytes are to be written, {free:,} are free")


def _write_fill(descriptor: int, fill: Fill) -> None:
    offset, left = fill.target_offset, fill.count
    at_once = max(1, (1 << 20) // len(fill.pattern))
    while left:
        count = min(left, at_once)
        write_at(descriptor, memoryview(fill.pattern * count), offset)
        offset, left = offset + len(fill.pattern) * count, left - count


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _allow_open_files(count: int) -> None:
    """Raise the process's own limit where so many files at once need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
