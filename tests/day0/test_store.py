from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.artifacts.base import Artifact
from day0.errors import EvidenceMissing
from day0.files import FileRef, atomic_write, canonical_json, file_ref
from day0.store import Store, changed_file, stats_of
from day0.verdict import Check, Verdict

CHECKS = (Check(name="c", verdict=Verdict.PASS, reason="r"),)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


class Note(Artifact):
    kind: ClassVar[str] = "note"
    text: str


class Other(Artifact):
    kind: ClassVar[str] = "other"
    text: str


def note(text: str = "x") -> Note:
    return Note(text=text, checks=CHECKS)


def test_an_artifact_is_read_as_it_was_put(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put(note())
    assert store.get(digest, Note) == note()
    assert store.put(note()) == digest


def test_the_digest_is_that_of_kind_and_content() -> None:
    assert note().digest == note().digest != note("y").digest
    assert note().digest != Other(text="x", checks=CHECKS).digest


def test_a_changed_record_is_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put(note("aaa"))
    path = next(tmp_path.rglob(f"{digest}.json"))
    path.write_text(path.read_text().replace("aaa", "bbb"))
    with pytest.raises(EvidenceMissing, match="was changed"):
        store.get(digest, Note)
    path.write_text("{")
    with pytest.raises(EvidenceMissing, match="not in the store"):
        store.get(digest, Note)


def test_an_artifact_of_another_kind_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(EvidenceMissing, match="is a note, not a other"):
        store.get(store.put(note()), Other)


@given(json_values)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: object) -> None:
    def backwards(part: object) -> object:
        if isinstance(part, dict):
            return {key: backwards(part[key]) for key in reversed(list(part))}
        return [backwards(item) for item in part] if isinstance(part, list) else part

    assert canonical_json(value) == canonical_json(backwards(value))


def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_changed_or_went_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("aa")
    (tmp_path / "b").write_text("bb")
    files = (file_ref(tmp_path, "a"), file_ref(tmp_path, "b"))
    stats = stats_of(tmp_path, files)
    assert changed_file(tmp_path, files, stats) is None
    os.utime(tmp_path / "a", (1, 1))
    assert changed_file(tmp_path, files, stats) is None
    (tmp_path / "b").write_text("bc")
    assert changed_file(tmp_path, files, stats) == "b was changed"
    (tmp_path / "a").unlink()
    assert changed_file(tmp_path, files, stats) == "a is gone"


def test_a_file_of_another_size_is_not_even_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("aaa")
    wrong = (FileRef(name="a", bytes=2, sha256=file_ref(tmp_path, "a").sha256),)
    assert changed_file(tmp_path, wrong, {}) == "a was changed"


def test_adopting_over_an_older_tree_replaces_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for text in ("old", "new"):
        workspace = store.workspace()
        (workspace / "file").write_text(text)
        tree = store.adopt(workspace, "stage-1")
    assert (tree / "file").read_text() == "new"
    assert not list((tmp_path / "tmp").iterdir())


def test_sweeping_leaves_the_work_of_living_processes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    mine = store.workspace()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = mine.parent / f"{child.pid}-abc"
    dead.mkdir()
    store.sweep()
    assert mine.is_dir()
    assert not dead.exists()
