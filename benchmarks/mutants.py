"""How many faults the acceptance of kernels finds, put into the kernels' own C++ one at a time.

    python -m benchmarks.mutants [--json] [--seed N] [KERNEL | KERNEL.MUTANT ...]

The faults are benchmarks/data/mutants.yaml. Each is built with -O0 and put through the whole acceptance, until it is
rejected. One that is accepted has survived: a hole in the kernel's inputs or in the checks. The kernel without a fault
goes first, built alike: were it rejected, so would be each of its mutants, whatever its fault. Prints the score by
kernel; exit code 1 where one survived, 2 where the data file does not fit the sources or a kernel without a fault is
not accepted. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from day0.artifacts.base import Frozen
from day0.artifacts.kernels import Kernel
from day0.config import read_yaml
from day0.errors import InputError
from day0.home import PROJECT
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import accept
from tasks.kernels.build import BuildFailed
from tasks.kernels.definition import KernelDefinition

DATA = Path(__file__).parent / "data" / "mutants.yaml"
KERNELS = PROJECT / "kernels"


class Mutant(Frozen):
    """One fault: `old`, which must occur exactly once in the file, becomes `new`."""

    kernel: str
    name: str
    fault: str
    file: str
    """Relative to the kernel's folder."""
    old: str
    new: str
    huge: bool = False
    """Only calls of more than 2^31 elements show it."""

    @property
    def label(self) -> str:
        return f"{self.kernel}.{self.name}"


class Unfit(InputError):
    """The data file does not fit the kernels' sources, or these are not accepted as they are."""


def load_mutants() -> list[Mutant]:
    """All of the data file.

    Raises:
        Unfit: two of a kernel have one name.
    """
    listed = read_yaml(DATA)
    mutants = [Mutant(kernel=kernel, **each) for kernel, of in listed.items() for each in of]
    if twice := [label for label, count in Counter(mutant.label for mutant in mutants).items() if count > 1]:
        raise Unfit(f"{DATA.name} has two mutants of one name: {', '.join(twice)}")
    return mutants


def mutated(mutant: Mutant) -> str:
    """The file's text with the fault.

    Raises:
        Unfit: the text that is replaced is not there, or more than once, or stays as it is.
    """
    source = (KERNELS / mutant.kernel / mutant.file).read_text()
    if (count := source.count(mutant.old)) != 1:
        raise Unfit(f"{mutant.label}: what it replaces occurs {count} times in {mutant.file}, not once")
    if mutant.new == mutant.old:
        raise Unfit(f"{mutant.label}: it replaces a text by itself")
    return source.replace(mutant.old, mutant.new)


def make_folder(kernel: str, place: Path, mutant: Mutant | None = None) -> Path:
    """The kernel's folder, with the fault if one is given, beside the headers that kernels share.

    To be compiled with -O0, which takes half the time of -O1; the loops are intrinsics, and round alike.
    """
    folder = place / kernel
    shutil.copytree(KERNELS / "common", place / "common")
    shutil.copytree(KERNELS / kernel, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        (folder / mutant.file).write_text(mutated(mutant))
    definition = read_yaml(folder / "kernel.yaml")
    definition["backends"]["cpu"]["flags"] = ["-O0"]
    (folder / "kernel.yaml").write_text(yaml.safe_dump(definition))
    return folder


def _accepted(kernel: str, seed: int, mutant: Mutant | None = None) -> Kernel:
    """The acceptance's verdict. Raises Unfit: it does not fit the source, or does not compile."""
    with tempfile.TemporaryDirectory(prefix="day0-mutant-") as place:
        definition = KernelDefinition(make_folder(kernel, Path(place), mutant))
        try:
            return accept(definition, "cpu", seed=seed)
        except BuildFailed as error:
            raise Unfit(f"{mutant.label if mutant else kernel} does not compile: {error}") from error


def check_accepted(kernel: str, seed: int) -> None:
    """The kernel without a fault, built as its mutants are, is accepted.

    Raises:
        Unfit: it is not.
    """
    found = _accepted(kernel, seed)
    if found.verdict is not Verdict.PASS:
        raise Unfit(f"{kernel} without a fault is not accepted: {found.error.get('reason', found.verdict)}")


def examine(mutant: Mutant, seed: int) -> dict[str, Any]:
    """What became of a mutant: `rejected`, `survived`, or `not run` (it shows in huge calls alone, and those did not
    fit in memory), with the reason.

    Raises:
        Unfit: it does not fit the source, or does not compile.
    """
    started = time.monotonic()
    found = _accepted(mutant.kernel, seed, mutant)
    reason = str(found.error.get("reason", ""))
    if found.verdict is Verdict.FAIL:
        became = "rejected"
    elif mutant.huge and found.error.get("not_run"):
        became, reason = "not run", "; ".join(found.error["not_run"])
    else:
        became = "survived"
    said = {"kernel": mutant.kernel, "mutant": mutant.name, "fault": mutant.fault, "became": became, "reason": reason}
    return {**said, "kind": found.error.get("kind"), "seconds": round(time.monotonic() - started, 1)}


def chosen(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Those of the kernels or of the labels that are named; all where none is.

    Raises:
        Unfit: a name is neither.
    """
    known = {name for mutant in mutants for name in (mutant.kernel, mutant.label)}
    if unknown := [name for name in names if name not in known]:
        raise Unfit(f"no mutant is called {', '.join(unknown)}")
    return [mutant for mutant in mutants if not names or mutant.kernel in names or mutant.label in names]


def scores(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table in markdown, a row for each kernel."""
    yield "| kernel | mutants | rejected | survived | not run | found by |"
    yield "|---|---|---|---|---|---|"
    for kernel in dict.fromkeys(result["kernel"] for result in results):
        of = [result for result in results if result["kernel"] == kernel]
        became = Counter(result["became"] for result in of)
        kinds = Counter(result["kind"] or "its process died" for result in of if result["became"] == "rejected")
        found = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        counts = " | ".join(str(became[name]) for name in ("rejected", "survived", "not run"))
        yield f"| {kernel} | {len(of)} | {counts} | {found} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = secrets.randbits(31) if args.seed is None else args.seed
    results = []
    try:
        mutants = chosen(load_mutants(), args.names)
        for mutant in mutants:
            mutated(mutant)  # before anything is compiled
        for kernel in dict.fromkeys(mutant.kernel for mutant in mutants):
            check_accepted(kernel, seed)
            print(f"{kernel}: accepted without a fault", file=sys.stderr, flush=True)
        for mutant in mutants:
            last = examine(mutant, seed)
            results.append(last)
            said = f"{mutant.label}: {last['became']} ({last['seconds']} s) {last['reason']}"
            print(said, file=sys.stderr, flush=True)
    except Unfit as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if args.json:
        json.dump({"seed": seed, "mutants": results}, sys.stdout, indent=2)
        print()
    else:
        print(*scores(results), sep="\n")
    sys.exit(any(result["became"] == "survived" for result in results) or not results)


if __name__ == "__main__":
    main()
