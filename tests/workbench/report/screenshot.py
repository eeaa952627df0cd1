# SPDX-License-Identifier: Apache-2.0
"""Takes docs/report.png: `python -m tests.workbench.report.screenshot docs/report.png`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flash_attention.families.passes import Pass
from flash_attention_workbench.bench.stored import read_folder
from flash_attention_workbench.commands.report import rung_texts
from flash_attention_workbench.report import render_page
from tests.workbench.report.browser import chromium

WIDTH, HEIGHT = 1200, 1880  # down to the first small charts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.workbench.report.screenshot")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args(arguments)
    page = render_page(read_folder(given.results), rung_texts(), rung_texts(Pass.BACKWARD))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "report.html"
        path.write_text(page.text)
        with chromium(Path(folder) / "profile") as tab:
            tab.open(path.as_uri(), width=WIDTH, height=HEIGHT)
            given.picture.write_bytes(tab.screenshot())


if __name__ == "__main__":
    main()
