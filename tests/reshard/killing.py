"""Carry a random plan out in a process that is killed after a random while, again and again, until it is through.

    python -m tests.reshard.killing FOLDER KILLS

Prints, as JSON, how many were killed, how many of those had recorded something, and the folders that were written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from tasks.reshard import writer
from tasks.reshard.partial import plan_key, resumable_folder
from tests.reshard.random_plans import Case, make_case


def case_in(folder: Path) -> Case:
    """Large enough that a run takes some tenths of a second."""
    return make_case(folder / "model", 5, shards=12, tensors=14, targets=4, largest=1_600_000)


def main() -> None:
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    case = case_in(folder)
    rng = random.Random(1)
    killed, resumable, rounds, span = 0, 0, 0, 0.1
    while killed < kills:
        destination = folder / f"out-{rounds}"
        started = time.monotonic()
        process = os.fork()
        if process == 0:
            _run(case, destination)
        time.sleep(rng.uniform(0, span))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            resumable += any(folder.glob(f".out-{rounds}.*/journal"))
        else:
            assert os.WEXITSTATUS(status) == 0, "a run failed that was not killed"
            span = time.monotonic() - started
        rounds += destination.exists()
    process = os.fork()
    if process == 0:
        _run(case, folder / f"out-{rounds}")
    assert os.waitpid(process, 0)[1] == 0, "the last run failed"
    json.dump({"killed": killed, "resumable": resumable, "rounds": rounds + 1}, sys.stdout)


def _run(case: Case, destination: Path) -> NoReturn:
    try:
        with resumable_folder(destination, plan_key(case.plan, case.checkpoint)) as partial:
            hashes = writer.write_files(case.plan, case.checkpoint, partial.root, threads=2, journal=partial.journal)
            (partial.root / "hashes.json").write_text(json.dumps(dict(hashes.targets)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
