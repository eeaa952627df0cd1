# SPDX-License-Identifier: Apache-2.0
"""Copies that land later: cp.async, bulk copies, TMA."""
