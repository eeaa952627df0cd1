# SPDX-License-Identifier: Apache-2.0
"""`attention` in torch's registry of flash attention, against torch's attention in float64."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_attention import dropout_mask
from flash_attention.compat import install, uninstall
from flash_attention.compat import torch as compat
from flash_attention.errors import UnsupportedError
from tests.devices import DEVICES, HOPPER

registry: Any = torch.nn.attention
sdpa: Any = F.scaled_dot_product_attention
pytestmark = pytest.mark.skipif(
    not hasattr(registry, "register_flash_attention_impl"), reason="torch has no registry"
)
HEADS, HEADS_K, D = 4, 2, 16
STARTS = [0, 7, 7, 24]
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
OPERATORS = {
    "_flash_attention_forward": "query key value cum_seq_q cum_seq_k max_q max_k dropout_p"
    " is_causal return_debug_mask scale window_size_left window_size_right seqused_k alibi_slopes"
    " block_table num_splits",
    "_flash_attention_forward_no_dropout_inplace": "out query key value cum_seq_q cum_seq_k max_q"
    " max_k dropout_p is_causal return_debug_mask scale window_size_left window_size_right"
    " seqused_k alibi_slopes block_table num_splits",
    "_flash_attention_backward": "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q"
    " max_k dropout_p is_causal rng_state unused scale window_size_left window_size_right",
    "_scaled_dot_product_flash_attention": "query key value dropout_p is_causal return_debug_mask"
    " scale",
    "_scaled_dot_product_flash_attention_backward": "grad_out query key value out logsumexp"
    " cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset scale",
}

RETURNS = dict(zip(OPERATORS, (5, 1, 3, 9, 3), strict=True))


@pytest.fixture
def active() -> Iterator[None]:
    registry.activate_flash_attention_impl(compat.register())
    compat.calls.clear()
    yield
    registry.restore_flash_attention_impl(_raise_warn=False)


def draw(*shape: int, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    drawn = torch.randn(shape, generator=generator).to(device, DTYPES[device])
    return drawn.requires_grad_()


def close(given: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-5 if given.dtype == torch.float32 else 3e-2
    given, wanted = given.detach(), wanted.detach().double()
    error = float((given.double() - wanted).abs().max())
    assert error <= tolerance * (1 + float(wanted.abs().max()))


def packed(device: str) -> tuple[list[Tensor], Tensor]:
    tensors = [draw(STARTS[-1], heads, D, device=device) for heads in (HEADS, HEADS_K, HEADS_K)]
    return tensors, torch.tensor(STARTS, dtype=torch.int32, device=device)


def grouped_heads(function: Callable[..., Any]) -> dict[str, bool]:
    """The option of grouped heads, which older releases of torch do not ask for."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(function).parameters else {}


def sequence_by_sequence(q: Tensor, k: Tensor, v: Tensor, left: int | None) -> Tensor:
    """Causal attention of packed sequences in float64, in which a query sees `left` more keys."""
    outs = []
    for start, end in pairwise(STARTS):
        rows = [t[start:end].double().transpose(0, 1) for t in (q, k, v)]
        seen = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).tril()
        seen = seen if left is None else seen.triu(-left)
        out = sdpa(*rows, attn_mask=seen, enable_gqa=True)
        outs.append(out.transpose(0, 1))
    return torch.cat(outs)


def gradients_agree(out: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    upstream = draw(*out.shape, device=out.device.type).detach()
    given = torch.autograd.grad(out, leaves, upstream.to(out.dtype))
    for gradient, right in zip(
        given, torch.autograd.grad(wanted, leaves, upstream.double()), strict=True
    ):
        close(gradient, right)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_torch_have_the_arguments_that_are_read_here(name: str) -> None:
    schema = getattr(torch.ops.aten, name).default._schema
    arguments = [argument.name for argument in schema.arguments]
    assert arguments == OPERATORS[name].split()
    own = list(inspect.signature(compat.OPERATORS[name]).parameters)
    assert own[:2] in (["args", "scale"], ["out", "args"]) or own[: len(arguments)] == arguments
    assert len(schema.returns) == RETURNS[name]


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("left", [None, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_packed_sequences(left: int | None, compiled: bool, device: str) -> None:
    varlen = import_module("torch.nn.attention.varlen")
    (q, k, v), starts = packed(device)

    grouped = grouped_heads(varlen.varlen_attn)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        window = (-1 if left is None else left, 0)
        found: tuple[Tensor, Tensor] = varlen.varlen_attn(
            *(q, k, v, starts, starts, 17, 17),
            return_aux=varlen.AuxRequest(lse=True),
            window_size=window,
            **grouped,
        )
        return found[0] * 2, found[1]

    run: Callable[..., Any] = attend
    if compiled:
        run = torch.compile(attend, backend="aot_eager", fullgraph=True)
    out, lse = run(q, k, v)
    wanted = sequence_by_sequence(q, k, v, left) * 2
    close(out, wanted)
    assert lse.shape == (HEADS, STARTS[-1])
    gradients_agree(out, wanted, [q, k, v])
    assert compat.calls == {"_flash_attention_forward": 1, "_flash_attention_backward": 1}


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences_into_memory_of_the_caller_and_with_pages(device: str) -> None:
    varlen_attn_out = getattr(import_module("torch.nn.attention.varlen"), "varlen_attn_out", None)
    if varlen_attn_out is None:
        pytest.skip("this torch has no varlen_attn_out")
    (q, k, v), starts = packed(device)
    out = torch.full_like(q, math.nan).requires_grad_(False)
    options: dict[str, Any] = {"window_size": (-1, 0), **grouped_heads(varlen_attn_out)}
    with torch.no_grad():
        given = varlen_attn_out(out, q, k, v, starts, starts, 17, 17, **options)
        close(out, sequence_by_sequence(q, k, v, None))
        assert given is out
        size = 16  # the sequences have no, one and two pages
        table = torch.tensor([[2, 1], [1, 1], [0, 3]], dtype=torch.int32, device=device)
        pages = [t.new_zeros(4, size, HEADS_K, D) for t in (k, v)]
        for cache, rows in zip(pages, (k, v), strict=True):
            cache[2, :7], cache[0], cache[3, :1] = rows[:7], rows[7:23], rows[23:]
        used = starts.diff()
        out.fill_(math.nan)
        varlen_attn_out(
            *(out, q, *pages, starts, None, 17, 17), seqused_k=used, block_table=table, **options
        )
        close(out, sequence_by_sequence(q, k, v, None))


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_dense_tensors(causal: bool, compiled: bool, device: str) -> None:
    """Which operator takes them on a GPU is torch's choice; on the CPU it is called by name."""
    tensors = [draw(2, 9, heads, D, device=device) for heads in (HEADS, HEADS, HEADS)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [t.transpose(1, 2) for t in (q, k, v)]
        if device == "cuda":
            out: Tensor = sdpa(*rows, is_causal=causal, scale=0.3)
            return out
        operator = torch.ops.aten._scaled_dot_product_flash_attention
        result: Tensor = operator(*rows, is_causal=causal, scale=0.3)[0]
        return result

    run: Callable[..., Tensor] = attend
    if compiled:
        run = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = run(*tensors)
    exact = [t.double().transpose(1, 2) for t in tensors]
    wanted = sdpa(*exact, is_causal=causal, scale=0.3)
    close(out, wanted)
    assert out.stride() == tensors[0].transpose(1, 2).stride()
    gradients_agree(out, wanted, tensors)
    assert set(compat.calls.values()) == {1}
    assert len(compat.calls) == 2


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["batch, heads", "with gaps", "rows, batch", "in one tensor"])
def test_results_have_the_strides_that_compiled_code_expects(layout: str, device: str) -> None:
    """Those of tensors like query, key and value, whichever of them is not contiguous."""
    q, k, v = {
        "batch, heads": lambda: draw(3, 2, HEADS, 9, D, device=device),
        "with gaps": lambda: draw(3, 2, HEADS, 12, D, device=device)[:, :, :, :9],
        "rows, batch": lambda: draw(3, 9, 2, HEADS, D, device=device).permute(0, 2, 3, 1, 4),
        "in one tensor": lambda: draw(2, 9, 3, HEADS, D, device=device).permute(2, 0, 3, 1, 4),
    }[layout]()
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)
    assert found[0].stride() == torch.empty_like(q).stride()
    upstream = draw(2, HEADS, 9, D, device=device)
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *(upstream, q, k, v, *found[:2], None, None, 9, 9, 0.0, False, *found[6:8])
    )
    for gradient, tensor in zip(gradients, (q, k, v), strict=True):
        assert gradient.stride() == torch.empty_like(tensor).stride()
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    sdpa(*exact).backward(upstream.double())
    for gradient, leaf in zip(gradients, exact, strict=True):
        assert leaf.grad is not None
        close(gradient, leaf.grad)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("device", DEVICES)
def test_nested_tensors(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":  # where torch gives them to no flash backend
        chosen = lambda *_: SDPBackend.FLASH_ATTENTION  # noqa: E731
        monkeypatch.setattr("torch.nested._internal.sdpa._select_sdp_backend", chosen)
    leaves = [draw(n, HEADS, D, device=device) for n in (5, 9)]
    nested = torch.nested.as_nested_tensor(leaves, layout=torch.jagged).transpose(1, 2)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = sdpa(nested, nested, nested, is_causal=True)
    for given, leaf in zip(out.transpose(1, 2).unbind(), leaves, strict=True):
        rows = leaf.double().transpose(0, 1)
        wanted = sdpa(rows, rows, rows, is_causal=True).transpose(0, 1)
        close(given, wanted)
        (gradient,) = torch.autograd.grad(given.square().sum(), leaf, retain_graph=True)
        close(gradient, torch.autograd.grad(wanted.square().sum(), leaf)[0])
    assert compat.calls["_flash_attention_forward"] == 1


@pytest.mark.usefixtures("active")
def test_dropout_is_the_same_in_both_passes() -> None:
    q = draw(1, 2, 8, D)
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.5)
    out, state = found[0], found[6]
    kept = dropout_mask(state.view(torch.int64), 0.5, (1, 2, 8, 8)).double()
    rows = q.double()
    wanted = ((rows @ rows.mT / D**0.5).softmax(-1) * kept * 2) @ rows
    close(out, wanted)
    gradients_agree(out, wanted, [q])


@pytest.mark.usefixtures("active")
def test_probabilities_are_refused() -> None:
    q = draw(1, 2, 8, D).detach()
    with pytest.raises(UnsupportedError, match="return_debug_mask is True"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)
    assert not compat.calls


def test_nothing_changes_before_activation_and_after_restoring() -> None:
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn

    def attend() -> Tensor:
        (q, k, v), starts = packed("cpu")
        found: Tensor = varlen_attn(q, k, v, starts, starts, 17, 17, enable_gqa=True)
        return found

    assert compat.register() in registry.list_flash_attention_impls()
    with pytest.raises(NotImplementedError):
        attend()
    registry.activate_flash_attention_impl(compat.NAME)
    assert registry.current_flash_attention_impl() == compat.NAME
    assert attend().isfinite().all()
    registry.restore_flash_attention_impl()
    with pytest.raises(NotImplementedError):
        attend()


def test_older_releases_of_torch_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(registry, "register_flash_attention_impl")
    with pytest.raises(
        UnsupportedError, match=r"install torch 2\.11 or newer, or call .*route_sdpa"
    ):
        compat.register()


@HOPPER
@pytest.mark.parametrize("causal", [False, True])
def test_torch_finds_flash_attention_3(causal: bool) -> None:
    install()
    registry.activate_flash_attention_impl("FA3")
    try:
        tensors = [draw(2, HEADS, 40, 64, device="cuda") for _ in range(3)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = sdpa(*tensors, is_causal=causal)
        exact = [t.double() for t in tensors]
        wanted = sdpa(*exact, is_causal=causal)
        close(out, wanted)
        gradients_agree(out, wanted, tensors)
    finally:
        registry.restore_flash_attention_impl()
        uninstall()
