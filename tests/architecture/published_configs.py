"""The published configs at hand, and what is published about each of them (tests/data/ORIGIN.md)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DATA = Path(__file__).parent.parent / "data"
_QUANT = "_hf_quant"

#: Every config.json at hand, in the order of their names.
CONFIGS: tuple[Path, ...] = tuple(
    sorted(path for path in (DATA / "configs").glob("*.json") if not path.stem.endswith(_QUANT))
)


def read(path: Path) -> dict[str, Any]:
    """The object in a config file."""
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def quant_file(path: Path) -> Path | None:
    """The hf_quant_config.json that is published beside a config, where there is one."""
    beside = path.with_stem(path.stem + _QUANT)
    return beside if beside.exists() else None


def write_model(path: Path, folder: Path) -> Path:
    """Make `folder` a model folder without weights: the config, and the quantisation file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(path.read_bytes())
    if quant := quant_file(path):
        (folder / "hf_quant_config.json").write_bytes(quant.read_bytes())
    return folder


class Stated(NamedTuple):
    """A published figure: its value, and how far the true one may be from it by its digits."""

    value: float
    rounding: float


def stated(text: str) -> Stated:
    """A count as published: `671B`, `2.8T`, `5.1B`."""
    digits, unit = text[:-1], {"M": 1e6, "B": 1e9, "T": 1e12}[text[-1]]
    decimals = len(digits.partition(".")[2])
    return Stated(float(digits) * unit, unit / 2 / 10**decimals)


@cache
def published() -> dict[str, dict[str, Any]]:
    """What is published about each config, by the stem of its file; published.yaml says what the keys mean."""
    table = yaml.safe_load((DATA / "published.yaml").read_text())
    return {name: {**table["models"][entry["model"]], **entry} for name, entry in table["configs"].items()}
