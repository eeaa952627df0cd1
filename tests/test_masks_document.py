# SPDX-License-Identifier: Apache-2.0
"""docs/masks.md: its programs run, and its pictures are those of the masks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.render import masks as pictures
from benchmarks.render.blocks import marked_block
from flash_attention import masks

TEXT = (Path(__file__).parents[1] / pictures.DOCUMENT).read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_its_programs_run_and_its_shares_are_right() -> None:
    namespace: dict[str, Any] = {}
    assert len(PROGRAMS) == 7
    for program in PROGRAMS:
        exec(compile(program, "docs/masks.md", "exec", dont_inherit=True), namespace)
    assert namespace["bias"].grad.abs().max() > 0
    assert f"print(report.function.tiles)  # {namespace['report'].function.tiles}\n" in TEXT


def test_its_pictures_are_rendered() -> None:
    block = marked_block(TEXT, pictures.PICTURES)
    assert block == pictures.pictures_block(), "run python -m benchmarks.render"


@pytest.mark.parametrize("name", pictures.SHOWN)
def test_a_picture_is_that_of_its_mask(name: str) -> None:
    block = pictures.pictures_block().splitlines()
    titles = [re.split(r"\s{2,}", line) for line in block]
    (title,) = (number for number, names in enumerate(titles) if name in names)
    column = titles[title].index(name) * pictures.WIDTH
    at = torch.arange(pictures.SIZE)
    zero = torch.zeros((), dtype=torch.int64)
    seen = pictures.SHOWN[name](zero, zero, at[:, None], at)
    drawn = block[title + 1 : title + 1 + pictures.SIZE]
    for line, row in zip(drawn, seen.tolist(), strict=True):
        assert line[column : column + pictures.SIZE] == "".join(".#"[each] for each in row)


def test_every_mask_with_a_name_is_drawn() -> None:
    own = {name for name, value in vars(masks).items() if _is_made_by(value) and name[0] != "_"}
    drawn = " ".join(pictures.SHOWN)
    assert {name for name in own if f"{name}(" not in drawn} == set()


def _is_made_by(value: Any) -> bool:
    return getattr(value, "__annotations__", {}).get("return") == "Mask"
