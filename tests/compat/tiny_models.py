# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of transformers, each with a twin that calls `attention`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention.compat.transformers import NAME, register

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.randint(3, 99, (3, 17), generator=torch.Generator().manual_seed(0))
ONES = torch.ones_like(IDS)
LEFT = ONES.clone()
LEFT[0, :4] = LEFT[2, :9] = 0
MASKS = {"none": None, "ones": ONES, "left": LEFT, "right": LEFT.flip(1)}
Kinds = dict[str, Callable[[], tuple[Any, Any]]]
MODELS: Kinds = {
    "llama": lambda: (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES)),
    "qwen3": lambda: (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**SIZES)),
    "mistral": lambda: (
        transformers.MistralForCausalLM,
        transformers.MistralConfig(**SIZES, sliding_window=5),
    ),
    "gemma2": lambda: (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(
            **SIZES, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
        ),
    ),
    "gpt_oss": lambda: (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(
            **SIZES,
            sliding_window=5,
            num_local_experts=2,
            num_experts_per_tok=2,  # all: a rounding does not send a token to another expert
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    ),
}

WITHOUT_SINKS: Kinds = {  # what transformers runs with flash-attn 2, which has no sinks
    **{name: make for name, make in MODELS.items() if name != "gpt_oss"},
    "qwen2": lambda: (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**SIZES)),
    "gpt_neox": lambda: (
        transformers.GPTNeoXForCausalLM,
        transformers.GPTNeoXConfig(**SIZES, rotary_pct=0.5),
    ),
    "phi": lambda: (transformers.PhiForCausalLM, transformers.PhiConfig(**SIZES)),
}
GPT2: Kinds = {"gpt2": lambda: (transformers.GPT2LMHeadModel, transformers.GPT2Config(**SIZES))}
ENCODERS: Kinds = {
    "bert": lambda: (transformers.BertForMaskedLM, transformers.BertConfig(**SIZES)),
    "modernbert": lambda: (
        transformers.ModernBertForMaskedLM,
        transformers.ModernBertConfig(
            **SIZES,
            cls_token_id=1,
            sep_token_id=2,
            local_attention=8,
            reference_compile=False,
        ),
    ),
}
IS_5 = int(transformers.__version__.split(".")[0]) >= 5


def source_has(path: str, words: str) -> bool:
    """Whether a file of transformers, which is not imported for that, has these words."""
    return words in (Path(transformers.__file__).parent / path).read_text()


def calls_registered(name: str) -> bool:
    """Whether a model looks for registered implementations. More do in later versions."""
    return source_has(f"models/{name}/modeling_{name}.py", "ALL_ATTENTION_FUNCTIONS")


WITHOUT_SINKS |= {name: make for name, make in ENCODERS.items() if calls_registered(name)}


def twins(name: str, ours_called: str | None = None) -> tuple[Any, Any]:
    """One model with eager attention, and its twin with ours, under our name or another."""
    torch.manual_seed(0)
    kind, config = (MODELS | WITHOUT_SINKS | GPT2)[name]()
    config._attn_implementation = "eager"
    eager = kind(config).eval().requires_grad_(False)
    for parameter_name, parameter in eager.named_parameters():
        if "sinks" in parameter_name:
            torch.nn.init.normal_(parameter)
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation(ours_called or register())
    assert ours.config._attn_implementation == (ours_called or NAME)
    return eager, ours


def deaf(name: str, implementation: str) -> Any:
    """A model that never looks for registered implementations. Its weights do not depend on its own
    implementation."""
    kind = "MaskedLM" if "Bert" in name else "ConditionalGeneration" if name == "T5" else "CausalLM"
    sizes = SIZES | {"rotary_dim": 8, "alibi": False, "reference_compile": False}
    sizes |= {"attention_types": [[["global"], 2]], "num_layers": 2}
    del sizes["head_dim"]
    config = getattr(transformers, f"{name}Config")(**sizes)
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}For{kind}")
    return made._from_config(config, attn_implementation=implementation).eval()
