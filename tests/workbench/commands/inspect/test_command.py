# SPDX-License-Identifier: Apache-2.0
"""`flash-attention inspect` without a GPU: what it prints of real kernels, what it refuses."""

from __future__ import annotations

import re

import pytest
import torch

from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.inspect import command
from flash_attention_workbench.inspect import sass
from tests.workbench.commands.invoke import invoke, refuse

pytestmark = pytest.mark.slow  # left out of `make quick`


def number(text: str, name: str, column: int = 0) -> str:
    """What stands beside a name in a printed table."""
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{name}  "))
    return re.split(r"\s{2,}", line.strip())[1 + column]


@pytest.mark.parametrize(
    ("rung", "products"), [(1, "64"), (7, "128"), (16, "128"), (17, "16"), (29, "16")]
)
def test_a_rung_in_numbers(rung: int, products: str) -> None:
    arch = "sm_80" if rung <= 16 else "sm_90a"
    text = invoke("inspect", f"rung:{rung}", "--arch", arch)
    assert f", for {arch}\n" in text
    assert number(text, "spilled bytes") == "0"
    assert number(text, "blocks of a turn") == "1"
    assert number(text, "tensor core") == products
    assert number(text, "tensor cores") == ("1,024" if rung <= 16 else "2,048")
    assert number(text, "FLOP for a byte of K and V") == "128"


def test_nothing_is_busiest_where_the_tensor_cores_are_not_known() -> None:
    assert number(invoke("inspect", "rung:16", "--arch", "sm_80"), "busiest") == "tensor cores"
    other = invoke("inspect", "rung:16", "--arch", "sm_86")
    assert number(other, "shared memory") == "768"
    assert "busiest" not in other


def test_two_kernels_beside_each_other() -> None:
    text = invoke("inspect", "rung:7", "--against", "rung:6", "--arch", "sm_80")
    assert [number(text, "threads of a CTA", i) for i in range(3)] == ["128", "256", "-128"]
    assert [number(text, "HMMA.16816", i) for i in range(3)] == ["128", "64", "+64"]
    assert number(text, "keys", 2) == "="


def test_what_a_problem_gets() -> None:
    text = invoke(
        "inspect", "selected:heads=32,heads_k=8,seq=8192,seq_q=1,d=128", "--arch", "sm_90"
    )
    assert "heads_4, fixed, one_launch, for sm_90a" in text
    assert number(text, "query rows") == "64"


def test_the_emulator_counts_beside() -> None:
    text = invoke("inspect", "rung:1", "--arch", "sm_80", "--emulate")
    assert number(text, "output") == "right"
    assert number(text, "bank conflicts") == "286,720"


@pytest.mark.parametrize("option", ["--sass", "--ptx", "--source"])
def test_texts_with_the_loop_marked(option: str) -> None:
    text = invoke("inspect", "rung:2", "--arch", "sm_80", option)
    hot = [line for line in text.splitlines()[1:] if line.startswith("|")]
    assert 10 < len(hot) < len(text.splitlines())
    product = {"--sass": "HMMA", "--ptx": "mma.sync", "--source": "mma"}[option]
    assert any(product in line for line in hot)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "names no rung; write rung:16" in refuse("inspect", "rung:top")
    assert "there is no rung 99" in refuse("inspect", "rung:99")
    assert "give a short form, rung:N, or selected:" in refuse("inspect", "swizzle")
    assert "d missing" in refuse("inspect", "selected:heads=4,seq=64")
    assert "say causal or window=N there" in refuse(
        "inspect", "selected:heads=4,seq=512,d=64", "--causal", "--arch", "sm_90"
    )
    assert "one text of one kernel" in refuse("inspect", "rung:1", "--ptx", "--sass")
    assert "unknown architecture 'sm_70'" in refuse("inspect", "rung:1", "--arch", "sm_70")
    assert "runs full and causal attention" in refuse(
        "inspect", "rung:20", "--softcap", "--emulate", "--arch", "sm_90"
    )

    def missing() -> str:
        raise sass.InspectorMissing("pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(command, "find_nvdisasm", missing)
    assert "pip install nvidia-cuda-nvdisasm" in refuse("inspect", "rung:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_profiles_need_a_gpu() -> None:
    assert "torch finds none" in refuse("inspect", "rung:1", "--profile")


@pytest.mark.gpu
def test_a_profile_on_a_gpu() -> None:
    try:
        text = invoke("inspect", "rung:2", "--profile")
    except AssertionError as error:
        if "ncu" in str(error):
            pytest.skip("no ncu, or no counters for this user")
        raise
    assert float(number(text, "tensor pipe %")) > 1


@pytest.mark.parametrize(
    ("rung", "products", "blocks"), [(1, "320", "1"), (10, "320", "1"), (11, "32", "1")]
)
def test_a_rung_of_the_backward_pass_in_numbers(rung: int, products: str, blocks: str) -> None:
    text = invoke("inspect", f"rung:{rung}", "--pass", "backward")
    assert number(text, "blocks of a turn") == blocks
    assert number(text, "tensor core") == products
    assert number(text, "kFLOP of the products") == "10,485.8"
    assert number(text, "KiB of Q and dO") == "32"
    assert "the loop over query blocks" in text
    form = get_ladder(pass_=Pass.BACKWARD)[rung - 1].config.short_form()
    assert invoke("inspect", form).partition("\n")[2] == text.partition("\n")[2]


def test_two_blocks_of_a_turn_and_a_warpgroup_for_dq() -> None:
    ladder = get_ladder(pass_=Pass.BACKWARD)
    (rung,) = (rung.number for rung in ladder if rung.name == "dQ warpgroup")
    text = invoke("inspect", f"rung:{rung}", "--pass", "backward", "--emulate")
    assert number(text, "blocks of a turn") == "2"
    assert number(text, "tensor core") == "24"
    assert (number(text, "gradients"), number(text, "findings")) == ("right", "0")
