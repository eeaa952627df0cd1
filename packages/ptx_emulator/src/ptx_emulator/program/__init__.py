# SPDX-License-Identifier: Apache-2.0
"""What is known of a kernel before it runs: its blocks, their order, its registers."""
