# SPDX-License-Identifier: Apache-2.0
"""Optional dependencies of some tools, and how to install them."""

from __future__ import annotations

from flash_attention.version import DISTRIBUTION


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
