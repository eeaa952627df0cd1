# SPDX-License-Identifier: Apache-2.0
"""Escaping, attributes, tables."""

from __future__ import annotations

from flash_attention_workbench.report.markup import Markup, element, join, table
from tests.workbench.report.parse import having, parse


def test_text_and_attributes_are_escaped_once() -> None:
    inner = element("b", "a < b & c")
    outer = element("p", inner, '"quoted"', title='<"&')
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert outer == ('<p title="&lt;&quot;&amp;"><b>a &lt; b &amp; c</b>&quot;quoted&quot;</p>')
    assert join((Markup("<i>"), "<i>")) == "<i>&lt;i&gt;"


def test_attributes_that_are_absent_alone_or_reserved_words() -> None:
    assert element("input", checked=True, id=None, class_="a", data_tip="b", disabled=False) == (
        '<input checked class="a" data-tip="b">'
    )
    assert element("label", "x", for_="y") == '<label for="y">x</label>'


def test_a_table_names_its_rows_and_aligns_its_numbers() -> None:
    found = parse(table(["rung", "change", "speed"], [["base", "<none>", 7]], caption="C", left=2))
    assert [e.text for e in having(found, "th")] == ["rung", "change", "speed", "base"]
    assert [(e.text, e.attributes) for e in having(found, "td")] == [
        ("<none>", {}),
        ("7", {"class": "number"}),
    ]
    assert having(found, "caption")[0].text == "C"
    assert having(found, "div")[0].attributes["tabindex"] == "0"  # the keyboard can scroll it
