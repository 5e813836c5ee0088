"""One table of how quantised weights are stored: what is checked and what is divided go by the same endings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from day0.architecture.family import families_digest
from day0.architecture.quantised import Quantised, companions, quantised, weight_names
from day0.home import configs

FORMAT = {"weight": ".weight", "dtypes": ["I8"], "scale": ".s", "scales": ["F32"], "law": ["1x*"]}
SCALE = {"ending": ".s", "of": [".weight"], "role": "scale"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"companions": [], "formats": [FORMAT]}, r"'\.s'.*not among `companions`"),
        ({"companions": [SCALE], "formats": [{**FORMAT, "also": [".t"]}]}, r"'\.t'.*not among `companions`"),
        ({"companions": [SCALE], "formats": [{**FORMAT, "weight": ".w"}]}, r"'\.w'.*not among `companions`"),
        (
            {"companions": [{**SCALE, "role": "offset"}], "formats": [FORMAT]},
            "ending, but its role is offset",
        ),
        ({"companions": [SCALE], "formats": [{**FORMAT, "weight": ".s"}]}, "a weight's ending, but its role is scale"),
        ({"companions": [SCALE, SCALE], "formats": [FORMAT]}, "listed twice"),
        ({"companions": [{"ending": ".s", "role": "scale"}], "formats": []}, "go together"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(found: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Quantised.model_validate(found)


def test_what_is_only_verified_is_not_matched() -> None:
    only = {companion.ending for companion in quantised().companions} - {c.ending for c in companions()}
    assert ".SCB" in only
    assert list(weight_names("x.SCB")) == []
    assert [name for name, _ in weight_names("x.q_proj.weight_scale_inv")] == ["x.q_proj.weight", "x.q_proj.weight"]


def test_both_halves_name_the_same_weight() -> None:
    """A companion's weight by its format (as stored) and by `of` (as a family has it)."""
    matched = {companion.ending: companion.of for companion in companions()}
    bases = {"": ("",), ".weight": (".weight",), **matched}
    pairs = [(f.weight, ending) for f in quantised().formats for ending in f.beside if ending in matched]
    checked = [(weight, ending) for weight, ending in pairs if weight in bases]  # torchao's are only verified
    assert len(checked) >= 50
    for weight, ending in checked:
        assert set(bases[weight]) & set(matched[ending]), (weight, ending)


@pytest.mark.parametrize("edited", ["quantised.yaml", "families/llama.yaml"])
def test_what_is_computed_from_an_edited_file_is_computed_again(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = families_digest()
    shutil.copytree(configs(), tmp_path / "configs")
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path / "configs"))
    assert families_digest() == before
    with (tmp_path / "configs" / edited).open("a") as file:
        file.write("# another\n")
    assert families_digest() != before
