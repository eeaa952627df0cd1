# SPDX-License-Identifier: Apache-2.0
"""Head dimensions that no kernel reads: padded for the caller, with the scale of the true one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention import UnsupportedError, attention
from flash_attention.call.call import Call
from flash_attention.call.strict import VARIABLE
from flash_attention.families.padding import needs_padding, padded
from flash_attention.kernel_configs import DType
from flash_attention.reference.judge import Judge, check_lse, check_output, generate_qkv
from tests.devices import on_devices
from tests.gate import EXHAUSTIVE

SM80 = "rung:15"
E4M3 = torch.float8_e4m3fn
FP8 = "hopper_fp8(BF16, 64, 2, 64, 2): one_each"
FORM_64 = "hopper(BF16, 64, 1, 64, 2): tma+specialised+overlap+lazy_8+stale_max"
EMULATED_8_BIT = [(E4M3, FP8), (torch.bfloat16, f"{FORM_64}+kv_8_bit")]


def made(d: int, d_v: int | None = None, device: str = "cpu", **more: Any) -> list[Tensor]:
    return list(generate_qkv(2, 40, 4, d, DType.BF16, device, n_heads_k=2, d_v=d_v, **more))


def made_8_bit(d: int, d_v: int, dtype: torch.dtype, device: str = "cpu") -> Call:
    generator = torch.Generator().manual_seed(d)
    q, k, v = (
        torch.randn(1, rows, heads, columns, generator=generator).to(device)
        for rows, heads, columns in ((20, 2, d), (40, 1, d), (40, 1, d_v))
    )
    names = ("k_descale", "v_descale", *(["q_descale"] if dtype == E4M3 else []))
    factors: dict[str, Any] = {
        name: torch.rand((1, 1), generator=generator).to(device) + 0.5 for name in names
    }
    return Call(q.to(dtype), k.to(E4M3), v.to(E4M3), **factors)


@pytest.mark.parametrize(
    ("d", "d_v", "needed"),
    [(64, 64, False), (60, 60, True), (64, 60, True), (1, 1, True), (256, 256, False)],
)
def test_padding_is_for_what_is_no_multiple_of_8(d: int, d_v: int, needed: bool) -> None:
    q, _, v = made(d, d_v)
    assert needs_padding(q, v) is needed


@pytest.mark.parametrize(
    ("d", "d_v", "needed"),
    [(64, 64, False), (80, 48, False), (72, 72, True), (60, 60, True), (64, 56, True)],
)
@pytest.mark.parametrize("dtype", [E4M3, torch.bfloat16], ids=str)
def test_8_bit_keys_and_values_are_padded_to_multiples_of_16(
    d: int, d_v: int, needed: bool, dtype: torch.dtype
) -> None:
    call = made_8_bit(d, d_v, dtype)
    assert needs_padding(call.q, call.v) is needed
    assert [t.shape[-1] % 16 for t in padded(call)[:3]] == [0, 0, 0]


def test_what_is_too_wide_or_no_tensor_is_left_to_the_checks() -> None:
    q, k, v = made(513)
    assert not needs_padding(q, v)
    assert not needs_padding(torch.tensor(1.0), v)
    assert not needs_padding("q", v)  # type: ignore[arg-type]
    nested = torch.nested.nested_tensor([torch.ones(3, 4, 64)])
    for given in ((nested, k, v), (q, k, nested), (nested, nested, nested)):
        with pytest.raises(UnsupportedError, match="is a nested tensor; pass the rows"):
            attention(*given)
    with pytest.raises(UnsupportedError, match="q has d_head 513; the kernels take at most 512"):
        attention(q, k, v, config=SM80)


def test_a_padded_call_has_zeros_and_the_scale_of_the_true_head_dimension() -> None:
    q, k, v = made(60, 44)
    wide = padded(Call(q, k, v, out=torch.empty(2, 40, 4, 44, dtype=q.dtype)))
    for narrow, tensor in zip((q, k, v), wide, strict=False):
        assert isinstance(tensor, Tensor)
        assert tensor.shape[-1] == -(-narrow.shape[-1] // 8) * 8
        assert torch.equal(tensor[..., : narrow.shape[-1]], narrow)
        assert not tensor[..., narrow.shape[-1] :].any()
    assert wide.softmax_scale == 60**-0.5
    assert wide.out is None
    assert padded(Call(q, k, v, softmax_scale=0.5)).softmax_scale == 0.5
    q, k, v = made(60, 64)
    assert padded(Call(q, k, v)).v is v


ON_GPU = [
    pytest.param(*columns, None, "cuda", marks=pytest.mark.gpu)
    for columns in ((60, 60), (75, 75), (1, 3), (255, 200), (64, 50))
]


@pytest.mark.parametrize(
    ("d", "d_v", "config", "device"),
    [
        *((*d, config, "cpu") for d in ((60, 60), (64, 44), (44, 64)) for config in (None, SM80)),
        *ON_GPU,
    ],
)
def test_attention_of_any_head_dimension(d: int, d_v: int, config: str | None, device: str) -> None:
    q, k, v = made(d, d_v, device)
    out = torch.full((2, 40, 4, d_v), torch.nan, dtype=q.dtype, device=device)
    result, lse = attention(q, k, v, out=out, causal=True, config=config, return_lse=True)
    assert result is out
    assert Judge(q, k, v, causal=True).check(out).ok
    assert check_lse(lse, q, k, causal=True).ok
    assert Judge(q, k, v, causal=True).check(attention(q, k, v, causal=True, config=config)).ok


@pytest.mark.parametrize(
    ("d", "d_v", "device"),
    on_devices(
        [(60, 60), (40, 9), *(pytest.param(*d, marks=EXHAUSTIVE) for d in ((64, 44), (56, 64)))],
        [(72, 72), (1, 3), (255, 200), (64, 50)],
    ),
)
@pytest.mark.parametrize(("dtype", "config"), EMULATED_8_BIT, ids=["fp8", "16-bit q"])
def test_attention_of_8_bits_and_any_head_dimension(
    d: int, d_v: int, device: str, dtype: torch.dtype, config: str
) -> None:
    call = made_8_bit(d, d_v, dtype, device)
    out = torch.full((1, 20, 2, d_v), torch.nan, dtype=torch.bfloat16, device=device)
    chosen = config if device == "cpu" else None
    result, lse = attention(*call[:3], out=out, config=chosen, return_lse=True, **call.keywords())
    assert result is out
    assert check_output(out, *call[:3], **call.keywords()).ok
    assert check_lse(lse, call.q, call.k, **call.keywords()).ok


@pytest.mark.parametrize("dtype", [E4M3, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("d", "d_v"), [(60, 60), (40, 9)])
def test_torch_and_explain_pad_8_bits_too(
    d: int, d_v: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = made_8_bit(d, d_v, dtype)
    monkeypatch.setenv(VARIABLE, "sm_90")
    of_torch = attention(*call[:3], **call.keywords())
    assert check_output(of_torch, *call[:3], **call.keywords()).ok
    explained = flash_attention.explain(*call[:3], arch="sm_90", **call.keywords())
    assert explained.problem.d_head == -(-d // 16) * 16


def test_a_padded_v_may_have_contiguous_keys() -> None:
    call = made_8_bit(60, 44, E4M3)
    keys_first = torch.zeros(1, 1, 44, 48).to(E4M3)[..., :40].permute(0, 3, 1, 2).copy_(call.v)
    assert keys_first.stride(1) == 1
    out = attention(*call[:3], config=FP8, **call.keywords())
    assert torch.equal(attention(call.q, call.k, keys_first, config=FP8, **call.keywords()), out)


@pytest.mark.parametrize(
    ("d", "d_v", "config", "device"), [(60, 44, None, "cpu"), (60, 44, "rung:1", "cpu"), *ON_GPU]
)
def test_gradients_of_any_head_dimension(d: int, d_v: int, config: str | None, device: str) -> None:
    on_cpu = [t.requires_grad_() for t in made(d, d_v)]
    q, k, v = (t.detach().to(device).requires_grad_() for t in on_cpu)
    out, lse = attention(q, k, v, causal=True, return_lse=True, backward_config=config)
    assert out.shape == (2, 40, 4, d_v)
    generator = torch.Generator().manual_seed(1)
    do = torch.randn(out.shape, generator=generator).to(out.dtype)
    dlse = torch.randn(lse.shape, generator=generator)
    found = torch.autograd.grad((out, lse), (q, k, v), (do.to(device), dlse.to(device)))
    wanted = torch.autograd.grad(
        attention(*(t.double() for t in on_cpu), causal=True, return_lse=True),
        on_cpu,
        (do.double(), dlse.double()),
    )
    for gradient, exact in zip(found, wanted, strict=True):
        assert gradient.shape == exact.shape
        assert torch.allclose(gradient.cpu(), exact, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("no_compile")
def test_a_message_with_a_padded_head_dimension_names_the_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = made(70)
    message = r"q and k have d_head 72; .* \(d_head 70 is padded to 72, a multiple of 8\)$"
    for function in (attention, flash_attention.explain, flash_attention.check):
        with pytest.raises(UnsupportedError, match=message):
            function(q, k, v, config=FORM_64)
    for d, padded_too in ((64, ""), (60, "d_head 60 is padded to 64, a multiple of 8; ")):
        message = (
            rf"v has d_head 72; .* \({padded_too}d_head 70 is padded to 72, a multiple of 8\)$"
        )
        with pytest.raises(UnsupportedError, match=message):
            attention(*made(d, 70), config=FORM_64)
    with pytest.raises(UnsupportedError, match=r"config is for torch.bfloat16, .* convert them$"):
        attention(q.half(), k.half(), v.half(), config=FORM_64)
    monkeypatch.setenv(VARIABLE, "sm_90")
    call = made_8_bit(300, 64, E4M3)
    with pytest.raises(UnsupportedError, match=r"d 304 .*300 is padded to 304, a multiple of 16"):
        attention(*call[:3], **call.keywords())


def test_messages_show_the_shapes_of_the_caller() -> None:
    q, k, v = made(60)
    for tensors, message in (
        ((q, k[..., :50], v), r"k has shape \(2, 40, 2, 50\), q has shape \(2, 40, 4, 60\)"),
        ((q[:1], k, v), r"q has shape \(1, 40, 4, 60\); q, k and v must agree in batch"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            attention(*tensors)
    with pytest.raises(UnsupportedError, match=r"it must have \(2, 40, 4, 60\)"):
        attention(q, k, v, out=torch.empty(2, 40, 4, 64, dtype=q.dtype))
    with pytest.raises(UnsupportedError, match="out is given and a tensor requires grad"):
        attention(q.requires_grad_(), k, v, out=torch.empty_like(q))


def test_a_traced_call_is_padded_too() -> None:
    q, k, v = made(60)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), backend="eager", fullgraph=True)
    assert Judge(q, k, v).check(compiled(q, k, v)).ok


def test_strict_mode_and_reports_know_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = made(60)
    monkeypatch.setenv(VARIABLE, "1")
    assert Judge(q, k, v).check(attention(q, k, v)).ok
    explained = flash_attention.explain(q, k, v, arch="sm_90")
    assert (explained.config.d_head, explained.problem.d_head) == (64, 64)
    assert explained.problem.softmax_scale == 60**-0.5
    assert flash_attention.check(q, k, v, config=SM80, gradients=True).ok
    out = torch.full_like(q, torch.nan)
    assert flash_attention.check(q, k, v, config=SM80, out=out).ok
    assert Judge(q, k, v).check(out).ok
