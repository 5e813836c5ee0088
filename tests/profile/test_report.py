"""The profile as a page: complete in itself, whatever a config calls itself; and its pictures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from day0.artifacts.profile import Profile
from day0.profile_plots import profile_plots
from day0.svg import figure_of, label_points, power, powers, styled
from tasks.profile.describe import describe_model
from tasks.profile.render import count_of, seconds, size
from tasks.profile.report import render_profile
from tasks.profile.settings import ProfileSettings
from tests.architecture.data import DATA, config, write_config

V3 = DATA / "configs/deepseek-ai__DeepSeek-V3.json"
HOSTILE = '<script>alert("x")</script>&\x1b[31m${{ 7*7 }}$'
SHOWN = [
    "deepseek-ai__DeepSeek-V3", "deepseek-ai__DeepSeek-V4-Flash", "moonshotai__Kimi-K3", "google__gemma-4-26B-A4B",
    "nvidia__Nemotron-H-56B-Base-8K", "Qwen__Qwen3-0.6B", "openai__gpt-oss-120b",
]  # fmt: skip


class Page(HTMLParser):
    """What a browser would fetch or run, what it shows, and what has an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action", "srcset"):
                self.references.append(value or "")
            elif name == "id":
                self.ids.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


def profiled(path: Path = V3, **asked: Any) -> Profile:
    return describe_model(path, ProfileSettings(**asked))


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_is_complete_in_itself(name: str) -> None:
    html = render_profile(profiled(DATA / f"configs/{name}.json", target="h100"), name)
    page = Page(html)
    assert page.tags.count("svg") == 4
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert page.handlers == []
    assert all(reference.startswith("#") for reference in page.references)
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert "prefers-color-scheme: dark" in html
    assert "mathdefault" not in page.text  # formulas are not set
    assert "currentColor" in html
    assert "#010203" not in html


def test_what_the_page_says_of_deepseek_v3() -> None:
    profile = profiled(target="h100", context=4096, concurrency=8)
    text = " ".join(Page(render_profile(profile, "DeepSeek-V3")).text.split())
    for said in (
        "671.03 B", "37.55 B", "70,272 B", "MLA", "rope, yarn × 40 from 4,096; 163,840 tokens at most",
        "8 of 256 + 1 shared in 58 layers; scoring sigmoid, groups 8", "scaling 2.5, normalised, bias",
        "multi-token prediction (1 modules)", "97.4%",
        "roofline of h100", "8 × 4,096 tokens", "long prompt, short answer", "least time of decode",
        "on the first pipeline stage alone", "KV cache and state of one sequence, bfloat16", "Warnings", "auto_map",
    ):  # fmt: skip
        assert said in text, said


def test_without_a_target_there_is_no_roofline_but_the_plots_are() -> None:
    page = Page(render_profile(profiled(), "m"))
    assert page.tags.count("svg") == 4
    assert "roofline of" not in page.text
    assert "ridge" not in page.text
    assert "least time" not in page.text


def test_what_a_config_calls_itself_is_text(tmp_path: Path) -> None:
    raw = config(architectures=[HOSTILE], num_memory_slots=64, **{HOSTILE: 64})
    html = render_profile(profiled(write_config(tmp_path, raw)), HOSTILE)
    page = Page(html)
    assert "script" not in page.tags
    assert page.handlers == []
    assert '<script>alert("x")' in page.text
    assert "num_memory_slots 64" in page.text
    assert "49" not in re.findall(r"\$(\d+)\$", page.text)


def test_an_unsure_family_is_said_at_the_top(tmp_path: Path) -> None:
    page = Page(render_profile(profiled(write_config(tmp_path, config(model_type="brand_new"))), "m"))
    text = " ".join(page.text.split())
    assert re.search(r"inconclusive: .*by its config alone family 'llama'", text)


def test_captions_say_what_the_pictures_show() -> None:
    captions = [caption for caption, _ in profile_plots(profiled(target="h100", context=2048, concurrency=4))]
    assert captions == [
        "Parameters by kind",
        "Parameters of each layer",
        "KV cache and state of one sequence, bfloat16",
        "FLOPs a byte by class of operator, 4 × 2,048 tokens on h100",
    ]


def test_the_ridge_is_where_the_target_bends() -> None:
    profile = profiled(target="h100")
    work = profile.architecture["work"]
    (roofline,) = [svg for caption, svg in profile_plots(profile) if caption.startswith("FLOPs")]
    assert f"ridge, {work['decode']['roofline']['ridge']:.0f} FLOPs a byte" in roofline


def axes_of(low: float, high: float) -> Any:
    figure, axes = figure_of(2.0)
    axes.plot([low, high], [low, high])
    axes.set_xscale("log")
    axes.set_yscale("log")
    powers(axes.yaxis)
    figure.draw_without_rendering()
    inside = [tick for tick in axes.yaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1.get_text() for tick in inside]


@pytest.mark.parametrize(
    ("low", "high", "most"), [(0.9, 1.2, 7), (0.05, 12.0, 8), (3.0, 90.0, 8), (1e6, 1e18, 8), (1e-9, 1e-3, 8)]
)
def test_an_axis_has_some_labels_and_not_too_many(low: float, high: float, most: int) -> None:
    with styled():
        labels = axes_of(low, high)
    assert 2 <= len(labels) <= most
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("value", "text"), [(0.01, "0.01"), (1, "1"), (2e4, "20000"), (1e5, "10⁵"), (1e12, "10¹²"), (1e-7, "10⁻⁷")]
)
def test_powers_in_plain_text(value: float, text: str) -> None:
    assert power(value) == text


def test_names_of_points_that_lie_together_do_not_cover_one_another() -> None:
    with styled():
        figure = Figure(figsize=(5, 3))
        axes = figure.add_subplot()
        points = [(f"class {i}", 1.0 + i * 1e-3, 1.0) for i in range(6)] + [("class 0", 1.0, 1.0)]
        axes.scatter([x for _, x, _ in points], [y for _, _, y in points])
        axes.set_xlim(0, 2)
        label_points(figure, axes, points)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 6  # what is twice at one place is named once
    for i, box in enumerate(boxes):
        assert not [other for other in boxes[:i] if box.overlaps(other)]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (seconds(73.86), "73.86 s"), (seconds(0.01067), "10.67 ms"), (seconds(3.2e-5), "32 µs"),
        (seconds(72_000), "20 h"), (size(449.4e6), "449.4 MB"), (size(0), "0 B"),
        (count_of(671_026_419_200), "671.03 B"), (count_of(2.78e12), "2.78 T"), (count_of(64), "64"),
    ],
)  # fmt: skip
def test_numbers_for_people(shown: str, text: str) -> None:
    assert shown == text
