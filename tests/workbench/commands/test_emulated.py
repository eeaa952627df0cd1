# SPDX-License-Identifier: Apache-2.0
"""Numbers of a report that follow from the shape, worked out by hand."""

from __future__ import annotations

import pytest

from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.emulated import key_blocks


@pytest.mark.parametrize(
    ("seq_len", "causal", "blocks"),
    [(256, False, 8 + 8), (256, True, 4 + 8), (200, False, 7 + 7), (200, True, 4 + 7)],
)
def test_key_blocks_that_two_tiles_see(seq_len: int, causal: bool, blocks: int) -> None:
    config = get_ladder()[0].config
    assert (config.B_r, config.B_c) == (128, 32)
    assert key_blocks(config, seq_len, causal) == blocks
