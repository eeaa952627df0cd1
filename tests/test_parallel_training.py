# SPDX-License-Identifier: Apache-2.0
"""Training in several processes, with replicated and with sharded parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.children import Child, wait_for
from tests.parallel_training import PARALLEL, main, new_model, train, whole

PROCESSES = 2
LIMIT = 120  # seconds


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no Gloo here")
def test_several_processes_train_the_model_that_one_trains(tmp_path: Path) -> None:
    arguments = str(tmp_path / "store"), str(tmp_path / "trained.pt")
    children = [
        Child(tmp_path / str(rank), main, *arguments, rank, PROCESSES) for rank in range(PROCESSES)
    ]
    wait_for(children, LIMIT)
    assert [child.code for child in children] == [0] * PROCESSES, children[0].said
    alone, before = new_model(), whole(list(new_model().parameters()))
    train(alone)
    wanted = whole(list(alone.parameters()))
    trained = torch.load(tmp_path / "trained.pt")
    assert list(trained) == list(PARALLEL)
    for found in trained.values():
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not any(torch.equal(a, b) for a, b in zip(before, wanted, strict=True))
