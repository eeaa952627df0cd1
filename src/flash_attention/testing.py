# SPDX-License-Identifier: Apache-2.0
"""Tools to test attention outputs: inputs, the oracle, and FlashAttention's tolerance rule."""

from flash_attention.call.call import Keywords as CallFeatures
from flash_attention.reference.judge import (
    Check,
    Judge,
    LseCheck,
    check_lse,
    check_output,
    cu_seqlens,
    generate_qkv,
    generate_qkvo,
    rounding_step,
)
from flash_attention.reference.oracle import attention_16bit, oracle, oracle_lse

__all__ = [
    "CallFeatures",
    "Check",
    "Judge",
    "LseCheck",
    "attention_16bit",
    "check_lse",
    "check_output",
    "cu_seqlens",
    "generate_qkv",
    "generate_qkvo",
    "oracle",
    "oracle_lse",
    "rounding_step",
]
