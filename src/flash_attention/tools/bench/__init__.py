# SPDX-License-Identifier: Apache-2.0
"""Measuring: one timing discipline, the ladder beside torch's SDPA, results files, rendering."""
