# SPDX-License-Identifier: Apache-2.0
"""A model is trained with each attention, and runs are compared as the document says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import training_curves
from benchmarks.training_curves import (
    WINDOW,
    Settings,
    compare,
    contenders,
    main,
    synthetic_text,
    train,
)

TINY = Settings(layers=1, d_model=32, heads=2, seq=24, batch=2, steps=3)


def test_every_attention_trains_alike_from_the_same_start() -> None:
    text = synthetic_text(TINY)
    assert text.shape == (3, 2, 25)
    curves = {name: train(TINY, attend, text) for name, attend in contenders("cpu").items()}
    assert curves["ours"] == pytest.approx(curves["sdpa"], abs=2e-3)
    assert curves["ours"][-1] < curves["ours"][0]
    assert train(TINY, contenders("cpu")["ours"], text) == curves["ours"]


def test_a_wrong_attention_is_seen() -> None:
    text = synthetic_text(TINY)
    right = train(TINY, contenders("cpu")["ours"], text)
    wrong = train(TINY, lambda q, k, v: v, text)
    assert abs(right[-1] - wrong[-1]) > 1e-3


def test_ours_may_leave_the_others_by_the_spread_of_runs() -> None:
    flat = [2.0] * WINDOW
    others = {"cudnn": [flat, [2.1] * WINDOW]}
    inside = compare({"ours": [[2.05] * WINDOW] * 2, **others})
    assert (inside.beyond, inside.within) == (0.0, True)
    near = compare({"ours": [[2.19] * WINDOW] * 2, **others})
    assert near.beyond == pytest.approx(0.09)
    assert near.run_to_run == pytest.approx(0.1)
    assert near.within
    far = compare({"ours": [[1.8] * WINDOW] * 2, **others})
    assert far.beyond == pytest.approx(0.2)
    assert not far.within
    assert far.final == {"ours": pytest.approx(1.8), "cudnn": pytest.approx(2.05)}


def test_a_record_has_all_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    results = tmp_path / "r.json"
    sizes = {"layers": 1, "d-model": 32, "heads": 2, "seq": 24, "batch": 2, "steps": 3}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    code = main([str(results), *words, "--repeats=2"])
    record = json.loads(results.read_text())
    assert {name: len(runs) for name, runs in record["losses"].items()} == {"ours": 2, "sdpa": 2}
    assert record["settings"]["d_model"] == 32
    assert code == int(not record["comparison"]["within"])
    assert "the run-to-run spread" in capsys.readouterr().out
    assert training_curves.OURS in record["losses"]


@pytest.mark.gpu
def test_a_step_with_every_attention_on_a_gpu() -> None:
    settings = Settings(steps=2, batch=2)
    text = synthetic_text(settings).cuda()
    curves = [train(settings, attend, text) for attend in contenders("cuda").values()]
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], abs=2e-2)
