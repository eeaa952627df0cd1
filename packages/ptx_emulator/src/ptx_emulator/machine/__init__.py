# SPDX-License-Identifier: Apache-2.0
"""The machine that runs a program: one component for each kind of hardware, and its checks."""
