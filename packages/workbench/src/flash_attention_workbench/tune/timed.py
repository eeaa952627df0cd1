# SPDX-License-Identifier: Apache-2.0
"""What happens on the GPU: the configs of a lineup run once each, then timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from flash_attention.choose.dense import DenseProblem
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.device import device_arch
from flash_attention_workbench.bench.timing import Contender, time_in_turn
from flash_attention_workbench.child import Note
from flash_attention_workbench.tune.measurer import Failure
from flash_attention_workbench.tune.subjects import Subject, subject_of

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
    """The median time of each config, or why it has none. With `check`, what its last run wrote is
    judged.

    Each is named in a note before its first run, and that run waited for: whoever reads the notes
    knows which kernel hung or faulted. Every turn after that is a note too.
    """
    device = torch.device("cuda", device_index)
    with torch.cuda.device(device), torch.no_grad():
        subject = _subject(problem, device_index)
        contenders, failures = run_once(
            note, subject, configs, wait=lambda: torch.cuda.synchronize(device)
        )
        note(TIMING)
        wrong: dict[str, str] = {}

        def judge(name: str, result: Any) -> None:
            if fault := subject.fault(result):
                wrong[name] = fault
            note(TIMING)

        timings = time_in_turn(
            [_telling(note, contender) for contender in contenders.values()],
            device=device,
            repeats=repeats,
            check=judge if check else lambda name, result: None,
        )
    answers: dict[KernelConfig, float | Failure] = {**failures}
    for config, contender in contenders.items():
        if contender.name in wrong:
            answers[config] = Failure("wrong", wrong[contender.name])
        else:
            answers[config] = timings[contender.name].median_ms
    return answers


def run_once(
    note: Note, subject: Subject, configs: Sequence[KernelConfig], wait: Callable[[], None]
) -> tuple[dict[KernelConfig, Contender], dict[KernelConfig, Failure]]:
    """The contenders that may be timed, and why the others may not."""
    contenders: dict[KernelConfig, Contender] = {}
    failures: dict[KernelConfig, Failure] = {}
    for config in configs:
        note(config.short_form())
        try:
            contender = subject.contender(config)
            contender.poison()
            result = contender.run()
        except FlashAttentionError as error:
            failures[config] = Failure("refused", str(error).partition("\n")[0])
            continue
        wait()
        if subject.judged_first and (fault := subject.fault(result)):
            failures[config] = Failure("wrong", fault)
        else:
            contenders[config] = contender
    return contenders, failures


def _telling(note: Note, contender: Contender) -> Contender:
    """A contender whose turns are notes."""

    def poison() -> None:
        note(TIMING)  # outside of what is timed
        contender.poison()

    return replace(contender, poison=poison)


@lru_cache(maxsize=1)
def _subject(problem: DenseProblem, device_index: int) -> Subject:
    return subject_of(problem, torch.device("cuda", device_index), device_arch(device_index))


def forget_tensors() -> None:
    """Let go of the tensors of the last problem."""
    _subject.cache_clear()
