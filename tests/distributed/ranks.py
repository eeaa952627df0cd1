# SPDX-License-Identifier: Apache-2.0
"""Run a function of a test module in several processes that form a group.

`python -m tests.distributed.ranks MODULE FUNCTION RANKS FOLDER ARGUMENT ...` forks the ranks. The
function gets the arguments as text; what it returns is stored as JSON in FOLDER, by rank.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
LIMIT = timedelta(seconds=120)  # of a collective whose other ranks are gone
PATIENCE = 600  # seconds for all ranks together


def run_ranks(function: str, ranks: int, folder: Path, *arguments: str) -> list[Any]:
    """Run `function`, "module:name" in this folder, on some ranks. Returns what each returned.

    A rank that raised, or was killed, is described by a text that begins with "failed".
    """
    module, name = function.split(":")
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    command = [sys.executable, "-m", "tests.distributed.ranks", module, name, str(ranks)]
    child = subprocess.Popen(
        [*command, str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=PATIENCE)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)  # the ranks too
            child.wait()
    assert child.returncode == 0, said
    results = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(p.read_text()) if p.exists() else f"failed: {said}" for p in results]


def _run(module: str, name: str, rank: int, ranks: int, folder: str, arguments: list[str]) -> None:
    torch.set_num_threads(1)
    backend = "nccl" if "cuda" in arguments and ranks == 1 else "gloo"  # ranks may share a GPU
    dist.init_process_group(
        backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=LIMIT
    )
    function = getattr(importlib.import_module(f"tests.distributed.{module}"), name)
    try:
        found = function(rank, ranks, *arguments)
    except BaseException:
        found = f"failed: {traceback.format_exc()}"
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(module: str, name: str, ranks: int, folder: str, *arguments: str) -> None:
    """Start the ranks. They are forked, after everything that they import has been imported once,
    but not if they use CUDA, which does not survive that."""
    importlib.import_module(f"tests.distributed.{module}")
    spawn, fork = get_context("spawn"), get_context("fork")
    process = spawn.Process if "cuda" in arguments else fork.Process
    children = [
        process(target=_run, args=(module, name, rank, ranks, folder, list(arguments)))
        for rank in range(ranks)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
