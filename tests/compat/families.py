# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of twelve families of transformers: decoders, encoders, encoder-decoders,
vision, audio and multimodal models, with inputs for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.compat.tiny_models import IDS, LEFT, MODELS, SIZES, transformers

IMAGE = 98  # the token in place of which features of an image come


class Family(NamedTuple):
    """How to make a model, and what it is called with."""

    kind: str  # of model, by its name in transformers
    config: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]
    shown: str = "logits"  # the output that is compared
    generates: bool = False


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def text() -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": LEFT}


def image() -> dict[str, Any]:
    return {"pixel_values": drawn(2, 3, 16, 16)}


VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
OF_SEQUENCES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _decoder(name: str, kind: str) -> Family:
    return Family(kind, lambda: MODELS[name]()[1], text, generates=True)


def _config(name: str, **sizes: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}Config")(**sizes)


def _llava() -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, projection_dim=16),
        text_config=transformers.LlamaConfig(**SIZES),
        image_token_id=IMAGE,
        image_token_index=IMAGE,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )


def _llava_inputs() -> dict[str, Any]:
    ids = IDS[:2].clone()
    ids[:, 2:6] = IMAGE  # as many as the image has patches
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **image()}


def _clip() -> Any:
    sizes = {n: SIZES[n] for n in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    sizes |= {"vocab_size": 99, "num_attention_heads": 4, "max_position_embeddings": 64}
    text_config = transformers.CLIPTextConfig(**sizes, projection_dim=16, eos_token_id=2)
    vision_config = transformers.CLIPVisionConfig(**VISION, projection_dim=16)
    return transformers.CLIPConfig(
        text_config=text_config.to_dict(), vision_config=vision_config.to_dict(), projection_dim=16
    )


FAMILIES: dict[str, Family] = {
    "llama": _decoder("llama", "LlamaForCausalLM"),
    "mistral": _decoder("mistral", "MistralForCausalLM"),
    "gemma2": _decoder("gemma2", "Gemma2ForCausalLM"),
    "qwen3": _decoder("qwen3", "Qwen3ForCausalLM"),
    "bert": Family("BertForMaskedLM", _config("Bert", **SIZES), text),
    "bart": Family(
        "BartForConditionalGeneration",
        _config("Bart", **OF_SEQUENCES, max_position_embeddings=64, forced_eos_token_id=None),
        # As many tokens as the encoder has would be taken for padded like those by transformers.
        lambda: {**text(), "decoder_input_ids": IDS[:, :5]},
        generates=True,
    ),
    "vit": Family("ViTForImageClassification", _config("ViT", **VISION, num_labels=5), image),
    "siglip": Family(
        "SiglipVisionModel", _config("SiglipVision", **VISION), image, shown="last_hidden_state"
    ),
    "wav2vec2": Family(
        "Wav2Vec2ForCTC",
        _config(
            "Wav2Vec2",
            **{n: VISION[n] for n in list(VISION)[:4]},
            vocab_size=12,
            conv_dim=(16, 16),
            conv_stride=(4, 4),
            conv_kernel=(8, 4),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            apply_spec_augment=False,
        ),
        lambda: {"input_values": drawn(2, 400)},
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        _config(
            "Whisper",
            **OF_SEQUENCES,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=32,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        lambda: {"input_features": drawn(2, 8, 32), "decoder_input_ids": IDS[:2, :5]},
    ),
    "clip": Family(
        "CLIPModel",
        _clip,
        lambda: {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), **image()},
        shown="logits_per_text",
    ),
    "llava": Family("LlavaForConditionalGeneration", _llava, _llava_inputs, generates=True),
}
"""The families, of which tests compare what every implementation computes."""


def twins(name: str, implementation: str) -> tuple[Any, Any]:
    """One model with eager attention, and its twin with another implementation."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    config = family.config()
    eager = getattr(transformers, family.kind)._from_config(config, attn_implementation="eager")
    other = copy.deepcopy(eager.eval())
    other.set_attn_implementation(implementation)
    return eager, other
