"""A short fuzz run of the header reader, and every input that earlier runs have kept. The long one: fuzz/header.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.header import CORPUS, as_file, as_input, check, seeds, unguided


def test_what_earlier_runs_have_kept() -> None:
    kept = sorted(CORPUS.iterdir())
    assert len(kept) > 50
    accepted = [check(data) for data in seeds()]
    assert any(accepted)
    assert not all(accepted)


def test_an_input_stands_for_a_file() -> None:
    assert as_file(as_input(b"abc")) == b"abc"
    assert as_file(b"\x01\x02{}") == b"\x02\0\0\0\0\0\0\0{}\0\0"


def test_a_reader_that_accepts_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from day0 import safetensors_header

    monkeypatch.setattr(safetensors_header, "_cover", lambda *_: [])
    with pytest.raises(Exception, match=r"cover|not fully|Invalid|header"):
        check(b'\x01\x00{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')  # no data behind it


def test_random_changes() -> None:
    assert unguided(seconds=60, runs=3000) == 3000


def test_the_command_guided_where_it_can_be() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.header", "--runs", "3000"], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr[-2000:]


#: Small JSON texts with the words of the format in them, mostly of the right shape.
fields = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["U8", "F4", "BF16", "F6_E2M3", "u8", ""]) | st.integers(),
        "shape": st.lists(st.integers(-1, 4) | st.booleans() | st.just(2**62), max_size=3) | st.none(),
        "data_offsets": st.lists(st.integers(0, 16) | st.floats(0, 4), max_size=3),
        "extra": st.none(),
    },
)


@settings(max_examples=300, deadline=None)
@given(
    entries=st.dictionaries(st.sampled_from(["a", "b", "", "__metadata__", "\ud800", "層"]), fields, max_size=3),
    size=st.integers(0, 16),
)
def test_headers_with_the_right_words(entries: dict, size: int) -> None:
    import json

    check(b"\x01" + bytes([size]) + json.dumps(entries).encode())
