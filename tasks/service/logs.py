"""Finding, in an engine's log, the line that says why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 256 << 10
#: A stack has fewer, but for those of many threads.
STACK_LINES = 200

#: The last line of a Python traceback (`pkg.SomeError: …`), or what argparse says.
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Exit|Interrupt|Timeout|Expired))(?:: .*)?$")
_ARGPARSE = re.compile(r"^[\w.-]+: error: .+")
#: What faulthandler prints of a process that a signal kills, and the function from which the plugin calls a kernel
#: (tasks/kernels/engine_plugin/plugin.py), as it stands in the stack below.
_FATAL = re.compile(r"^Fatal Python error: .+")
_KERNEL = re.compile(r'^  File ".*", line \d+ in day0_kernel_(\w+)$')

#: vLLM, of a worker that left no word of its own, such as one that was killed.
_VANISHED = re.compile(r"^Worker proc \S+ died unexpectedly")
#: pydantic spreads one error over three lines: the count, the field, what is wrong with it.
_SPREAD = re.compile(r"validation errors? for \S+$")


def tail(path: Path) -> list[str]:
    """The last lines of a log; none if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def last_error(lines: Sequence[str], prefix: str, generic: Sequence[str]) -> str:
    """The line that names the cause: a process's end by a signal, the first of them; else the last error line that is
    not a generic one; failing that, a worker's end, any error line, any last line.

    Args:
        prefix: regular expression of what the engine's logger puts before a line; it is cut off.
        generic: regular expressions of error lines that only say that another process failed.
    """
    clean = [re.sub(prefix, "", line).rstrip() for line in lines]
    if fatal := [line for line in clean if _FATAL.match(line)]:
        return fatal[0]
    found = [i for i, line in enumerate(clean) if _ERROR.match(line) or _ARGPARSE.match(line)]
    causes = [i for i in found if not any(re.search(pattern, clean[i]) for pattern in generic)]
    if not causes and (vanished := [line for line in clean if _VANISHED.match(line)]):
        return vanished[0]
    if chosen := causes or found:
        at = chosen[-1]
        spread = 3 if _SPREAD.search(clean[at]) else 1
        return " ".join(line.strip() for line in clean[at : at + spread])
    return next((line.strip() for line in reversed(clean) if line.strip()), "it printed nothing")


def fatal_stack(lines: Sequence[str]) -> list[str]:
    """What faulthandler printed of the first process that a signal killed; none where there was none."""
    begin = next((i for i, line in enumerate(lines) if _FATAL.search(line)), len(lines))
    end = next((i for i in range(begin, len(lines)) if lines[i].startswith("Extension modules: ")), len(lines))
    return [line[:500] for line in lines[begin : min(end, begin + STACK_LINES)]]


def kernel_in(stack: Sequence[str]) -> str | None:
    """The accepted kernel that a process was in, by its stack."""
    return next((match[1] for line in stack if (match := _KERNEL.match(line))), None)
