# SPDX-License-Identifier: Apache-2.0
"""The distribution of this package, and the version that is installed.

It is not called `flash_attention`: others publish a distribution of that name.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "flash-attention-jit"
UNKNOWN = "0+unknown"

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:  # run from a checkout, not installed
    VERSION = UNKNOWN
