# SPDX-License-Identifier: Apache-2.0
"""DTensors, and calls inside of torch's context_parallel, give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_dtensors(ranks: int, tmp_path: Path) -> None:
    assert run_ranks("torch_tensors:dtensors", ranks, tmp_path) == [""] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_context_parallel_of_torch(ranks: int, tmp_path: Path) -> None:
    assert run_ranks("torch_tensors:in_context_parallel", ranks, tmp_path) == [""] * ranks
