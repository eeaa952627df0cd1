# SPDX-License-Identifier: Apache-2.0
"""Measurements: timing, the ladder beside torch's SDPA, grids, results files and plots."""
