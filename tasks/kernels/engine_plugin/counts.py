"""What becomes of kernels in this process, written soon after it changes to the folder that DAY0_KERNEL_USES names."""

import atexit
import json
import logging
import os
import threading
import time
from pathlib import Path

logger = logging.getLogger("vllm.day0_kernels")

SECONDS_BETWEEN_WRITES = 0.5


class Use:
    """One kernel in one place."""

    def __init__(self, operator: str, kernel: str) -> None:
        self.operator, self.kernel = operator, kernel
        self.calls = self.declined = self.fallbacks = 0
        self.reason = ""
        _all.append(self)

    def answered(self) -> None:
        self.calls += 1
        if _writer.process != os.getpid():
            _writer.start()

    def failed(self, error: Exception) -> None:
        """The kernel failed a call, which the engine's own code answers."""
        self.fallbacks += 1
        self.because(error)
        _writer.start()

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

    def start(self) -> None:
        """Begin to write, once in each process."""
        if self.process == os.getpid():
            return
        self.process = os.getpid()
        if self.folder:
            threading.Thread(target=self._keep_writing, name="day0-kernel-uses", daemon=True).start()
            atexit.register(self.write)

    def forget(self) -> None:
        """In a forked process: what the parent counted is the parent's, and its thread is not here."""
        self.lock, self.written = threading.Lock(), ""
        for use in _all:
            use.calls = use.declined = use.fallbacks = 0

    def _keep_writing(self) -> None:
        while True:
            try:
                self.write()
            except OSError as error:
                logger.warning("follow-up: calls of kernels cannot be counted: %s", error)
                return
            time.sleep(SECONDS_BETWEEN_WRITES)

    def write(self) -> None:
        if not self.folder:
            return
        text = written_form()
        with self.lock:
            if text == self.written:
                return
            path = Path(self.folder, f"{os.getpid()}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(text)
            temporary.replace(path)
            self.written = text


_writer = _Writer()
start = _writer.start
os.register_at_fork(after_in_child=_writer.forget)
