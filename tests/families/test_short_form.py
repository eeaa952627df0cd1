# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.short_form import read_tile, read_words, refuse_word
from flash_attention.kernel_configs import DType

NAMES = ("dtype", "rows", "keys")


def test_a_tile_is_a_data_type_and_whole_numbers() -> None:
    assert read_tile(["bf16", "64", "128"], NAMES) == {
        "dtype": DType.BF16,
        "rows": 64,
        "keys": 128,
    }


@pytest.mark.parametrize(
    "tile", [["bf16", "64"], ["bf16", "64", "128", "4"], ["bf16", "64", "-1"], ["bf16", "a", "b"]]
)
def test_what_is_no_tile_is_refused(tile: list[str]) -> None:
    with pytest.raises(KernelConfigError) as caught:
        read_tile(tile, NAMES)
    assert caught.value.rule == "short_form"
    assert f"({', '.join(tile)}) is no tile; it is (dtype, rows, keys)" in str(caught.value)


def test_every_word_stands_for_fields() -> None:
    def read(word: str) -> dict[str, Any]:
        name, number = word.split("_")
        return {name: int(number), f"has_{name}": True}

    assert read_words(["a_1", "b_2"], read) == {"a": 1, "has_a": True, "b": 2, "has_b": True}
    assert read_words([], read) == {}


def test_an_unknown_word_is_told_the_nearest() -> None:
    with pytest.raises(KernelConfigError) as caught:
        refuse_word("overlp", ["tma", "overlap"])
    assert "unknown word 'overlp'; did you mean 'overlap'? (known: tma, overlap)" in str(
        caught.value
    )
    with pytest.raises(KernelConfigError, match=r"unknown word 'z' \(known: tma\)"):
        refuse_word("z", ["tma"])
