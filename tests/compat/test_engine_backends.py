# SPDX-License-Identifier: Apache-2.0
"""The backends of vLLM and SGLang, beside the sources and the classes of installed engines."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import math
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flash_attention.compat import sglang, vllm
from flash_attention.compat.backends import plug_ins
from tests.compat.test_serving_engines import CASES, HEADS_K, KEYS, ROWS, D, Step, close


def source_of(engine: str, path: str) -> ast.Module:
    """A file of an installed engine, which need not be importable here."""
    spec = importlib.util.find_spec(engine)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{engine} is not installed")
    return ast.parse(Path(spec.submodule_search_locations[0], path).read_text())


def parameters(engine: str, path: str, function: str) -> list[str]:
    """The parameters of a function in the source of an installed engine."""
    for node in ast.walk(source_of(engine, path)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
    raise AssertionError(f"{path} of {engine} has no function {function}")


def ours(function: Any, refused: dict[str, str]) -> set[str]:
    own = inspect.signature(function).parameters.values()
    return {p.name for p in own if p.kind is not p.VAR_KEYWORD} | refused.keys()


FORK = "vllm_flash_attn/flash_attn_interface.py"
OF_SGLANG = "kernels/ops/attention/flash_attention.py"


@pytest.mark.parametrize(
    ("engine", "path", "function", "refused"),
    [
        ("vllm", FORK, vllm.flash_attn_varlen_func, vllm.INSTEAD),
        ("sglang", OF_SGLANG, sglang.flash_attn_varlen_func, sglang.INSTEAD),
        ("sglang", OF_SGLANG, sglang.flash_attn_with_kvcache, sglang.INSTEAD),
        ("sgl_kernel", "flash_attn.py", sglang.flash_attn_varlen_func, sglang.INSTEAD),
        ("sgl_kernel", "flash_attn.py", sglang.flash_attn_with_kvcache, sglang.INSTEAD),
    ],
)
def test_every_parameter_of_an_engine_is_known(
    engine: str, path: str, function: Any, refused: dict[str, str]
) -> None:
    theirs = parameters(engine, path, function.__name__)
    assert set(theirs) <= ours(function, refused)
    positional = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ][:3]
    assert theirs[:3] == positional


def test_the_methods_of_vllm_that_are_overridden_have_these_parameters() -> None:
    path = "v1/attention/backends/flash_attn.py"
    forward = "self layer query key value kv_cache attn_metadata output output_scale"
    assert parameters("vllm", path, "forward") == [*forward.split(), "output_block_scale"]
    source = Path(__file__).parents[2] / "src/flash_attention/compat/backends/vllm.py"
    functions = [
        n for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.FunctionDef)
    ]
    (own,) = (n for n in functions if n.name == "forward")
    assert [a.arg for a in own.args.args] == parameters("vllm", path, "forward")


def test_entry_points_lead_to_the_plug_ins() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    points = dict(
        re.findall(r'^\[project\.entry-points\."(.+)"\]\nflash_attention = "(.+)"$', text, re.M)
    )
    assert list(points) == ["vllm.general_plugins", "sglang.srt.plugins"]
    for group, value in points.items():
        assert callable(importlib.metadata.EntryPoint("flash_attention", value, group).load())


@pytest.fixture
def vllm_backend() -> Any:
    registry = pytest.importorskip(
        "vllm.v1.attention.backends.registry", reason="vllm is not installed"
    )
    pytest.importorskip(
        "vllm.v1.attention.backends.flash_attn", reason="vllm is here without what it needs"
    )
    plug_ins.register_vllm()
    backend = registry.AttentionBackendEnum.CUSTOM.get_class()
    assert backend.get_name() == "CUSTOM"
    return import_module(backend.__module__)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_layer_of_vllm(vllm_backend: Any, options: dict[str, Any]) -> None:
    """vLLM's own layer and metadata, of which only forward is ours, on the CPU."""
    step = Step("cpu", torch.float32)
    wanted, _ = step.wanted(**options)
    impl = object.__new__(vllm_backend.JitAttentionImpl)  # vLLM's __init__ asks for a GPU
    window = tuple(options.get("window_size", (-1, -1)))
    vars(impl).update(
        head_size=D,
        num_kv_heads=HEADS_K,
        scale=0.2,
        kv_cache_dtype="auto",
        alibi_slopes=None,
        sliding_window=window,
        logits_soft_cap=options.get("softcap", 0),
        sinks=options.get("sinks"),
        attn_type="decoder",
        dcp_world_size=1,
    )
    metadata = import_module("vllm.v1.attention.backends.flash_attn").FlashAttentionMetadata(
        num_actual_tokens=sum(ROWS),
        max_query_len=max(ROWS),
        query_start_loc=step.starts,
        max_seq_len=max(KEYS),
        seq_lens=step.used,
        block_table=step.table,
        slot_mapping=torch.empty(0),
        max_num_splits=options.get("num_splits", 0),
        causal=options["causal"],
    )
    layer = torch.nn.Module()
    for name in ("_q_scale", "_k_scale", "_v_scale"):
        layer.register_buffer(name, torch.ones(()))
    cache = torch.cat((step.k, step.v), dim=-1).transpose(1, 2)
    padded = torch.cat((step.q, step.q[:2]))
    out = torch.full_like(padded, math.nan)
    vllm_backend.fell_back.clear()
    found = impl.forward(layer, padded, None, None, cache, metadata, out)
    assert found is out
    close(out[: sum(ROWS)], wanted, 1e-5)
    assert not vllm_backend.fell_back
    assert not impl.forward(layer, padded, None, None, cache, None, out).any()


@pytest.mark.parametrize(
    ("of_impl", "of_metadata", "scale", "why"),
    [
        ({}, {}, 1, "outputs are quantised"),
        ({"attn_type": "encoder_only"}, {}, None, "an encoder has no KV cache"),
        ({"alibi_slopes": 1}, {}, None, "biases of ALiBi"),
        ({"dcp_world_size": 2}, {}, None, "on several GPUs"),
        ({}, {"causal": torch.ones(3)}, None, "only some sequences are causal"),
        ({}, {"use_cascade": True}, None, "sequences share a prefix"),
        ({}, {"rswa_prefix_lens": 1}, None, "a function of cute-dsl"),
        ({}, {}, None, None),
    ],
)
def test_why_vllm_computes_a_step_itself(
    vllm_backend: Any, of_impl: Any, of_metadata: Any, scale: Any, why: str | None
) -> None:
    plain = {"attn_type": "decoder", "alibi_slopes": None, "dcp_world_size": 1}
    impl = SimpleNamespace(**plain | of_impl)
    metadata = SimpleNamespace(**{"causal": True} | of_metadata)
    said = vllm_backend.elsewhere(impl, metadata, scale, None)
    assert said is None if why is None else why in said


def test_classes_of_vllm_are_those_of_the_backend(vllm_backend: Any) -> None:
    backend = vllm_backend.JitAttentionBackend
    assert backend.get_impl_cls() is vllm_backend.JitAttentionImpl
    assert backend.get_builder_cls() is vllm_backend.JitMetadataBuilder
    theirs = import_module("vllm.v1.attention.backends.flash_attn")
    own, base = (
        inspect.signature(kind.forward).parameters
        for kind in (vllm_backend.JitAttentionImpl, theirs.FlashAttentionImpl)
    )
    assert list(own) == list(base)


def test_the_backend_of_sglang_calls_the_functions_that_are_rebound() -> None:
    """They are names of its module, and its class sets what ours sets anew."""
    tree = source_of("sglang", "srt/layers/attention/flashattention_backend.py")
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported >= {"flash_attn_varlen_func", "flash_attn_with_kvcache"}
    (backend,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "FlashAttentionBackend"
    )
    stored = {
        node.attr
        for node in ast.walk(backend)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert stored >= {
        *("_get_scheduler_metadata", "flash_attn_varlen_func", "flash_attn_with_kvcache")
    }
    called = {n.func.id for n in ast.walk(backend) if _is_call_by_name(n)}  # type: ignore[attr-defined]
    assert "flash_attn_with_kvcache" in called


def _is_call_by_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_sglang_finds_the_backend() -> None:
    registry = pytest.importorskip(
        "sglang.srt.layers.attention.attention_registry", reason="sglang is not installed"
    )
    plug_ins.register_sglang()
    assert plug_ins.SGLANG in registry.ATTENTION_BACKENDS
