# SPDX-License-Identifier: Apache-2.0
"""`flash-attention inspect`."""
