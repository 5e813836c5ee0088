"""Where day0 keeps its state, and where its own data files lie."""

from __future__ import annotations

import os
from pathlib import Path

from day0.errors import InputError

#: The checkout (or installed tree) that holds configs/ and images/.
PROJECT = Path(__file__).resolve().parent.parent


def home() -> Path:
    """`$DAY0_HOME`, by default `~/.day0`."""
    return Path(os.environ.get("DAY0_HOME") or Path.home() / ".day0").expanduser().resolve()


def make_home() -> Path:
    """`home()`, made if it is not there.

    Raises:
        InputError: it cannot be a folder that day0 writes to.
    """
    place = home()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"DAY0_HOME={place} cannot be used: {error.strerror}; set it to another folder") from error
    if not os.access(place, os.W_OK):
        raise InputError(f"DAY0_HOME={place} cannot be written; set it to another folder")
    return place


def configs() -> Path:
    """The folder of data that people edit: `$DAY0_CONFIGS`, by default the project's `configs/`."""
    return Path(os.environ.get("DAY0_CONFIGS") or PROJECT / "configs").expanduser().resolve()


def images() -> Path:
    """The folder of engine environments."""
    return PROJECT / "images"
