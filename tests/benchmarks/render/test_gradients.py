# SPDX-License-Identifier: Apache-2.0
"""Grids of gradients, random gradients and curves of losses are rendered from their records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.gradients import CURVES, CURVES_PLOT, GRADIENT_PROBLEMS
from flash_attention_workbench.bench.stored import GRADIENTS, read_file
from tests.workbench.bench.made_up_grid import grid_row, made_up_grid

FLOP = 2.5 * 2**36 / 1e9  # milliseconds at 1 TFLOP/s


def record_of(**changes: Any) -> dict[str, Any]:
    row = replace(
        grid_row("hopper_backward(...)", (64, False, 512), FLOP / 500, {}),
        measured="BACKWARD",
        tflops=500.0,
        peers={"fa3": FLOP / 400, "fa3_deterministic": FLOP / 300, "cudnn": FLOP / 250},
        beside={"fa3": FLOP / 480, "fa3_deterministic": FLOP / 450},
        ratio=1.2,
        deterministic_ms=FLOP / 460,
        **changes,
    )
    return made_up_grid() | {"grid": "backward", "rows": [asdict(row)]}


def test_a_grid_of_gradients_has_its_block_its_means_and_its_plot(tmp_path: Path) -> None:
    document, results = tmp_path / "d.md", tmp_path / "r.json"
    results.write_text(json.dumps(record_of()))
    assert read_file(results).kind == GRADIENTS
    name = "grid-backward-bf16"
    document.write_text(f"{begin(name)}\nNot measured yet.\n{end(name)}\nafter\n")
    for _ in range(2):
        documents.main([str(document), str(results)])
        text = document.read_text()
        assert "| 64 | full | ours | 500 (**1.20**) |" in text
        assert "| 64 | full | ours, deterministic | 460 (**1.50**) |" in text
        assert "| 64 | full | FA3 | 400 |" in text
        assert "| 64 | full | FA3 deterministic | 300 |" in text
        at = "32 x 512, 32 h, d 64, full"
        assert f"| ours | the faster of FA3 and cuDNN | 1 | **1.200** | 1.200 | {at} |" in text
        assert f"| deterministic | FA3 deterministic | 1 | **1.500** | 1.500 | {at} |" in text
        assert f"| deterministic | our other mode | 1 | **0.920** | 0.920 | {at} |" in text
        assert "BF16, backward, with all of its kernels" in text
        assert text.endswith(f"{end(name)}\nafter\n")
    assert (tmp_path / documents.PLOTS[name]).read_bytes().startswith(b"\x89PNG")


def test_points_that_are_not_plain_have_a_line_each() -> None:
    record = record_of(heads_k=8) | {"grid": "backward_gqa"}
    name = documents.grid_name(record)
    text = documents.render(f"{begin(name)}\n{end(name)}\n", record)
    assert text is not None
    line = "| 32 x 512, 32/8 h, d 64, full | 500 | 400 (**1.20**) | 250 (**2.00**) | 300 (**1.50**)"
    assert line in text
    assert "![" not in text


def facts() -> dict[str, Any]:
    return {name: made_up_grid()[name] for name in ("device", "driver", "nvrtc", "torch", "date")}


def test_random_gradients_are_told_in_words() -> None:
    record = {
        **facts(),
        **{"commit": None, "count": 1000, "kernels": 7, "families": {"sm80": 250, "sm90": 750}},
        "worst_gradients": {"dq": {"share": 0.5}, "dsinks": {"share": 0.25}},
        **{"features": {"causal": 1200, "deterministic": 30}, "failures": [{}]},
    }
    text = documents.render(f"{begin(GRADIENT_PROBLEMS)}\n{end(GRADIENT_PROBLEMS)}\n", record)
    assert text is not None
    assert "the gradients of 999 of 1,000 random problems were right" in text
    assert "as shares of what is allowed: dq 50%, dsinks 25%." in text
    assert "| causal | 1,200 | deterministic | 30 |  |  |" in text


def test_curves_are_told_and_drawn(tmp_path: Path) -> None:
    document, results = tmp_path / "d.md", tmp_path / "r.json"
    record = {
        **facts(),
        "commit": None,
        "settings": {"layers": 4, "d_model": 512, "heads": 8, "seq": 512, "batch": 16, "steps": 40},
        "comparison": {"run_to_run": 0.002, "beyond": 0.001, "final": {}, "within": True},
        "losses": {"ours": [[5.0] * 20 + [2.5] * 20], "cudnn": [[5.0] * 20 + [2.25] * 20]},
    }
    results.write_text(json.dumps(record))
    document.write_text(f"{begin(CURVES)}\n{end(CURVES)}\n")
    documents.main([str(document), str(results)])
    text = document.read_text()
    assert "| ours | 2.5000 |\n| cuDNN | 2.2500 |" in text
    assert "differ by up to 0.00200, and ours leaves the range" in text
    assert "at most 0.00100: within the spread." in text
    assert (tmp_path / CURVES_PLOT).read_bytes().startswith(b"\x89PNG")


def test_tangents_are_told_beside_the_forward_pass() -> None:
    row = replace(
        grid_row("hopper_tangent(...)", (64, False, 512), 3.0, {}),
        measured="TANGENT",
        forward_ms=1.0,
        error_ratio=0.25,
    )
    slower = replace(row, causal=True, forward_ms=0.75, error_ratio=0.5)
    record = made_up_grid() | {"grid": "tangent", "rows": [asdict(row), asdict(slower)]}
    name = documents.grid_name(record)
    text = documents.render(f"{begin(name)}\n{end(name)}\n", record)
    assert text is not None
    assert "the FLOP of the forward pass" in text
    assert "FA3" not in text
    assert "| 32 x 512, 32 h, d 64, full | 69 | 3.00 times the time of a forward pass |" in text
    assert "**3.46** in geometric mean, 3.00 to 4.00." in text
    assert "is 0.50 times that of torch with every step rounded to BF16." in text
