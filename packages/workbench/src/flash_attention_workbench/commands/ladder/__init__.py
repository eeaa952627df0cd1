# SPDX-License-Identifier: Apache-2.0
"""`flash-attention ladder`: the kernels from naive to tuned, one idea a rung."""
