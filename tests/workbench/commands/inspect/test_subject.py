# SPDX-License-Identifier: Apache-2.0
"""Which kernel the words of `flash-attention inspect` mean."""

from __future__ import annotations

import pytest
import torch

from flash_attention.call.problem import Problem
from flash_attention.choose import rules
from flash_attention.choose.choice import Choice, Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.families.recipe import NO_DEVICE, Device, Setting
from flash_attention_workbench.commands.inspect import subject


def test_selected_is_what_attention_runs_here_unless_another_architecture_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Device] = []

    def choose(problem: Problem, setting: Setting, families: object, *, may_tune: bool) -> Choice:
        assert not may_tune
        asked.append(setting.device)
        return Choice(select_config(problem, setting.arch), setting, Rule.HEURISTIC)

    monkeypatch.setattr(rules, "choose_from_tables", choose)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(subject, "device_sms", lambda index: 132)
    monkeypatch.setattr(subject, "current_arch", lambda otherwise: otherwise)
    for arch in (None, "sm_80", "sm_90a"):
        subject.subject_of(
            "selected:heads=4,seq=512,d=64",
            dtype="bf16",
            d_head=128,
            heads=16,
            pass_="forward",
            arch=arch,
        )
    assert asked == [3, NO_DEVICE, "NVIDIA H200"]
