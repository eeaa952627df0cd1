# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and atomics of shared, global, local and constant memory."""
