"""A command in a container: what it can reach, what it leaves, and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from day0.container import read_output, run_contained
from day0.deadline import Deadline
from day0.errors import StageTimeout, Unavailable
from day0.image import BASE, docker_client
from day0.process import ProcessFailed


def contained(script: str, tmp_path: Path, **options: int) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "out").mkdir(exist_ok=True)
    run_contained(
        BASE, ["sh", "-c", script], inputs={"/in": tmp_path / "in"}, output=("/out", tmp_path / "out"), **options
    )


def left() -> list[str]:
    with docker_client() as client:
        return [c.id for c in client.containers.list(all=True, filters={"label": "day0.contained"})]


@pytest.mark.docker
def test_it_reads_what_it_is_given_and_writes_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "said").write_text("hello")
    contained(
        "set -e; cp /in/said /out/heard; id -u > /out/user; grep CapEff /proc/self/status > /out/capabilities;"
        "ls /sys/class/net > /out/networks; for f in /in/x /x /usr/x; do ! touch $f 2>/dev/null; done",
        tmp_path,
    )
    out = tmp_path / "out"
    assert (out / "heard").read_text() == "hello"
    assert (out / "user").read_text().strip() == "10001"
    assert int((out / "capabilities").read_text().split()[1], 16) == 0
    assert (out / "networks").read_text().split() == ["lo"]
    assert not left()


@pytest.mark.docker
def test_what_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="sh ended with code 7: no such luck"):
        contained("echo no such luck >&2; exit 7", tmp_path)
    with pytest.raises(ProcessFailed, match="took longer than 1 s"):
        contained("sleep 60", tmp_path, seconds=1)
    assert not left()


@pytest.mark.docker
def test_a_deadline_ends_it(tmp_path: Path) -> None:
    with pytest.raises(StageTimeout), Deadline("the test", 2).running():
        contained("sleep 600", tmp_path)
    assert not left()
    assert threading.active_count() < 50


@pytest.mark.docker
def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no-such is not there"):
        run_contained("day0/no-such", ["true"], inputs={}, output=("/out", tmp_path))


def test_its_word_is_read_from_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path / "secret")
    (out / "folder").mkdir()
    (out / "long").write_bytes(b"x" * 11)
    (out / "good").write_bytes(b"x" * 10)
    assert read_output(out, "good", 10) == b"x" * 10
    for name in ("link", "folder", "long", "absent"):
        with pytest.raises((OSError, ValueError)):
            read_output(out, name, 10)
