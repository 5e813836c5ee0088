"""The image that kernels are compiled in has what day0's extras have: else the two ways to build would differ."""

from __future__ import annotations

import re
import tomllib

import pytest

from day0.home import PROJECT, images
from day0.image import BASES, base_of

FOLDER = images() / "kernel-compilers"
LOCKED = dict(re.findall(r"^([\w-]+)==(\S+)", (FOLDER / "requirements.lock").read_text(), re.MULTILINE))
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["kernels", "cuda"])
def test_its_compilers_are_those_of_the_extras(extra: str) -> None:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in EXTRAS[extra] if not text.startswith("day0")]
    assert wanted
    for requirement in wanted:
        assert requirement.specifier.contains(LOCKED[requirement.name]), requirement


def test_its_torch_is_that_of_the_extras() -> None:
    (torch,) = [text for text in EXTRAS["reference"] if text.startswith("torch==")]
    assert torch in (FOLDER / "torch.txt").read_text().splitlines()


def test_every_package_is_pinned_by_its_bytes() -> None:
    lines = [line for line in (FOLDER / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 2 * len(LOCKED)
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in lines[1::2])


def test_every_image_names_a_base_that_can_be_made() -> None:
    folders = [path.parent for path in images().glob("*/Dockerfile")]
    assert FOLDER in folders
    assert {base_of(folder) for folder in folders} == set(BASES)
