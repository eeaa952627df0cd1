# SPDX-License-Identifier: Apache-2.0
"""Is an attention output right? Inputs, the oracle, and FlashAttention's tolerance rule."""

from flash_attention.call.call import CallFeatures
from flash_attention.reference.judge import (
    Check,
    Judge,
    LseCheck,
    attention_16bit,
    check_lse,
    check_output,
    cu_seqlens,
    generate_qkv,
    generate_qkvo,
    oracle,
    oracle_lse,
    rounding_step,
)

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
