# SPDX-License-Identifier: Apache-2.0
"""From a recipe to kernels on a stream: the dispatch table, plans, the driver."""
