# SPDX-License-Identifier: Apache-2.0
"""Calls whose v has contiguous keys, with configs of all variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from tests.families.sm90.fp8.cases import LINEAR, OVERLAPPED, WIDE, Case, config

OVERLAPPED_T = replace(OVERLAPPED, values_transposed=True)
WIDE_T = replace(WIDE, values_transposed=True)
LINEAR_T = replace(LINEAR, values_transposed=True)
SERIAL_T = config(
    "(BF16, 64, 3, 128, 2): q_buffers_2+tensor_sums+promote_1+values_transposed+persistent"
)
PLAIN_T = config("(FP16, 128, 2, 64, 1): values_transposed+one_each")
THREE_PANELS = config("(BF16, 64, 2, 192, 2): tensor_sums+values_transposed+persistent")
TWO_PANELS = config("(BF16, 64, 2, 256, 1): tensor_sums+values_transposed+persistent")


def case(seq_q: int = 200, seq_k: int = 330, **others: Any) -> Case:
    """The case with a transposed v."""
    return Case(seq_q, seq_k, v_transposed=True, **others)


CAUSAL = (("causal", True),)
CASES: dict[str, tuple[HopperFp8KernelConfig, Case]] = {
    "gqa": (OVERLAPPED_T, case(heads=4, heads_k=2)),
    "causal": (OVERLAPPED_T, case(300, 430, keywords=CAUSAL)),
    "fewer keys than queries": (OVERLAPPED_T, case(300, 131, keywords=CAUSAL)),
    "window": (OVERLAPPED_T, case(300, 431, keywords=(("window", (90, 20)),))),
    "softcap": (OVERLAPPED_T, case(70, 130, keywords=(("softcap", 3.0),))),
    "sinks": (OVERLAPPED_T, case(70, 130, keywords=(("sinks", True),))),
    "sharp": (OVERLAPPED_T, case(130, 700, sharp=True)),
    "narrow": (OVERLAPPED_T, case(70, 129, d=96, d_v=48, per_head=False)),
    "one key": (OVERLAPPED_T, case(1, 1)),
    "serial": (SERIAL_T, case(200, 331, batch=2, heads=4, heads_k=2)),
    "serial, causal": (SERIAL_T, case(330, 330, keywords=CAUSAL)),
    "d 256": (WIDE_T, case(140, 330)),
    "d 256, causal, sharp": (WIDE_T, case(140, 430, keywords=CAUSAL, sharp=True)),
    "linear, causal": (LINEAR_T, case(300, 430, keywords=CAUSAL)),
    "no switch": (PLAIN_T, case(70, 133)),
    "three panels": (THREE_PANELS, case(140, 450, keywords=CAUSAL)),
    "two panels": (TWO_PANELS, case(140, 450, keywords=(("window", (100, 40)),))),
}
"""A config, and a call that it runs."""
