# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition: the oracle, the judge of outputs, and what runs on a CPU."""
