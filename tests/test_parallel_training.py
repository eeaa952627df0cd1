# SPDX-License-Identifier: Apache-2.0
"""Training in several processes, with replicated and with sharded parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.parallel_training import PARALLEL, new_model, train, whole

ROOT = Path(__file__).parents[1]
PROCESSES = 2
LIMIT = 120  # seconds


def run_all(store: Path, output: Path) -> None:
    """Run the processes. All of them end with this function."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.parallel_training", str(store), str(output)]
    children: list[subprocess.Popen[str]] = []
    try:
        for rank in range(PROCESSES):
            child = subprocess.Popen(
                [*command, str(rank), str(PROCESSES)],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            children.append(child)
        for child in children:
            said, _ = child.communicate(timeout=LIMIT)
            assert child.returncode == 0, said
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch has no Gloo here")
def test_several_processes_train_the_model_that_one_trains(tmp_path: Path) -> None:
    run_all(tmp_path / "store", tmp_path / "trained.pt")
    alone, before = new_model(), whole(list(new_model().parameters()))
    train(alone)
    wanted = whole(list(alone.parameters()))
    trained = torch.load(tmp_path / "trained.pt")
    assert list(trained) == list(PARALLEL)
    for found in trained.values():
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not any(torch.equal(a, b) for a, b in zip(before, wanted, strict=True))
