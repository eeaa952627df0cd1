# SPDX-License-Identifier: Apache-2.0
"""Which configs are timed beside the one that is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import SET_VARIABLE, DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.grid import GRIDS
from flash_attention_workbench.bench.grid_choice import grid_measured
from flash_attention_workbench.commands.bench.settings import (
    Settings,
    points_of,
    read_configs,
)


def test_a_file_holds_short_forms_and_rungs(tmp_path: Path) -> None:
    file = tmp_path / "configs.txt"
    file.write_text("rung:5\n(FP16, 128, 64, 32, 4): async+load_2_2_0_tiles\n")
    narrow, wide = (get_ladder(DType.BF16, d_head)[4].config for d_head in (64, 128))
    *rungs, last = read_configs(file, DType.BF16, Pass.FORWARD)
    assert rungs == [narrow, wide]
    assert last.short_form() == "(BF16, 128, 64, 32, 4): async+load_2_2_0_tiles"


def test_a_grid_of_gradients_reads_rungs_of_the_backward_pass(tmp_path: Path) -> None:
    file = tmp_path / "configs.txt"
    last = get_ladder(DType.FP16, 128, pass_=Pass.BACKWARD)[-1].config
    file.write_text(f"rung:5\n{last.short_form()}\n")
    rungs = [get_ladder(DType.BF16, d, pass_=Pass.BACKWARD)[4].config for d in (64, 128)]
    assert grid_measured("backward").pass_ is grid_measured("training").pass_ is Pass.BACKWARD
    read = read_configs(file, DType.BF16, grid_measured("backward").pass_)
    assert read == (*rungs, last.in_dtype(DType.BF16))


@pytest.mark.parametrize(
    ("pass_", "other"), [(Pass.FORWARD, Pass.BACKWARD), (Pass.BACKWARD, Pass.FORWARD)]
)
def test_a_config_of_the_other_pass_is_refused(tmp_path: Path, pass_: Pass, other: Pass) -> None:
    file = tmp_path / "configs.txt"
    file.write_text(get_ladder(DType.FP16, 128, pass_=other)[0].config.short_form())
    with pytest.raises(KernelConfigError, match=f"of the {other.value} pass; pass a Flash"):
        read_configs(file, DType.FP16, pass_)


def test_without_a_file_the_environment_names_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SET_VARIABLE, raising=False)
    assert read_configs(None, DType.FP16, Pass.FORWARD) == ()
    monkeypatch.setenv(SET_VARIABLE, "progression")
    for pass_ in (Pass.FORWARD, Pass.BACKWARD):
        rungs = [
            rung.config
            for d_head in (64, 128)
            for rung in get_ladder(DType.FP16, d_head, pass_=pass_)
            if rung.config.broken_rule(current_arch()) is None
        ]
        assert list(read_configs(None, DType.FP16, pass_)) == rungs


@pytest.mark.parametrize("file", [None, Path("configs.txt")])
def test_the_command_that_repeats_it_says_which_set(
    monkeypatch: pytest.MonkeyPatch, file: Path | None
) -> None:
    monkeypatch.setenv(SET_VARIABLE, "progression")
    points, narrowed = points_of(next(iter(GRIDS)), None, None, None)
    settings = Settings("seed", DType.FP16, points, (), file, (), 5, False, None, narrowed)
    start = "flash-attention bench" if file else f"{SET_VARIABLE}=progression flash-attention bench"
    assert settings.command().startswith(start)
