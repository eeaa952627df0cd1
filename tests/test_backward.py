# SPDX-License-Identifier: Apache-2.0
"""backward and backward_timed: what they refuse, and their gradients beside those of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    KernelConfigError,
    UnsupportedError,
    attention,
    backward,
    backward_timed,
    forward,
)
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import ALL, BackwardCall, Wanted
from flash_attention.call.call import Call
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention.launch.plan import Plan
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import generate_qkv
from tests.devices import DEVICES

FORWARD = FlashForwardKernelConfig(
    DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
FUNCTIONS: list[Callable[..., Any]] = [backward, backward_timed]


def given(
    device: str = "cpu", **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """do, q, k, v, o and lse of a small call."""
    q, k, v = generate_qkv(1, 70, 4, 64, torch.float16, "cpu", seq_len_k=90, n_heads_k=2)
    o, lse = attention(q, k, v, return_lse=True, **options)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    do, q, k, v, o, lse = (t.to(device) for t in (do, q, k, v, o, lse))
    return do, q, k, v, o, lse


BAD: dict[str, tuple[int, Any, str]] = {
    "shape of do": (0, lambda do: do[:, 1:], "do has shape .*; the gradient of the output has its"),
    "dtype of do": (0, lambda do: do.float(), "do has dtype torch.float32, o has dtype"),
    "device of do": (0, lambda do: do.to("meta"), "do has device meta, o has device cpu"),
    "strides of do": (0, lambda do: do.mT.contiguous().mT, r"do .* copy it with do\.contiguous"),
    "no do": (0, lambda do: None, "do is a NoneType; pass a torch.Tensor"),
    "no q": (1, lambda q: None, "q is a NoneType; pass a torch.Tensor"),
    "no o": (4, lambda o: None, "o is a NoneType; pass the output of the forward pass"),
    "shape of o": (4, lambda o: o[:, 1:], r"has shape .*; it must have \(1, 70, 4, 64\)"),
    "no lse": (5, lambda lse: None, "lse is missing; pass .* return_lse=True"),
    "lse of another call": (5, lambda lse: lse[..., 1:], r"lse has shape \(1, 4, 69\); .*"),
    "dtype of lse": (5, lambda lse: lse.half(), "lse is torch.float16; it must be torch.float32"),
    "strides of lse": (5, lambda lse: lse.mT.contiguous().mT, r"copy it with lse\.contiguous\(\)"),
    "device of lse": (5, lambda lse: lse.to("meta"), "lse is on meta, q is on cpu"),
}


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_refused_before_anything_is_compiled(name: str) -> None:
    place, change, message = BAD[name]
    tensors: list[Any] = list(given())
    tensors[place] = change(tensors[place])
    for function in FUNCTIONS:
        with pytest.raises(UnsupportedError, match=message):
            function(FORWARD, *tensors)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"dlse": torch.zeros(1, 4, 71)}, UnsupportedError, r"dlse has shape \(1, 4, 71\)"),
        (
            {"wanted": ("dq", "do")},
            UnsupportedError,
            "^wanted has 'do'; allowed are the names dq, dk, dv, dsinks, one of them or several in"
            " a tuple$",
        ),
        ({"wanted": 3}, UnsupportedError, "wanted has 3; allowed are the names dq, dk"),
        ({"wanted": ["dq", ["dk"]]}, UnsupportedError, r"wanted has \['dk'\]; allowed are the na"),
        ({"wanted": ["dsinks"]}, UnsupportedError, "gradient of sinks is wanted, and sinks is not"),
        ({"deterministic": "yes"}, UnsupportedError, "deterministic is 'yes'; pass True or False"),
        ({"softcap": -1.0}, UnsupportedError, r"softcap is -1\.0"),
        ({"return_lse": True}, TypeError, "unexpected keyword argument 'return_lse'"),
        ({"split_keys": 64}, TypeError, "unexpected keyword argument 'split_keys'"),
        ({"casual": True}, TypeError, "'casual'; did you mean 'causal'?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_keywords_are_refused_before_anything_is_compiled(
    keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    for function in FUNCTIONS:
        with pytest.raises(error, match=message):
            function(FORWARD, *given(), **keywords)


@pytest.mark.usefixtures("no_compile")
def test_a_config_of_the_other_pass_is_refused() -> None:
    for function in FUNCTIONS:
        for config in (FORWARD, FORWARD.short_form()):
            with pytest.raises(KernelConfigError, match="a config of the forward pass; pass a"):
                function(config, *given())
        others = (
            "; pass a FlashBackwardKernelConfig or a HopperBackwardKernelConfig or a"
            " HopperWideBackwardKernelConfig, its short"
        )
        things: tuple[Any, ...] = (None, [], SimpleNamespace(**vars(FORWARD)))
        for thing in things:
            said = f"the kernel config is a {type(thing).__name__}{others}"
            with pytest.raises(KernelConfigError, match=said):
                function(thing, *given())
        with pytest.raises(KernelConfigError, match=r"'fast' is not .* form is 'backward"):
            function("fast", *given())


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("place", range(8))
def test_tensors_that_require_grad_are_refused(place: int) -> None:
    tensors = [*given(), torch.zeros(1, 4, 70), torch.zeros(4)]
    *first, dlse, sinks = (t.requires_grad_(i == place) for i, t in enumerate(tensors))
    for function in FUNCTIONS:
        with pytest.raises(UnsupportedError, match="this function is not differentiable; call att"):
            function(FORWARD, *first, dlse=dlse, sinks=sinks)


def configs(
    device: str = "cpu", wanted: Wanted = ALL, deterministic: bool = True, **options: Any
) -> list[KernelConfig]:
    """The configs for the small call that run on a device, or on the emulator as they are."""
    do, q, k, v, o, lse = given()
    call = BackwardCall(do, Call(q, k, v, o, **options), lse, None, wanted, deterministic)
    chosen = [Plan(call, arch=ARCHES[name]).config for name in ("sm_80", "sm_90")]
    if device == "cpu":
        return list(dict.fromkeys(chosen))
    newest = "sm_{}{}".format(*torch.cuda.get_device_capability())
    return [config for config in dict.fromkeys(chosen) if config.default_arch.name <= newest]


def equal(given: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> bool:
    pairs = zip(given, wanted, strict=True)
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "softcap": 3.0}, {"sinks": torch.ones(4), "window": (20, 3)}],
    ids=["plain", "causal", "sinks"],
)
def test_gradients_are_right(options: dict[str, Any], device: str) -> None:
    do, q, k, v, o, lse = given(device, **options)
    options = {n: t.to(device) if isinstance(t, Tensor) else t for n, t in options.items()}
    dlse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(2)).to(device)
    call, wanted = Call(q, k, v, **options), Wanted(dsinks="sinks" in options)
    judge = GradientJudge(call, do, dlse, wanted)
    on_cpu = {n: t.cpu() if isinstance(t, Tensor) else t for n, t in options.items()}
    for config in configs(device, wanted, deterministic=False, **on_cpu):
        found = backward(config, do, q, k, v, o, lse, dlse=dlse, **options)
        assert [t is not None for t in found] == list(wanted)
        for check in judge.check(found).values():
            assert check.ok, str(check)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", ["dq", ("dk", "dv")], ids=str)
def test_only_what_is_wanted_comes_back(wanted: str | tuple[str, ...], device: str) -> None:
    tensors = given(device)
    every = backward(configs(device)[-1], *tensors, deterministic=True)
    names = [wanted] if isinstance(wanted, str) else wanted
    for config in configs(device, Wanted(*(name in names for name in Wanted._fields))):
        some = backward(config, *tensors, wanted=wanted, deterministic=True)
        assert [n for n, t in some._asdict().items() if t is not None] == list(names)
        for one, other in zip(some, every, strict=True):
            if one is not None and other is not None:
                torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_runs_the_backward_kernel_it_is_given(device: str) -> None:
    do, q, k, v, *_ = given(device)
    for config in configs(device):
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out, lse = attention(
            *leaves, return_lse=True, backward_config=config.short_form(), deterministic=True
        )
        found = torch.autograd.grad(out, leaves, do)
        own = backward(config, do, q, k, v, out.detach(), lse.detach(), deterministic=True)
        assert equal(found, own[:3])


def test_a_config_is_emulated_on_an_architecture_that_has_its_instructions() -> None:
    do, q, k, v, *_ = given()
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(attention(*leaves), leaves, do)
    config = "backward(FP16, 64, 64, 64, 4): swizzled+vectors"
    found = torch.autograd.grad(attention(*leaves, backward_config=config), leaves, do)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("no_compile")
def test_configs_of_the_backward_pass_are_refused_by_the_forward_pass() -> None:
    _, q, k, v, *_ = given()
    for config in configs():
        with pytest.raises(KernelConfigError, match="a config of the backward pass; pass a"):
            forward(config, q, k, v)
        with pytest.raises(KernelConfigError, match="a config of the backward pass; pass a"):
            attention(q, k, v, config=config)


@pytest.mark.usefixtures("no_compile")
def test_the_emulator_has_no_time_to_tell() -> None:
    tensors = given()
    for config in configs():
        with pytest.raises(UnsupportedError, match=r"no kernel time to tell; .* or call backward"):
            backward_timed(config, *tensors)


@pytest.mark.gpu
def test_backward_timed_returns_the_time_of_the_kernels_in_milliseconds() -> None:
    tensors = given("cuda")
    for config in configs("cuda"):
        wanted = backward(config, *tensors, deterministic=True)
        found, milliseconds = backward_timed(config, *tensors, deterministic=True)
        assert equal(found, wanted)
        assert 0 < milliseconds < 1000


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(("seq_q", "seq_k"), [(70, 0), (0, 70), (0, 0)])
def test_without_a_query_or_a_key_nothing_is_compiled(seq_q: int, seq_k: int) -> None:
    q, k, v = generate_qkv(2, seq_q, 4, 64, torch.float16, seq_len_k=seq_k)
    sinks = torch.randn(4)
    o, lse = attention(q, k, v, sinks=sinks, return_lse=True)
    dlse = torch.randn_like(lse)
    for config in configs():
        dq, dk, dv, dsinks = backward(config, o, q, k, v, o, lse, dlse=dlse, sinks=sinks)
        for gradient, tensor in ((dq, q), (dk, k), (dv, v)):
            assert equal([gradient], [torch.zeros_like(tensor)])
        torch.testing.assert_close(dsinks, dlse.sum((0, 2)))


def test_the_package_offers_both() -> None:
    assert {"Gradients", "backward", "backward_timed"} <= set(flash_attention.__all__)


@pytest.mark.usefixtures("no_compile")
def test_a_rung_is_one_of_the_backward_ladder() -> None:
    do, q, k, v, o, lse = given()
    call = BackwardCall(do, Call(q, k, v, o), lse)
    for number in (3, 12):
        config = get_ladder(DType.FP16, 64, pass_=Pass.BACKWARD)[number - 1].config
        assert Plan(call, f"rung:{number}").config == config
    for function in FUNCTIONS:
        with pytest.raises(UnsupportedError, match="there is no rung 29; the ladder has rungs 1"):
            function("rung:29", do, q, k, v, o, lse)


def test_attention_takes_a_rung_of_the_backward_ladder() -> None:
    do, q, k, v, o, lse = given()
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    found = torch.autograd.grad(attention(*leaves, backward_config="rung:3"), leaves, do)
    config = get_ladder(DType.FP16, 64, pass_=Pass.BACKWARD)[2].config
    assert equal(found, backward(config, do, q, k, v, o, lse)[:3])
