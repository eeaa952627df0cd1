# SPDX-License-Identifier: Apache-2.0
"""What happens on the GPU: the configs of a lineup run once each, then timed in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import FlashAttentionError
from flash_attention.forward import forward
from flash_attention.kernel_configs import KernelConfig
from flash_attention.reference.judge import generate_qkvo
from flash_attention.reference.part_judge import PartJudge
from flash_attention.tools.bench.timing import Contender, time_in_turn
from flash_attention.tools.child import Note
from flash_attention.tools.tune.measurer import Failure

TIMING = "timing"
"""The note after every config of a lineup ran once."""


def time_lineup(
    note: Note,
    problem: DenseProblem,
    configs: Sequence[KernelConfig],
    device_index: int,
    repeats: int,
    check: bool,
) -> dict[KernelConfig, float | Failure]:
    """The median time of each config, or why it has none.

    Each is named in a note before its first run, and that run waited for: whoever reads the notes
    knows which kernel hung or faulted. Every turn after that is a note too.
    """
    device = torch.device("cuda", device_index)
    q, k, v, o = _tensors(problem, device)
    answers: dict[KernelConfig, float | Failure] = {}
    contenders: dict[KernelConfig, Contender] = {}
    with torch.cuda.device(device), torch.no_grad():
        for config in configs:
            note(config.short_form())
            contender = _contender(note, config, problem.causal, q, k, v, o)
            try:
                contender.run()
            except FlashAttentionError as error:
                answers[config] = Failure("refused", str(error).partition("\n")[0])
                continue
            torch.cuda.synchronize(device)
            contenders[config] = contender
        note(TIMING)
        wrong: dict[str, str] = {}

        def judge(name: str, out: Tensor) -> None:
            verdict = _judge(problem, device).check(out)
            if not verdict.ok:
                wrong[name] = str(verdict)
            note(TIMING)

        timings = time_in_turn(
            list(contenders.values()),
            device=device,
            repeats=repeats,
            check=judge if check else lambda name, out: None,
        )
    for config, contender in contenders.items():
        if contender.name in wrong:
            answers[config] = Failure("wrong", wrong[contender.name])
        else:
            answers[config] = timings[contender.name].median_ms
    return answers


def _contender(
    note: Note, config: KernelConfig, causal: bool, q: Tensor, k: Tensor, v: Tensor, o: Tensor
) -> Contender:
    def poison() -> None:
        note(TIMING)  # outside of what is timed
        o.fill_(torch.nan)

    return Contender(
        config.short_form(), run=lambda: forward(config, q, k, v, o, causal=causal), poison=poison
    )


@lru_cache(maxsize=1)
def _tensors(problem: DenseProblem, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return generate_qkvo(
        *(problem.batch, problem.seq_q, problem.heads, problem.d_head, problem.dtype, device),
        seq_len_k=problem.seq_k,
        n_heads_k=problem.heads_k,
        d_v=problem.d_v,
    )


@lru_cache(maxsize=1)
def _judge(problem: DenseProblem, device: torch.device) -> PartJudge:
    q, k, v, _ = _tensors(problem, device)
    return PartJudge(q, k, v, causal=problem.causal)


def forget_tensors() -> None:
    """Let go of the tensors of the last problem."""
    _tensors.cache_clear()
    _judge.cache_clear()
