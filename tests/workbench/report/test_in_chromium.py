# SPDX-License-Identifier: Apache-2.0
"""The page of the stored results in a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gate import one_in
from tests.workbench.commands.invoke import invoke
from tests.workbench.report.browser import Tab, chromium, find_chromium

pytestmark = pytest.mark.slow  # left out of `make quick`

ROOT = Path(__file__).resolve().parents[3]
PHONE, DESK = 390, 1200


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if find_chromium() is None:
        why = "Chromium is not installed (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as tab:
        yield tab


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    invoke("report", "--results", str(ROOT / "results"), "--out", str(path))
    return path.as_uri()


def test_it_loads_alone_and_without_a_complaint(tab: Tab, page: str) -> None:
    tab.events.clear()
    tab.open(page)
    assert tab.evaluate("document.title") == "flash_attention, measured"
    assert tab.complaints() == []
    assert tab.requests() == [page]


def test_the_charts_are_drawn(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    rungs = "document.querySelectorAll('details.rung').length"
    assert tab.evaluate(rungs) == 29 + 21  # of the forward and the backward pass
    small = "[...document.querySelectorAll('svg')].filter(s => s.checkVisibility() && %s).length"
    assert tab.evaluate(small % "s.getBoundingClientRect().width > 100") > 70
    assert tab.evaluate(small % "s.getBoundingClientRect().width <= 100") == 0


def test_bars_are_as_long_as_the_numbers_beside_them(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    lengths = tab.evaluate(
        """[...document.querySelectorAll('[aria-labelledby=ladder] .rung > summary')].map(row => {
          const filled = row.querySelectorAll('.bar:not(.lost)');
          const length = [...filled].reduce((sum, b) => sum + b.getBoundingClientRect().width, 0);
          return length / Number(row.querySelector('.speed').textContent);
        })"""
    )
    assert len(lengths) == 29
    for each in lengths:
        assert each == pytest.approx(lengths[-1], rel=0.015)  # the numbers are whole


def test_clicking_a_rung_shows_its_diff_and_counters(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    shown = "document.querySelector('#rung-2 .diff').checkVisibility()"
    assert not tab.evaluate(shown)
    tab.click("#rung-2 > summary")
    assert tab.becomes(shown)
    text = tab.evaluate("document.querySelector('#rung-2 .panel').innerText")
    for part in ("swizzled: False -> True", "wavefronts / needed", "SASS instructions"):
        assert part in text
    assert "+  using Layout = fa::sm80::layout::XorSwizzle;\n" in text  # lines are copied as lines
    tab.click("#rung-2 > summary")
    assert tab.becomes(shown, False)


def test_the_keyboard_opens_a_rung(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    tab.evaluate("document.querySelector('#rung-3 > summary').focus()")
    tab.press("Enter", 13, "\r")
    assert tab.becomes("document.getElementById('rung-3').open")
    tab.press("Tab", 9)  # on to the first table, which the keyboard can scroll
    assert tab.becomes("document.activeElement.closest('.panel') !== null")


def test_a_column_of_the_counters_leads_to_its_rung(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    tab.click("a[href='#rung-9'] .touch")
    assert tab.becomes("location.hash", "#rung-9")
    assert tab.becomes("document.getElementById('rung-9').open")


def test_pointing_at_a_dot_says_its_numbers(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    assert tab.evaluate("document.getElementById('tip').hidden")
    tab.point_at(".choice .touch")
    assert tab.becomes("document.getElementById('tip').checkVisibility()")
    assert "TFLOP/s" in tab.evaluate("document.getElementById('tip').textContent")


def test_the_switch_goes_between_dtypes(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    shown = """[...document.querySelectorAll('[aria-labelledby=%s] .choice')]
        .filter(c => c.checkVisibility()).map(c => c.dataset.view).join('; ')"""
    assert tab.evaluate(shown % "peers") == "BF16"
    tab.click("label[for='peers-fp16']")
    assert tab.becomes(shown % "peers", "FP16")
    assert tab.evaluate(shown % "gradients") == "BF16"  # one switch leaves the other alone


def test_the_switch_of_gradients_shows_the_deterministic_mode(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    shown = """[...document.querySelectorAll('[aria-labelledby=gradients] .choice')]
        .filter(c => c.checkVisibility()).map(c => c.dataset.view).join('; ')"""
    charts = """[...document.querySelectorAll('[aria-labelledby=gradients] figure')]
        .filter(c => c.checkVisibility()).length"""
    assert (tab.evaluate(shown), tab.evaluate(charts)) == ("BF16", 6)
    tab.click("label[for='gradients-bf16-deterministic']")
    assert tab.becomes(shown, "BF16, deterministic")
    assert tab.evaluate(charts) == 6


def test_a_rung_of_gradients_shows_its_kernels_and_counters(tab: Tab, page: str) -> None:
    tab.open(page, width=DESK)
    tab.click("a[href='#backward-rung-12'] .touch")
    assert tab.becomes("document.getElementById('backward-rung-12').open")
    text = tab.evaluate("document.querySelector('#backward-rung-12 .panel').innerText")
    for part in ("stages: 1 -> 2", "registers a thread", "prepare", "main", "convert"):
        assert part in text
    assert not tab.evaluate("document.getElementById('rung-12').open")


@pytest.mark.parametrize("width", one_in(3, [320, PHONE, 768]))
def test_nothing_makes_the_page_scroll_sideways(tab: Tab, page: str, width: int) -> None:
    tab.open(page, width=width, height=800)
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("window.innerWidth") == width


def test_on_a_phone_a_rung_can_be_hit_with_a_finger(tab: Tab, page: str) -> None:
    tab.open(page, width=PHONE, height=800)
    height = "document.querySelector('#rung-5 > summary').getBoundingClientRect().height"
    assert tab.evaluate(height) >= 44
    tab.click("#rung-5 > summary")
    assert tab.becomes("document.querySelector('#rung-5 .diff').checkVisibility()")


_CONTRASTS = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const other = light(colour);
    return (Math.max(paper, other) + 0.05) / (Math.min(paper, other) + 0.05);
  };
  const words = ['.lead', '.rung .speed', '.rung .gain.up', '.rung .gain.down', 'nav a', 'td'];
  const drawn = ['text.peer.ours', 'text.peer.fa3', 'text.peer.cudnn', 'text.peer.fa2', '.tick'];
  return [paper, ...words.map(s => contrast(getComputedStyle(document.querySelector(s)).color)),
    ...drawn.map(s => contrast(getComputedStyle(document.querySelector(s)).fill))];
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_stand_out_in_light_and_dark(tab: Tab, page: str, dark: bool) -> None:
    tab.open(page, width=DESK, dark=dark)
    paper, *contrasts = tab.evaluate(_CONTRASTS)
    assert (paper < 0.05) if dark else (paper > 0.9)
    assert min(contrasts) >= 4.5  # WCAG AA for text
