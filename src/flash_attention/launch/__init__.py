# SPDX-License-Identifier: Apache-2.0
"""Launching kernels: the dispatch table, plans and the driver."""
