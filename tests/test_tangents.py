# SPDX-License-Identifier: Apache-2.0
"""attention in forward mode: torch.func.jvp, dual numbers, other transforms around and inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flash_attention import KernelConfigError, UnsupportedError, attention
from flash_attention.call.call import Call
from flash_attention.reference.composite import attention_by_composition
from flash_attention.reference.judge import ERROR_FACTOR
from flash_attention.tangents import with_tangents_by_kernel
from tests.devices import HOPPER, HOPPER_DEVICES

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
jvp: Callable[..., Any] = torch.func.jvp  # whose results depend on an option
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-3, -2)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True)


def doubles(rows: int = 9, heads: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, rows, heads, 8)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(6)]


def of_queries(attend: Attend, given: list[Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda q: attend(q, given[1], given[2])


def along_q(attend: Attend, given: list[Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = jvp(of_queries(attend, given), (q,), (given[3],))
    return found


def many(tensor: Tensor) -> Tensor:
    return torch.stack((tensor, 2 * tensor, tensor - 1))


def vmap_of_jvp(attend: Attend, given: list[Tensor]) -> Any:
    return vmap(lambda q, t: jvp(of_queries(attend, given), (q,), (t,)))(*map(many, given[::3]))


def jvp_of_vmap(attend: Attend, given: list[Tensor]) -> Any:
    return jvp(vmap(attend), tuple(map(many, given[:3])), tuple(map(many, given[3:])))


def gradient_of_tangent(attend: Attend, given: list[Tensor]) -> Any:
    return grad(lambda q: along_q(attend, given, q)[1].square().sum())(given[0])


def gradient_inside_of_transforms(attend: Attend, given: list[Tensor]) -> Any:
    return grad(lambda q: along_q(attend, given, q)[0].square().sum())(given[0])


def gradient_of_output(attend: Attend, given: list[Tensor]) -> Any:
    """As in consistency models, whose target has the tangent and no gradient."""
    leaves = [t.clone().requires_grad_() for t in given[:3]]
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, leaves, given[3:])
        out, tangent = forward_ad.unpack_dual(attend(*duals))
    return torch.autograd.grad((out * tangent.detach()).sum(), leaves)


def tangent_of_gradient(attend: Attend, given: list[Tensor]) -> Any:
    loss = grad(lambda q: of_queries(attend, given)(q).square().sum())
    return jvp(loss, (given[0],), (given[3],))


def second_tangent(attend: Attend, given: list[Tensor]) -> Any:
    return jvp(lambda q: along_q(attend, given, q)[1], (given[0],), (given[3],))


def small(given: list[Tensor]) -> list[Tensor]:
    return [t[:1, :3, :1] for t in given]


COMPOSITIONS: dict[str, Callable[[Attend, list[Tensor]], Any]] = {
    "jvp": lambda attend, given: jvp(attend, tuple(given[:3]), tuple(given[3:])),
    "jvp of q alone": lambda attend, given: along_q(attend, given, given[0]),
    "vmap of jvp": vmap_of_jvp,
    "jvp of vmap": jvp_of_vmap,
    "gradient of the output": gradient_of_output,
    "gradient inside of transforms": gradient_inside_of_transforms,
    "gradient of the tangent": gradient_of_tangent,
    "tangent of the gradient": tangent_of_gradient,
    "tangent of the tangent": second_tangent,
    "jacfwd": lambda attend, given: jacfwd(of_queries(attend, small(given)))(small(given)[0]),
    "hessian": lambda attend, given: hessian(
        lambda q: of_queries(attend, small(given))(q).square().sum()
    )(small(given)[0]),
}
BY_KERNEL = [
    *("jvp", "jvp of q alone", "vmap of jvp", "jvp of vmap"),
    *("gradient of the output", "gradient inside of transforms"),
]
REFUSED = [
    "gradient of the tangent",
    "tangent of the gradient",
    "tangent of the tangent",
    "hessian",
]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_cpu_differentiates_in_every_composition(name: str) -> None:
    compute = COMPOSITIONS[name]
    found, wanted = (tree_leaves(compute(attend, doubles())) for attend in (causal, by_torch))
    for one, other in zip(found, wanted, strict=True):
        assert other.abs().max() > 0.01
        close(one, other)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"window": (2, 1)},
        {"softcap": 1.5},
        {"softmax_scale": 0.7, "causal": True},
    ],
    ids=str,
)
def test_tangents_are_differences(keywords: dict[str, Any]) -> None:
    given = doubles()
    primals, tangents = tuple(given[:3]), tuple(given[3:])

    def attend(*qkv: Tensor) -> tuple[Tensor, ...]:
        return attention(*qkv, **keywords, return_lse=True)

    found, moved = jvp(attend, primals, tangents)
    for one, other in zip(found, attend(*primals), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    step = 1e-6
    ahead, behind = (
        attend(*(t + sign * step * d for t, d in zip(primals, tangents, strict=True)))
        for sign in (1, -1)
    )
    for tangent, more, less in zip(moved, ahead, behind, strict=True):
        torch.testing.assert_close(tangent, (more - less) / (2 * step), rtol=1e-5, atol=1e-7)


def test_rows_without_keys_have_no_tangent() -> None:
    q, k, v, *tangents = doubles()
    given = (q, k[:, :4], v[:, :4])
    along = (tangents[0], tangents[1][:, :4], tangents[2][:, :4])
    out, tangent = jvp(causal, given, along)
    assert not out[:, :5].any()
    assert not tangent[:, :5].any()
    assert tangent[:, 5:].abs().min() > 0


def test_padded_heads_are_differentiated_in_transforms() -> None:
    given = [t[..., :5] for t in doubles()]
    for compute in (COMPOSITIONS["jvp"], tangent_of_gradient, vmap_of_jvp):
        found, wanted = (tree_leaves(compute(attend, given)) for attend in (causal, by_torch))
        close(found, wanted)
    of_sum = grad(lambda q: causal(q, given[1], given[2]).sum())
    close(of_sum(given[0]), grad(lambda q: by_torch(q, given[1], given[2]).sum())(given[0]))


def test_padded_heads_have_tangents_and_gradients_together() -> None:
    given = [t[..., :5] for t in doubles()]
    found, wanted = (gradient_of_output(attend, given) for attend in (causal, by_torch))
    close(found, wanted)


@pytest.mark.parametrize("transform", [lambda f, q: jvp(f, (q,), (q,)), lambda f, q: f(q)])
def test_padding_hides_no_wrong_head_dimension(transform: Any) -> None:
    q, k, v, *_ = doubles()
    with pytest.raises(UnsupportedError, match="q and k must agree in d_head"):
        transform(lambda q: attention(q, k[..., :5], v[..., :5]), q)


@pytest.mark.parametrize("table", [torch.zeros(9, 9), torch.tensor(2.0)], ids=["tensor", "0-d"])
def test_the_tangent_of_a_captured_tensor_is_not_lost(table: Tensor) -> None:
    q, k, v, *_ = halves("cpu", 9)

    def of_captured(bias: Tensor) -> Tensor:
        def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
            return score + (bias[query, key] if bias.ndim else bias)

        return attention(q, k, v, score=change)

    with pytest.raises(UnsupportedError, match="a tangent and a score or mask function is given"):
        jvp(of_captured, (table,), (table,))


def test_a_call_inside_of_vmap_may_have_no_tangent() -> None:
    q, k, v, *_ = doubles()
    sinks, one = torch.zeros(3), torch.ones((), dtype=torch.float64)

    def attend(q: Tensor) -> Tensor:
        return attention(q, k, v, sinks=sinks)

    tangent = jvp(lambda factor: factor * vmap(attend)(many(q)), (one,), (one,))[1]
    close(tangent[0], attend(q))
    with pytest.raises(UnsupportedError, match="a tensor has a tangent"):
        jvp(vmap(attend), (many(q),), (many(q),))


class BelowAutograd(TorchDispatchMode):
    """Runs operators where a compiled graph may run them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_operator_below_autograd_sees_tangents(requires_grad: bool) -> None:
    q, k, v, *_ = doubles()
    q.requires_grad_(requires_grad)
    with forward_ad.dual_level(), BelowAutograd():  # type: ignore[no-untyped-call]
        close(attention(q, k, v), attention(q.detach(), k, v))
        with pytest.raises(
            (UnsupportedError, RuntimeError), match=r"has a tangent|forward mode AD"
        ):
            torch.ops.flash_attention.dense(forward_ad.make_dual(q, k), k, v)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 4), (4, 0)])
def test_empty_tensors_have_empty_tangents(seq_q: int, seq_k: int) -> None:
    q, k, v, *_ = doubles()
    given = (q[:, :seq_q], k[:, :seq_k], v[:, :seq_k])
    found, tangents = jvp(partial(attention, return_lse=True), given, given)
    for one, other in zip(found, attention(*given, return_lse=True), strict=True):
        assert torch.equal(one, other)
    assert not any(t.any() for t in tangents)


def test_a_call_beside_tangents_is_computed_as_always() -> None:
    q, k, v, *_ = doubles()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(k, k)
        plain = attention(q, forward_ad.unpack_dual(dual).primal, v)
        assert torch.equal(plain, attention(q, k, v))
        assert forward_ad.unpack_dual(plain).tangent is None


def halves(device: str, rows: int = 40) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, rows, 2, 64, generator=generator) for _ in range(6)]
    return [t.to(device, torch.bfloat16) for t in drawn]


def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.is_cuda:
        return causal(q, k, v)
    found = with_tangents_by_kernel(Call(q, k, v, causal=True))
    assert isinstance(found, Tensor)
    return found


def rounding_every_step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention_by_composition(Call(q, k, v, causal=True), q.dtype)[0]


def in_double(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_torch(q.double(), k.double(), v.double())


@pytest.mark.parametrize("device", HOPPER_DEVICES)
@pytest.mark.parametrize("name", BY_KERNEL)
def test_the_kernel_is_differentiated(name: str, device: str) -> None:
    compute, given = COMPOSITIONS[name], halves(device)
    found, wanted, rounded = (
        tree_leaves(compute(attend, given))
        for attend in (by_kernel, in_double, rounding_every_step)
    )
    for one, exact, other in zip(found, wanted, rounded, strict=True):
        error = (one.double() - exact.double()).abs().max()
        assert error <= ERROR_FACTOR * (other.double() - exact.double()).abs().max()


@pytest.mark.parametrize("device", HOPPER_DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tangents_may_have_another_dtype(dtype: torch.dtype, device: str) -> None:
    q, k, v, direction, *_ = halves(device)
    tangents = []
    for own in (direction, direction.to(dtype)):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(q, own)
            tangents.append(forward_ad.unpack_dual(by_kernel(dual, k, v)).tangent)
    assert torch.equal(*tangents)


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("name", REFUSED)
def test_a_gpu_refuses_what_its_kernel_does_not_compute(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"tangent.*SDPBackend\.MATH"):
        COMPOSITIONS[name](causal, halves("cuda"))


def test_the_tangent_of_the_kernel_is_not_differentiable() -> None:
    with pytest.raises(UnsupportedError, match="the tangent of attention was differentiated"):
        gradient_of_tangent(by_kernel, halves("cpu"))
    with pytest.raises(UnsupportedError, match=r"of the gradient of attention or of its tangent"):
        second_tangent(by_kernel, halves("cpu"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=HOPPER)])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"out": torch.empty(1, 40, 2, 64)}, "a tangent and out is given"),
        ({"sinks": torch.zeros(2)}, "a tangent and sinks is given"),
        ({"seqused_k": torch.ones(1, dtype=torch.int32)}, "a tangent and seqused_k is given"),
        ({"dropout_p": 0.5}, "a tangent and dropout_p is given"),
        ({"mask": lambda b, h, q, k: q <= k}, "a tangent and a score or mask function is given"),
        ({"return_max": True}, "a tangent and return_max is given"),
        ({"split_keys": 64}, "a tangent and split_keys is given"),
        ({"window": 5}, "window is 5; pass a tuple"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_has_no_tangent_is_refused(
    keywords: dict[str, Any], message: str, device: str
) -> None:
    q, k, v, *_ = halves(device)
    moved: dict[str, Any] = {
        n: t.to(device) if isinstance(t, Tensor) else t for n, t in keywords.items()
    }
    with pytest.raises(UnsupportedError, match=message):
        jvp(lambda q: attention(q, k, v, **moved), (q,), (q,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("rung:26", "the tangent pass has no ladder; pass a kernel config"),
        (
            "hopper(BF16, 64, 2, 128, 2): tma+specialised",
            "a config of the forward pass; pass a HopperTangentKernelConfig",
        ),
        ("hopper_tangent(BF16, 64, 3, 96, 2): lazy_8+dynamic_32", "3 consumers has 160"),
        ("tangent", "the form is 'hopper_tangent"),
    ],
)
def test_a_config_that_computes_no_tangent_is_refused(config: str, message: str) -> None:
    q, k, v, *_ = halves("cpu")
    with pytest.raises(KernelConfigError, match=message):
        jvp(lambda q: attention(q, k, v, config=config), (q,), (q,))


def test_a_config_is_emulated_on_the_cpu() -> None:
    given, small = halves("cpu"), "hopper_tangent(BF16, 64, 2, 16, 1): one_each"
    by_config = partial(attention, causal=True, config=small)
    (one, tangent), (exact, moved) = (
        jvp(attend, tuple(given[:3]), tuple(given[3:])) for attend in (by_config, in_double)
    )
    torch.testing.assert_close(one.double(), exact, rtol=0.02, atol=0.02)
    torch.testing.assert_close(tangent.double(), moved, rtol=0.02, atol=0.1)
    with pytest.raises(KernelConfigError, match="a config of the tangent pass; pass a Flash"):
        by_config(*given[:3])


def test_shapes_that_do_not_fit_are_named() -> None:
    q, k, v, *_ = doubles()
    with pytest.raises(UnsupportedError, match="q has 2 heads, k and v have 3"):
        jvp(lambda q: attention(q, k, v), (q[:, :, :2],), (q[:, :, :2],))


def test_strict_mode_refuses_what_the_gpu_would(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, *_ = halves("cpu")
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_80")
    with pytest.raises(UnsupportedError, match="on sm_80: a kernel for tangents needs sm_90"):
        jvp(lambda q: attention(q, k, v), (q,), (q,))
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_90")
    jvp(lambda q: attention(q, k, v), (q,), (q,))
    wide = torch.zeros(1, 9, 1, 136, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="tangents have head dimensions up to 128"):
        jvp(lambda q: attention(q, wide, wide), (wide,), (wide,))
