"""What becomes of kernels in this process: counts, written soon after they change, and the kernel that it is in now.

Both lie in the folder that DAY0_KERNEL_USES names: PID.json has the counts; PID.now has two numbers of 64 bits, the
kernel's place among the counts (from 1; 0: none) and when it was entered (nanoseconds of the monotonic clock). PID.now
is mapped into memory, and so is still there when a kernel has killed the process.
"""

import atexit
import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("vllm.day0_kernels")

SECONDS_BETWEEN_WRITES = 0.5
MARK_BYTES = 16


class Use:
    """One kernel in one place."""

    def __init__(self, operator: str, kernel: str) -> None:
        self.operator, self.kernel = operator, kernel
        self.calls = self.declined = self.fallbacks = 0
        self.reason = ""
        _all.append(self)
        self.place = len(_all)

    def answer(self, kernel: Callable[..., Any], arguments: Any, otherwise: Callable[[], Any]) -> Any:
        """What the kernel gives; where it raises, what `otherwise` gives: work goes on, and the failure is noted."""
        marked = not torch.compiler.is_dynamo_compiling()  # a write to memory cannot be traced
        before = _writer.enter(self.place) if marked else 0
        try:
            result = kernel(*arguments)
        except Exception as error:  # whatever it is
            self.failed(error)
        else:
            self.calls += 1
            return result
        finally:
            if marked:
                _writer.mark[0] = before
        return otherwise()

    def failed(self, error: Exception) -> None:
        """The kernel failed a call."""
        self.fallbacks += 1
        self.because(error)

    def because(self, error: Exception) -> None:
        """Note and log why it fails, the first time."""
        if self.reason:
            return
        self.reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        logger.warning("follow-up: kernel %s for %s: %s", self.kernel, self.operator, self.reason)


_all: list[Use] = []


def written_form() -> str:
    """All counts as one line of JSON."""
    names = ("operator", "kernel", "calls", "declined", "fallbacks", "reason")
    return json.dumps([{name: getattr(use, name) for name in names} for use in _all])


class _Writer:
    def __init__(self) -> None:
        self.folder = os.environ.get("DAY0_KERNEL_USES")
        self.process = 0
        self.written = ""
        self.lock = threading.Lock()
        self.mark = _unmapped()

    def start(self) -> None:
        """Begin to write, once in each process."""
        if self.process:
            return
        self.process = os.getpid()
        if not self.folder:
            return
        try:
            self.mark = self._mapped()
            self.write()  # who reads the mark looks in the counts for what it means
        except OSError as error:
            logger.warning("follow-up: calls of kernels cannot be counted: %s", error)
            return
        threading.Thread(target=self._keep_writing, name="day0-kernel-uses", daemon=True).start()
        atexit.register(self.write)

    def forget(self) -> None:
        """In a forked process: what the parent counted is the parent's, and its thread is not here."""
        self.process, self.lock, self.written, self.mark = 0, threading.Lock(), "", _unmapped()
        for use in _all:
            use.calls = use.declined = use.fallbacks = 0

    def enter(self, place: int) -> int:
        """Mark the kernel that is called now; returns the mark before."""
        if not self.process:
            self.start()
        before: int = self.mark[0]
        self.mark[1] = time.monotonic_ns()
        self.mark[0] = place
        return before

    def _mapped(self) -> memoryview:
        path = Path(str(self.folder), f"{os.getpid()}.now")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            file.truncate(MARK_BYTES)
            return memoryview(mmap.mmap(file.fileno(), MARK_BYTES)).cast("Q")

    def _keep_writing(self) -> None:
        while True:
            time.sleep(SECONDS_BETWEEN_WRITES)
            try:
                self.write()
            except OSError as error:
                logger.warning("follow-up: calls of kernels cannot be counted: %s", error)
                return

    def write(self) -> None:
        if not self.folder:
            return
        text = written_form()
        with self.lock:
            if text == self.written:
                return
            path = Path(self.folder, f"{os.getpid()}.json")
            temporary = path.with_suffix(".tmp")
            temporary.write_text(text)
            temporary.replace(path)
            self.written = text


def _unmapped() -> memoryview:
    return memoryview(bytearray(MARK_BYTES)).cast("Q")


_writer = _Writer()
start = _writer.start
os.register_at_fork(after_in_child=_writer.forget)
