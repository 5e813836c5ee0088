"""The folder that is being written: whose it is, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from day0.errors import InputError
from tasks.reshard.partial import Partial, resumable_folder


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Partial]:
    with resumable_folder(tmp_path / "out", "a" * 64) as partial:
        yield partial


def test_two_runs_at_once_on_one_destination(tmp_path: Path, held: Partial) -> None:
    sentence = "another run is writing to .*out now"
    for key in ("a" * 64, "b" * 64):
        with pytest.raises(InputError, match=sentence), resumable_folder(tmp_path / "out", key):
            pytest.fail("it must not begin")
    with resumable_folder(tmp_path / "beside", "a" * 64) as other:
        assert other.root != held.root
    assert held.root.is_dir()


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(InputError, match="is not empty"), resumable_folder(tmp_path / "out", "0" * 64):
        pytest.fail("it must not begin")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_an_empty_folder_is_replaced_and_the_partial_one_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with resumable_folder(tmp_path / "out", "c" * 64, tmp_path / "store") as partial:
        assert partial.root.is_relative_to(tmp_path / "store")
        (partial.root / "file").write_text("x")
    assert (tmp_path / "out" / "file").read_text() == "x"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "store").iterdir()) == []


def test_leftovers_of_a_destination_with_a_longer_name_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    other = tmp_path / f".out.two.{'d' * 16}.partial"
    other.mkdir()
    with resumable_folder(tmp_path / "out", "e" * 64):
        pass
    assert other.exists()


def test_a_link_in_place_of_the_partial_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / f".out.{'f' * 16}.partial").symlink_to(tmp_path / "trap")
    with pytest.raises(InputError, match="is in the way"), resumable_folder(tmp_path / "out", "f" * 64):
        pytest.fail("it must not begin")
    assert list((tmp_path / "trap").iterdir()) == []
