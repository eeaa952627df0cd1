# SPDX-License-Identifier: Apache-2.0
"""The table of docs/measuring.md: what was measured where, when, and beside whose FA3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.render.blocks import table, wrap
from flash_attention_workbench.bench.stored import Stored

DOCUMENT = Path("docs/measuring.md")
MEASURED = "measured"
FA3 = "fa3"
VLLM, UPSTREAM = "vLLM's", "upstream's"


def fa3_build(record: Mapping[str, Any]) -> str:
    """Whose build of FlashAttention-3 was timed, if any was.

    Upstream's has a process of its own, where ours is timed once more (`beside`), or is the only
    one that the measurement takes (latent attention, whose rows have `tb_s`).
    """
    rows = record.get("rows") or [{}]
    if any(FA3 in row.get("beside", {}) for row in rows) or FA3 in rows[0].get("tb_s", {}):
        return UPSTREAM
    timed = any(FA3 in row.get(times, {}) for row in rows for times in ("peers", "us"))
    return VLLM if timed else ""


def measured_block(stored: Iterable[Stored], documents: Iterable[tuple[str, str]]) -> str:
    """A line for each file of results that a document shows."""
    pages = {file: page for page, file in documents if file}
    lines = []
    for one in stored:
        if (page := pages.get(one.path.name)) is None:
            continue
        name = Path(page).name
        where = [str(one.record.get(key) or "") for key in ("device", "date", "commit")]
        cells = [f"`{one.path.name}`", f"[{name}]({name})", *where, fa3_build(one.record)]
        lines.append(cells)
    header = ["results", "shown in", "device", "date", "commit", "FA3"]
    return wrap(MEASURED, table(header, lines, left=6))
