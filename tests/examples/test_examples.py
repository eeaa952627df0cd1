# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it is, on this machine's GPU or without one, and says what it should."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.children import Child, script, wait_for

FOLDER = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 300  # seconds
SAYS = {
    "context_parallel.py": ("2 calls of attention in a step were computed here", "after 10 steps"),
    "cuda_graph_decoding.py": (
        "[306, 23, 206, 11] keys",
        "the last step agrees with attention over each sequence alone",
    ),
    "custom_config.py": (
        "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        "refused: ",
        "swizzled=True: 0 bank conflicts",
    ),
    "drop_in.py": (
        "flash_attn_func: (2, 128, 4, 64), gradients of q, k and v: True",
        "178 of 256 rows were computed, as each sequence alone",
        "('flash_attn', 3)",
    ),
    "inference.py": ("log-sum-exp", "chosen by", "output      right"),
    "paged_decoding.py": (
        "step 4: (3, 1, 8, 64) for [105, 42, 195] keys",
        "every sequence agrees with its own keys alone",
    ),
    "shared_prefix.py": (
        "16 sequences share 700 keys",
        "every sequence agrees with attention over its prompt and its own keys",
    ),
    "switch_flash_attn.py": ("('flash_attn', 1) (2, 64, 4, 64)",),
    "switch_sglang.py": ("('flash_attn', 1) (2, 4, 64)",),
    "switch_torch.py": ("('_flash_attention_forward', 1) ('_flash_attention_backward', 1)",),
    "switch_transformer_engine.py": ("('flash_attn', 1) True",),
    "switch_transformers.py": ("('transformers', 2) ('flash_attn', 8)",),
    "switch_vllm.py": ("('flash_attn', 1) (9, 4, 64)",),
    "train_long_documents.py": ("the last plan: rows: 512, documents: ", "after 40 steps"),
    "training_step.py": ("a second run has the same losses and gradients, to the last bit",),
    "read_a_finding.py": ("the first of kind race:", "fa/sm80/forward.cuh:", "mend   Put"),
}


def test_every_example_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(SAYS)


@cache
def output_of(name: str, processes: int = 1) -> str:
    """What an example says, or the first of several processes that torchrun would start."""
    told = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    ranks = [{**told, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    with TemporaryDirectory() as folder:
        children = [
            Child(Path(folder, str(number)), script, str(FOLDER / name), environment=environment)
            for number, environment in enumerate(ranks if processes > 1 else [{}])
        ]
        wait_for(children, PATIENCE)
        assert [child.code for child in children] == [0] * processes, children[0].said
        return children[0].said


def free_port() -> str:
    with socket.create_server(("localhost", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str) -> None:
    said = output_of(name)
    for words in SAYS[name]:
        assert words in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["context_parallel.py", "train_long_documents.py"])
def test_several_processes_train_as_one_does(name: str) -> None:
    alone = output_of(name)
    together = output_of(name, 2)
    losses = [
        [float(word) for word in said.splitlines()[-1].split() if "." in word]
        for said in (alone, together)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.002)
