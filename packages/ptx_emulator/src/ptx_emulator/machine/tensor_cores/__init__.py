# SPDX-License-Identifier: Apache-2.0
"""Matrix products: mma, wgmma and wmma."""
