# SPDX-License-Identifier: Apache-2.0
"""Every config over a grid, and the counters of rungs, number by number."""

from __future__ import annotations

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.ledger import ABLATIONS, profile_block
from tests.workbench.bench.made_up_grid import made_up_grid


def test_every_number_of_the_profile() -> None:
    rows = [{"rung": 1, "name": "base", "kcycles": 85217.7, "tensor pipe %": 7.16}]
    block = profile_block({"shape": [1, 2048, 16, 128], "rows": rows}, "Some GPU")
    lines = block.splitlines()
    assert "Some GPU. Batch 1, 2048 rows, 16 heads of 128, FP16." in lines[1]
    assert [line for line in lines if line.startswith("|")] == [
        "| rung | kcycles | tensor pipe % |",
        "| --- | ---: | ---: |",
        "| 1 base | 85,218 | 7.16 |",
    ]


def test_a_grid_without_a_block_of_its_own_lists_every_config() -> None:
    block = f"{begin(ABLATIONS)}\nold\n{end(ABLATIONS)}\n"
    text = documents.render(block, made_up_grid())
    assert text is not None
    header = "| tile | switches | full 512 | full 1024 | full 2048 | causal 512 |"
    assert header in text
    assert "| (BF16, 64, 2, 128, 2) | tma | 800 | 500 |  |  |  |  |" in text
    assert "| (BF16, 64, 2, 128, 2) | plain | 1600 |  |  |  |  |  |" in text
    assert "| (BF16, 128, 2, 128, 2) | tma |  |  |  |  |  | 300 |" in text
