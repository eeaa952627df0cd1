# SPDX-License-Identifier: Apache-2.0
"""Objects in place of a config."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flash_attention.errors import KernelConfigError
from flash_attention.families.given import THIRTEEN, read_config
from flash_attention.ladder import get_ladder


def test_an_object_without_some_of_the_thirteen_is_told_which() -> None:
    config = get_ladder()[0].config
    given = SimpleNamespace(**{name: getattr(config, name) for name in THIRTEEN})
    assert read_config(given) == config
    del given.swizzled, given.n_warps
    with pytest.raises(KernelConfigError, match="a SimpleNamespace without n_warps, swizzled; an"):
        read_config(given)
