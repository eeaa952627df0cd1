# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import choice, element_type, kernel_config, number, switch
from flash_attention.kernel_configs import DType


class Order(IntEnum):
    FIRST = 0
    GROUPED = 1


@kernel_config
class Config(KernelConfig):
    """A config with every kind of word."""

    dtype: DType = element_type("the element type")
    rows: int = number("rows of a tile", (16, 32))
    keys: int = number("keys of a tile", (16, 32))
    left: int = number("tiles of A", (0, 1, 2), word="load_{left}_{right}", always=True)
    right: int = number("tiles of B", (0, 1, 2))
    overlap: bool = switch("overlap copies")
    lazy: int = number("a threshold", range(9), default=0, word="lazy_{}")
    staged: bool = switch("stage O", default=False, word="stage_o")
    order: Order = choice(
        "the order", {Order.FIRST: "", Order.GROUPED: "grouped_{group}"}, default=Order.FIRST
    )
    group: int = number("heads of a group", range(9), default=0)

    prefix: ClassVar[str] = "made_up"
    name_tile: ClassVar[str] = "{dtype}_{rows}x{keys}"

    def __post_init__(self) -> None:
        """No architecture has such kernels."""


FULL = Config(DType.BF16, 16, 32, 2, 1, True, 8, True, Order.GROUPED, 3)
LEAST = Config(DType.FP16, 32, 16, 0, 0, False)


@pytest.mark.parametrize(
    ("config", "form", "name"),
    [
        (
            FULL,
            "made_up(BF16, 16, 32): load_2_1+overlap+lazy_8+stage_o+grouped_3",
            "made_up_bf16_16x32_load_2_1_overlap_lazy_8_stage_o_grouped_3",
        ),
        (LEAST, "made_up(FP16, 32, 16): load_0_0", "made_up_fp16_32x16_load_0_0"),
    ],
)
def test_words_follow_from_the_fields_and_are_read_back(
    config: Config, form: str, name: str
) -> None:
    assert (config.short_form(), config.kernel_name()) == (form, name)
    tile, words = form.removeprefix("made_up(").split("): ")
    assert Config.from_words(tile.split(", "), words.split("+")) == config
    assert Config.from_name(name) == Config.from_name(f"{name}_causal_heads_4") == config


def test_a_field_that_no_word_says_is_off() -> None:
    assert Config.from_words(["FP16", "32", "16"], ["overlap"]) == Config(
        DType.FP16, 32, 16, 0, 0, True
    )


@pytest.mark.parametrize("name", ["", "made_up", "other_bf16_16x32_load_2_1", "made_up_bf16_16x32"])
def test_other_names_are_not_read(name: str) -> None:
    assert Config.from_name(name) is None


@pytest.mark.parametrize(
    "tile", [["bf16", "64"], ["bf16", "64", "128", "4"], ["bf16", "64", "-1"], ["bf16", "a", "b"]]
)
def test_what_is_no_tile_is_refused(tile: list[str]) -> None:
    with pytest.raises(KernelConfigError) as caught:
        Config.from_words(tile, ["overlap"])
    assert caught.value.rule == "short_form"
    assert f"({', '.join(tile)}) is no tile; it is (dtype, rows, keys)" in str(caught.value)


KNOWN = "load_N_N, overlap, lazy_N, stage_o, grouped_N"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("overlp", f"unknown word 'overlp'; did you mean 'overlap'? (known: {KNOWN})"),
        ("z", f"unknown word 'z' (known: {KNOWN})"),
        ("plain", f"unknown word 'plain' (known: {KNOWN})"),
        ("lazy_", "did you mean 'lazy_N'?"),
        ("lazy_1234567890", "unknown word 'lazy_1234567890'"),
        ("Lazy_8", "unknown word 'Lazy_8'"),
    ],
)
def test_an_unknown_word_is_told_the_nearest(word: str, says: str) -> None:
    with pytest.raises(KernelConfigError) as caught:
        Config.from_words(["BF16", "16", "32"], [word])
    assert says in str(caught.value)


@kernel_config
class Switches(KernelConfig):
    """A config whose fields may all be off."""

    dtype: DType = element_type("the element type")
    overlap: bool = switch("overlap copies", default=False)

    prefix: ClassVar[str] = "switches"
    name_tile: ClassVar[str] = "{dtype}"

    def __post_init__(self) -> None:
        """No architecture has such kernels."""


def test_a_config_without_words_is_plain() -> None:
    config: Any = Switches(DType.BF16)
    assert config.short_form() == "switches(BF16): plain"
    assert Switches.from_words(["BF16"], ["plain"]) == config
    assert Switches.from_name("switches_bf16_plain_causal") == config
    with pytest.raises(KernelConfigError, match="'plain' is for a config without other words"):
        Switches.from_words(["BF16"], ["plain", "overlap"])
    with pytest.raises(KernelConfigError, match=r"unknown word 'z' \(known: overlap, plain\)"):
        Switches.from_words(["BF16"], ["z"])
