# SPDX-License-Identifier: Apache-2.0
"""How to fix a mistake: by the kind of finding, or where the numbers alone are wrong."""

from __future__ import annotations

from ptx_emulator.report import mends

NUMBERS = "numbers"  # the output is out of tolerance
MENDS = {
    **mends.MENDS,
    NUMBERS: (
        "Nothing raced: the arithmetic is another one. `flash-attention debug` shows after which "
        "key block S, P, lse or O leaves the reference."
    ),
}
