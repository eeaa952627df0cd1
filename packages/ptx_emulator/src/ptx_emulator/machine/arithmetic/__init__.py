# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that NumPy does not have, and atomic operations."""
