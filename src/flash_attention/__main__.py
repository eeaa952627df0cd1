# SPDX-License-Identifier: Apache-2.0
"""`python -m flash_attention` is the same as the `flash-attention` script."""

from __future__ import annotations

from flash_attention import loaded_when_named

if __name__ == "__main__":
    loaded_when_named("flash_attention_workbench.start", "main")()
