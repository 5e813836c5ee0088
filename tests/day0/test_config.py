from __future__ import annotations

from pathlib import Path

import pytest

from day0.artifacts.base import Frozen
from day0.config import load_config, named_config, parse_yaml
from day0.errors import InputError


class Inner(Frozen):
    tolerance: float = 0.0


class Outer(Frozen):
    prompts: tuple[str, ...]
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("promts: [a]", "unknown key 'promts'; did you mean 'prompts'"),
        ("prompts: [a]\ninner: {tolerence: 1}", "unknown key 'inner.tolerence'; did you mean 'tolerance'"),
        ("prompts: 3", "prompts: "),
        ("{}", "prompts: "),
        ("prompts: [a", "is not valid YAML"),
        ("- a", "it has no keys"),
        ("prompts: [a]\ninner: {tolerance: .nan}", "inner.tolerance"),
        ("prompts: [a]\n'prompts': [b]", "the key 'prompts' stands twice in one mapping, in lines 1 and 2"),
        (
            "prompts: [a]\ninner: {tolerance: 1, tolerance: 2}",
            "the key 'tolerance' stands twice in one mapping, in line 2",
        ),
    ],
)
def test_a_fault_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_config(path, Outer)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_merged_into_a_mapping_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  y: 3\nc:\n  <<: [*a, *b]\n  x: 4\nd: *b\n"
    found = parse_yaml(text)
    assert (found["b"], found["d"], found["c"]) == ({"x": 1, "y": 3}, {"x": 1, "y": 3}, {"x": 4, "y": 2})
    assert parse_yaml("") is None
    # Two keys that are written unlike and are one.
    with pytest.raises(ValueError, match="the key '0x10' stands twice in one mapping, in lines 1 and 2"):
        parse_yaml("16: a\n0x10: b\n")


def test_a_binary_file_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        load_config(tmp_path / "x.yaml", Outer)


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("prompts: [a]")
    assert named_config(tmp_path, "smoke", Outer).prompts == ("a",)
    for wrong in ("smok", "../smoke", "a/b"):
        with pytest.raises(InputError, match=r"no .* config named"):
            named_config(tmp_path, wrong, Outer)
