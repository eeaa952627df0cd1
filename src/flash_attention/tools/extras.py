# SPDX-License-Identifier: Apache-2.0
"""What only some tools need is not installed by default: how to install it."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install 'flash_attention[{extra}]'"
