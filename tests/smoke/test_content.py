"""Malformed texts, and sound ones that look odd."""

from __future__ import annotations

import pytest

from tasks.smoke.content import faults
from tasks.smoke.settings import load_settings

LEAKS = load_settings().leaks or ()


def judge(text: str, finish: str = "stop", asked: str = "", multilingual: bool = False) -> list[str]:
    return faults(
        text, finish, special_tokens=["<eos>", "<|im_end|>"], leaks=LEAKS, asked=asked, multilingual=multilingual
    )


@pytest.mark.parametrize(
    ("text", "finish", "word"),
    [
        ("", "length", "empty"),
        ("  \n", "stop", "empty"),
        ("The \ufffd\ufffd answer", "stop", "U+FFFD"),
        ("The answer \ufffd", "stop", "U+FFFD"),
        ("Paris.<|im_end|>\n<|im_start|>user", "length", "<|im_start|>"),
        ("It is Paris.</think> Paris", "stop", "</think>"),
        ("Paris<｜end▁of▁sentence｜>", "stop", "control tokens"),
        ("Paris [INST] more", "stop", "[INST]"),
        ("Paris <eos>", "stop", "<eos>"),
        ("Paris\x00\x07", "stop", "U+0000"),
        ("the casa красивая מילה ของเรา मेरा " * 6, "length", "scripts"),
    ],
)
def test_malformed(text: str, finish: str, word: str) -> None:
    found = judge(text, finish)
    assert any(word in fault for fault in found), found


@pytest.mark.parametrize(
    "text",
    [
        "The capital of France is Paris.",
        "| a | b |\n|---|---|\n| <b>1</b> | 2 |",
        "東京タワーは Tokyo の有名な塔です。カタカナとひらがなと漢字。" * 3,
        "Das Wort кот heißt Katze.",
        "\tif a < b and c > d:\n\t\treturn a | b",
    ],
)
def test_sound(text: str) -> None:
    assert judge(text) == []


def test_answer_cut_within_a_character_is_sound() -> None:
    assert judge("日本語は\ufffd", "length") == []


def test_marker_that_was_asked_about_is_no_leak() -> None:
    assert judge("The marker <|im_end|> ends a turn.", asked="What does <|im_end|> mean?") == []


def test_scripts_may_mix_where_the_prompt_says_so() -> None:
    assert judge("the casa красивая מילה ของเรา मेरा " * 6, multilingual=True) == []
