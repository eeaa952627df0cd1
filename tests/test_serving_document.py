# SPDX-License-Identifier: Apache-2.0
"""docs/serving.md: its programs run, and compute what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention
from flash_attention_workbench.commands.models import read_model

TEXT = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
pytestmark = pytest.mark.slow  # warm_up compiles


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the programs of the page define."""
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    assert len(PROGRAMS) == 8
    for program in PROGRAMS:
        exec(compile(program, "docs/serving.md", "exec", dont_inherit=True), names)
    return names


def alone(page: dict[str, Any], k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The step of the page, a sequence at a time, without pages."""
    starts, outs = page["cu_seqlens_q"].tolist(), []
    for index, keys in enumerate(page["keys"]):
        rows = page["block_table"][index].long()
        own_k, own_v = (cache[rows].flatten(0, 1)[None, :keys] for cache in (k, v))
        q = page["q"][None, starts[index] : starts[index + 1]]
        outs.append(attention(q, own_k, own_v, causal=True, **options)[0])
    return torch.cat(outs)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a graph of the page changes the lengths")
def test_its_programs_compute_what_they_say(page: dict[str, Any]) -> None:
    k, v, sinks = page["k_cache"], page["v_cache"], page["sinks"]
    close(page["out"], alone(page, k, v))
    close(page["full"], alone(page, k, v, sinks=sinks))
    close(page["local"], alone(page, k, v, sinks=sinks, window=(31, 0)))
    close(page["capped"], alone(page, k, v, softcap=50.0))
    assert page["lse"].shape == (page["heads"], 22)


def test_a_prefix_and_what_follows_are_merged(page: dict[str, Any]) -> None:
    shared, own, keys = page["shared"], page["own"], page["int32"](70, 37, 52)
    table = torch.cat((shared.expand(3, -1), own), 1)
    step = page["step"] | {"seqused_k": keys, "block_table": table}
    close(page["o"], attention(page["q"], page["k_cache"], page["v_cache"], **step))


def test_a_row_alone_is_that_of_the_step(page: dict[str, Any]) -> None:
    close(page["alone"], page["whole"][:1])


def test_the_error_is_that_of_the_page(page: dict[str, Any]) -> None:
    table = page["block_table"].clone()
    table[0, 1] = 99
    step = page["step"] | {"block_table": table}
    with pytest.raises(UnsupportedError) as told:
        attention(page["q"], page["k_cache"], page["v_cache"], validate=True, **step)
    assert f"UnsupportedError: {told.value}\n" in TEXT


def test_the_models_of_the_page_are_read() -> None:
    models = re.findall(r'--model "(.*?)"', TEXT)
    assert len(models) == 3
    for model in models:
        assert read_model(model).block_table is not None
