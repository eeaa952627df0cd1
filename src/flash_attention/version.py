# SPDX-License-Identifier: Apache-2.0
"""The version of the package that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("flash_attention")
except PackageNotFoundError:  # run from a checkout, not installed
    VERSION = "0+unknown"
