# SPDX-License-Identifier: Apache-2.0
"""Measurements in the documents of this checkout: `python -m benchmarks.render` at its root."""
