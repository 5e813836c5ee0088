"""Whether a release fits on the disk, and what is said when it does not."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from day0.errors import InputError
from day0.home import home

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def need_space(needed: int, place: Path, begun: Path) -> None:
    """Refuse to begin what will not fit.

    Args:
        needed: bytes of the files that are still to come to `place`; its unfinished files, and those in the folder
            `begun`, hold some of them already.

    Raises:
        InputError: the disk has not enough room.
    """
    place.mkdir(parents=True, exist_ok=True)
    unfinished = [*place.rglob("*.incomplete"), *begun.rglob("*")]
    needed -= sum(path.stat().st_blocks * 512 for path in unfinished if path.is_file())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise InputError(f"{needed:,} bytes are to be fetched, but only {free:,} are free; {_remedy()}")


def disk_full(text: str) -> InputError:
    """The one sentence for a disk that filled up midway; `text` is the system's word for it."""
    return InputError(f"{text} while the release was being fetched; what is there is kept: {_remedy()}")


def not_written(error: OSError, path: Path) -> InputError:
    """What is said when a file cannot be written, for whatever reason."""
    if error.errno in FULL:
        return disk_full(str(error.strerror))
    return InputError(f"{error.filename or path} cannot be written: {error.strerror}")


def _remedy() -> str:
    return f"make room, or set DAY0_HOME to a larger disk than that of {home()}"
