"""Memory that is handed out with known rubbish in it, so that what a kernel does not write shows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_M_PERTURB = -6  # malloc.h: bytes of what is allocated become the complement of the value
#: Two patterns: as bfloat16 and float32 huge numbers of either sign, as float16 NaN.
PATTERNS = (0x7F, 0xFE)


class Poison:
    """Poisons what `torch.empty` returns on a device. `works` says whether it was seen to.

    `host` is for a device that may have its memory from malloc, as the CPU has.
    """

    def __init__(self, device: str, host: bool = False) -> None:
        self.device = torch.device(device)
        own = self.device.type == "cpu"
        self._mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if own or host else None
        self._caches = not own
        self.works = all(self._seen(pattern) for pattern in PATTERNS)

    @contextmanager
    def __call__(self, pattern: int, sizes: Sequence[int] = ()) -> Iterator[None]:
        """While the body runs, new memory holds `pattern` in every byte.

        On the CPU that is malloc's own means. A caching allocator returns what was freed last, so on a device
        blocks of the `sizes` (bytes of the outputs) are filled and freed just before.
        """
        if self._caches:
            self._fill_freed(pattern, sizes)
        if self._mallopt is None:
            yield
            return
        self._mallopt(_M_PERTURB, pattern ^ 0xFF)
        try:
            yield
        finally:
            self._mallopt(_M_PERTURB, 0)

    def _fill_freed(self, pattern: int, sizes: Sequence[int]) -> None:
        blocks = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes for _ in range(2)]
        for block in blocks:
            block.fill_(pattern)

    def _seen(self, pattern: int) -> bool:
        found = []
        for size in (4096, 8 << 20):
            with self(pattern, [size]):
                found.append(bool((torch.empty(size, dtype=torch.uint8, device=self.device) == pattern).all()))
        return all(found)
