# SPDX-License-Identifier: Apache-2.0
"""Run a function of a test module in several processes that form a group."""

from __future__ import annotations

import importlib
import json
import traceback
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.children import Child, wait_for

LIMIT = timedelta(seconds=120)  # of a collective whose other ranks are gone
PATIENCE = 600  # seconds for all ranks together


def run_ranks(function: str, ranks: int, folder: Path, *arguments: str) -> list[Any]:
    """Run `function`, "module:name" in this folder, on some ranks. Returns what each returned.

    The function gets the arguments as text. What it returns goes through JSON. A rank that raised,
    or was killed, is described by a text that begins with "failed".
    """
    child = Child(folder / "said", _start, *function.split(":"), ranks, folder, arguments)
    wait_for([child], PATIENCE)
    assert child.code == 0, child.said
    results = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(p.read_text()) if p.exists() else f"failed: {child.said}" for p in results]


def _start(module: str, name: str, ranks: int, folder: Path, arguments: tuple[str, ...]) -> None:
    """Start the ranks. They are forked, after everything that they import has been imported once,
    but not if they use CUDA, which does not survive that."""
    importlib.import_module(f"tests.distributed.{module}")
    spawn, fork = get_context("spawn"), get_context("fork")
    process = spawn.Process if "cuda" in arguments else fork.Process
    children = [
        process(target=_run, args=(module, name, rank, ranks, folder, arguments))
        for rank in range(ranks)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()


def _run(
    module: str, name: str, rank: int, ranks: int, folder: Path, arguments: tuple[str, ...]
) -> None:
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
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
