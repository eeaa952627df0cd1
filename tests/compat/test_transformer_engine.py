# SPDX-License-Identifier: Apache-2.0
"""The functions that Transformer Engine imports after `install`, called with the arguments that it
passes. They are read from its source, which needs a GPU to be imported."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import install, uninstall
from flash_attention.errors import UnsupportedError

FOLDER = "pytorch/attention/dot_product_attention"
STARTS = torch.tensor([0, 6, 16], dtype=torch.int32)
HEADS, HEADS_K, D = 4, 2, 32


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()


def source(name: str) -> ast.Module:
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("transformer_engine is not installed")
    (folder,) = spec.submodule_search_locations
    return ast.parse(Path(folder, FOLDER, name).read_text())


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(shape[-2])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_every_name_that_it_imports_is_there() -> None:
    imports = [
        (node.module, alias.name)
        for node in ast.walk(source("backends.py"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flash_attn")
        for alias in node.names
        if "cute" not in (node.module or "")
    ]
    assert ("flash_attn_interface", "_flash_attn_backward") in imports
    for module, name in imports:
        assert hasattr(import_module(str(module)), name), (module, name)


def arguments_of_transformer_engine() -> Callable[..., list[Any]]:
    """get_fa_args, which lists the positional arguments behind q, k and v."""
    tree = source("context_parallel.py")
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "get_fa_args"
    )
    names: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), "context_parallel.py", "exec"), names)
    found: Callable[..., list[Any]] = names["get_fa_args"]
    return found


def arguments_as_of_2_20(forward: bool, version_3: bool, form: str, **given: Any) -> list[Any]:
    """What get_fa_args of Transformer Engine 2.20 returns."""
    packed = form == "thd"
    starts = [given["cu_seqlens_q"], given["cu_seqlens_kv"]] if packed else [None, None]
    longest = [given["max_seqlen_q"], given["max_seqlen_kv"]]
    rooms = [given.get(name) for name in ("dq", "dk", "dv")]
    if version_3 and forward:
        return [*[None] * 4, *starts, *[None] * 3, *longest, *[None] * 9]
    if version_3:
        return [*starts, None, None, *longest, *rooms]
    lengths = [*starts, *longest] if packed else []
    return lengths if forward else [*rooms, *lengths]


@pytest.mark.parametrize("of", ["release 2.20", "installed"])
@pytest.mark.parametrize("form", ["bshd", "thd"])
@pytest.mark.parametrize("version", [2, 3])
def test_both_passes(version: int, form: str, of: str) -> None:
    arguments: Callable[..., list[Any]] = arguments_as_of_2_20
    if of == "installed":
        arguments = arguments_of_transformer_engine()
    rows = (16,) if form == "thd" else (2, 8)
    q, k, v, dout = (draw(*rows, n, D) for n in (HEADS, HEADS_K, HEADS_K, HEADS))
    longest = 10 if form == "thd" else 8
    given: dict[str, Any] = {"cu_seqlens_q": STARTS, "cu_seqlens_kv": STARTS}
    given |= {"max_seqlen_q": longest, "max_seqlen_kv": longest}
    shared: dict[str, Any] = {"softmax_scale": 0.3, "window_size_left": -1, "window_size_right": 0}
    forward, backward, more, more_backward = passes(version, form)
    out, lse, *rest = forward(
        *(q, k, v, *arguments(True, version == 3, form, **given)), causal=True, **shared, **more
    )
    rooms = {name: torch.full_like(t, math.nan) for name, t in zip(ROOMS, (q, k, v), strict=True)}
    if version == 2:
        more_backward["rng_state"] = rest[1]
    backward(
        *(dout, q, k, v, out, lse, *arguments(False, version == 3, form, **given, **rooms)),
        **{"is_causal" if version == 3 else "causal": True},
        **shared,
        **more_backward,
    )
    leaves = [t.requires_grad_() for t in (q, k, v)]
    keywords: Any = {"causal": True, "softmax_scale": 0.3}
    if form == "thd":
        keywords |= {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
        keywords |= {"max_seqlen_q": 10, "max_seqlen_k": 10}
    wanted = attention(*leaves, **keywords)
    torch.testing.assert_close(out, wanted.detach())
    wanted.backward(dout)
    for room, leaf in zip(rooms.values(), leaves, strict=True):
        torch.testing.assert_close(room, leaf.grad)


ROOMS = ("dq", "dk", "dv")


def passes(version: int, form: str) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """The functions of both passes, and the keywords that only this version has."""
    if version == 3:
        interface = import_module("flash_attn_interface")
        more = {"deterministic": False}
        return interface._flash_attn_forward, interface._flash_attn_backward, {}, more
    interface = import_module("flash_attn.flash_attn_interface")
    varlen = "_varlen" if form == "thd" else ""
    shared = {"dropout_p": 0.0, "alibi_slopes": None, "softcap": 0.0}
    forward = {**shared, "return_softmax": False} | ({"block_table": None} if varlen else {})
    return (
        getattr(interface, f"_flash_attn{varlen}_forward"),
        getattr(interface, f"_flash_attn{varlen}_backward"),
        forward,
        {**shared, "deterministic": False},
    )


def test_the_function_of_the_extension() -> None:
    extension = import_module("flash_attn_2_cuda")
    q, k, v, dout = (draw(16, n, D) for n in (HEADS, HEADS_K, HEADS_K, HEADS))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    lengths: Any = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
    lengths |= {"max_seqlen_q": 10, "max_seqlen_k": 10}
    out, lse = attention(*leaves, causal=True, return_lse=True, **lengths)
    out.backward(dout)
    tensors = [t.detach() for t in (dout, q, k, v, out, lse)]
    dq = torch.empty_like(tensors[1])
    found = extension.varlen_bwd(
        *(*tensors, dq, None, None, STARTS, STARTS, None, 10, 10, 0.0, D**-0.5, False, True),
        *(-1, -1, 0.0, False, None, None),
    )
    assert found[0] is dq
    for gradient, leaf in zip(found[:3], leaves, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)
    with pytest.raises(UnsupportedError, match="gen is given"):
        extension.varlen_bwd(
            *(*tensors, dq, None, None, STARTS, STARTS, None, 10, 10, 0.0, 1.0, False, True),
            *(-1, -1, 0.0, False, torch.Generator(), None),
        )
