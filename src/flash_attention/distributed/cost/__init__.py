# SPDX-License-Identifier: Apache-2.0
"""What a schedule costs: measured kernels, links between GPUs, and a simulation of both."""
