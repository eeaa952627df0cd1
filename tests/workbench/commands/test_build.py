# SPDX-License-Identifier: Apache-2.0
"""`build` fills the cache folder and sums up what it did."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.compile.elf import text_section
from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import (
    KERNEL_SETS,
    SET_VARIABLE,
    DType,
    KernelConfig,
    get_kernel_configs,
)
from flash_attention.ladder import get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention.warm_up import kernels_for
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_choice import Part, grid_points
from flash_attention_workbench.bench.kernels import units_of_grid
from flash_attention_workbench.commands import build as build_command
from flash_attention_workbench.commands.models import read_model
from flash_attention_workbench.commands.precompile import Job, Outcome
from tests.workbench.commands.invoke import invoke, refuse

pytestmark = pytest.mark.slow  # left out of `make quick`


def two_kernels(name: str | None, arch: Arch, pass_: Pass = Pass.FORWARD) -> list[KernelConfig]:
    assert (name, arch) in {("progression", DEFAULT_ARCH), (None, DEFAULT_ARCH)}
    return [rung.config for rung in get_ladder(d_head=64, pass_=pass_)[:2]]


def test_a_set_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build_command, "get_kernel_configs", two_kernels)
    first = invoke("build", "--set", "progression", "--arch", "sm_80", "--jobs", "2")
    assert summary(first) == ["sm_80", "compiled", "2"]
    built = {path.read_text() for path in tmp_path.glob("*/kernel.cu")}
    configs = two_kernels("progression", DEFAULT_ARCH)
    assert built == {unit_of(config).source for config in configs}
    code = {text_section(path.read_bytes()) for path in tmp_path.glob("*/kernel.cubin")}
    assert code == {text_section(compile_config(config, DEFAULT_ARCH).cubin) for config in configs}
    again = invoke("build", "--set", "progression", "--arch", "sm_80", "--jobs", "2")
    assert summary(again) == ["sm_80", "from cache", "2"]
    assert str(tmp_path) in again


def test_kernels_of_the_backward_pass_come_with_those_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build_command, "get_kernel_configs", two_kernels)
    first = invoke("build", "--pass", "backward", "--jobs", "1")
    assert summary(first) == ["sm_80", "compiled", "2"]
    built = [path.read_text() for path in tmp_path.glob("*/kernel.cu")]
    main = {unit_of(config).source for config in two_kernels(None, DEFAULT_ARCH, Pass.BACKWARD)}
    beside = sorted(re.findall(r"flash_backward_[a-z]+", "".join(set(built) - main)))
    assert main < set(built)
    assert beside == ["flash_backward_convert", "flash_backward_prepare"]
    assert summary(invoke("build", "--pass", "backward", "--jobs", "1"))[1] == "from cache"


def test_a_folder_that_keeps_nothing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(blocker / "cache"))
    monkeypatch.setattr(build_command, "get_kernel_configs", two_kernels)
    table = invoke("build", "--jobs", "1", exit_code=1)
    assert summary(table)[:3] == ["sm_80", "not kept", "2"]


def test_a_bad_set_lists_the_good_ones() -> None:
    message = refuse("build", "--set", "everything")
    for name in ("everything", "progression", "autotune", "all"):
        assert name in message


def test_the_environment_names_the_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[KernelConfig] = []

    def note(jobs: Sequence[Job], processes: int) -> Generator[Outcome, None, None]:
        built.extend(job.config for job in jobs)
        yield from ()

    monkeypatch.setattr(build_command, "precompile", note)
    for name in KERNEL_SETS:
        built.clear()
        monkeypatch.setenv(SET_VARIABLE, name)
        invoke("build")
        assert built == get_kernel_configs(name)
    invoke("build", "--set", "progression")
    assert built[-64:] == get_kernel_configs("progression")
    monkeypatch.setenv(SET_VARIABLE, "everything")
    assert "there is no kernel set 'everything'" in refuse("build")


def test_a_bad_arch_lists_the_good_ones() -> None:
    message = refuse("build", "--arch", "sm_80,sm_75")
    assert "unknown architecture 'sm_75'" in message
    assert "sm_120" in message


def summary(text: str) -> list[str]:
    (row,) = (line for line in text.splitlines() if "sm_80" in line)
    return re.split(r"\s{2,}", row.strip())


def test_a_model_is_built_for_all_lengths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    layer = "heads=4 heads_k=2 d=64 page=16 window=32 sinks"
    told = invoke("build", "--arch", "sm_80", "--jobs", "1", *("--model", layer) * 2)
    units = set(kernels_for(read_model(layer), "sm_80"))
    assert len(units) > 1  # decoding and chunks
    built = {path.read_text() for path in tmp_path.glob("*/kernel.cu")}
    assert built == {unit.source for unit in units}
    folded = "".join(told.split())
    assert all(unit.name in folded for unit in units)


def test_models_and_sets_are_told_apart() -> None:
    model = "heads=4 heads_k=2 d=64 page=16"
    assert "leave out --set" in refuse("build", "--set", "all", "--model", model)
    assert "heads_k, d, page missing" in refuse("build", "--model", "heads=4")
    assert "did you mean 'heads'" in refuse("build", "--model", "hed=4")
    assert "pass sinks alone" in refuse("build", "--model", f"{model} sinks=3")
    assert "softcap is 'x'" in refuse("build", "--model", f"{model} softcap=x")


def test_a_grid_is_built_as_it_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    problems = tmp_path / "problems.txt"
    problems.write_text("batch=2 heads=4 heads_k=2 seq=96 d=64 causal\n")
    told = invoke("build", "--grid", str(problems), "--dtype", "fp16", "--arch", "sm_90")
    (point,) = grid_points(problems, Part())
    (unit,) = units_of_grid([point], DType.FP16, Measured.FORWARD, build_command.H200)
    assert unit.name in told
    (built,) = (tmp_path / "cache").glob("*/kernel.cu")
    assert built.read_text() == unit.source


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--grid", "fa3", "--set", "all"], "--grid is given, and stands for itself"),
        (["--grid", "fa3", "--model", "d=64"], "--model and --grid are given"),
        (["--dtype", "bf16", "--count", "3"], "--dtype, --count is for --grid"),
        (["--grid", "fa3", "--seed", "3"], "the problems of fa3 are not drawn"),
        (["--grid", "no_such"], "no_such"),
    ],
)
def test_options_of_a_grid_that_do_not_fit(options: list[str], why: str) -> None:
    assert why in refuse("build", *options)


def test_a_grid_without_a_kernel_is_refused(tmp_path: Path) -> None:
    problems = tmp_path / "problems.txt"
    problems.write_text("batch=1 heads=2 seq=256 d=4000 causal\n")
    told = refuse("build", "--grid", str(problems), "--arch", "sm_90")
    assert f"no kernel of sm_90 takes a problem of {problems}" in told


def test_a_grid_that_cannot_be_kept_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    problems = tmp_path / "problems.txt"
    problems.write_text("batch=1 heads=1 seq=64 d=64\n")
    result = invoke("build", "--grid", str(problems), exit_code=1)
    assert "is not kept: the cache folder cannot be written" in result
