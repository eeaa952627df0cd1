# SPDX-License-Identifier: Apache-2.0
"""The tables of a measured grid, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.render.grid_tables import grid_table, is_plain, point_table
from flash_attention_workbench.bench.grid_summary import point_of, unit
from tests.workbench.bench.made_up_grid import made_up_rows


def test_every_number_of_the_table() -> None:
    assert grid_table(made_up_rows()) == [
        "| d_head | mask | kernel | 512 | 1024 | 2048 |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| 64 | full | ours | 800 (**2.00**) | 500 (**0.50**) |  |",
        "| 64 | full | FA3 | 400 |  |  |",
        "| 64 | full | cuDNN | 200 | 1000 |  |",
        "| 64 | full | FA2 | 100 |  |  |",
        "| 128 | causal | ours |  |  | 300 |",
        "| 128 | causal | FA2 |  |  | 150 |",
    ]


def test_a_wrong_kernel_has_no_speed() -> None:
    rows = [replace(made_up_rows()[0], ok=False)]
    assert "| 64 | full | ours | wrong |" in grid_table(rows)


def test_points_that_are_no_plain_self_attention_have_a_line_each() -> None:
    rows = made_up_rows()
    few = replace(rows[0], heads_k=8, seq_q=1, gbps=1000.0, copy_gbps=4000.0)
    window = replace(rows[3], window=64, full_ms=3 * rows[3].ms)
    assert is_plain(rows)
    assert not is_plain([few])
    assert point_table([few, window])[2:] == [
        "| 32 x 512, 1 q, 32/8 h, d 64, full | 1000 | 500 (**2.00**) | 250 (**4.00**)"
        " | 125 (**8.00**) | 25% of a copy's 4000 GB/s |",
        f"| 8 x 2048, 16 h, d 128, window 64 | {300 * point_of(window).flop / 2**37:.0f} |  | "
        f" | {150 * point_of(window).flop / 2**37:.0f} (**2.00**)"
        " | 3.00 times as fast as without the window |",
    ]
    assert unit([few, window]) == "GB/s of K and V or TFLOP/s"
