# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition: the oracle, the check of outputs, and the path for CPU tensors."""
