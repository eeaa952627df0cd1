# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/distributed.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_programs_run() -> None:
    text = (ROOT / "docs" / "distributed.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", text, re.S)
    checks = "assert whole.shape == (1000, 8, 64) and positions.shape == (1000,)\n"
    result = subprocess.run(
        [sys.executable, "-c", first + checks + second],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "1\n"
