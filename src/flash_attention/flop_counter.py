# SPDX-License-Identifier: Apache-2.0
"""How torch's FlopCounterMode counts the FLOP of our operators.

The module of FlopCounterMode imports Triton, which takes as long as this package. So the formulas
are registered when a program imports that module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch._ops import OpOverloadPacket

from flash_attention.after_import import AfterImport

COUNTER = "torch.utils.flop_counter"
Formula = Callable[..., int]

_formulas: dict[OpOverloadPacket[Any, Any], Formula] = {}


def count_flop(operator: OpOverloadPacket[Any, Any], formula: Formula) -> None:
    """Have torch count the FLOP of an operator by a formula of its arguments."""
    _formulas[operator] = formula
    if COUNTER in sys.modules:
        from torch.utils import flop_counter  # waits for a thread that imports it

        _register(flop_counter)


def _register(counter: ModuleType) -> None:
    for operator, formula in _formulas.items():
        if operator not in counter.flop_registry:
            counter.register_flop_formula([operator], get_raw=True)(formula)


sys.meta_path.insert(0, AfterImport({COUNTER: _register}))
