# SPDX-License-Identifier: Apache-2.0
"""Call: its key, its keywords, and the functions that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    Function,
    attention,
    backward,
    backward_timed,
    check,
    emulate,
    explain,
    forward,
    forward_timed,
    masks,
)
from flash_attention.call.call import (
    BACKWARD_KEYWORDS,
    DESCALES,
    EXTRAS,
    KEYWORDS,
    Call,
    Keywords,
    call_of,
)
from flash_attention.call.merge_call import MergeCall
from flash_attention.compat.flash_attn import flash_attn_func
from flash_attention.errors import UnsupportedError

TENSORS = Call._fields[:13]
OPTIONAL = TENSORS[3:]
CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
OTHER_OPTIONS: dict[str, Any] = {
    "causal": True,
    "window": (3, None),
    "softmax_scale": 0.5,
    "softcap": 2.0,
    "dropout_p": 0.5,
    "max_seqlen_q": 4,
    "max_seqlen_k": 4,
    "split_keys": 64,
    "batch_invariant": True,
    "function": Function(mask=masks.causal()),
    "return_max": True,
    "return_lse": True,
}


def spread(tensor: Tensor) -> Tensor:
    """The same elements with a gap after every row, or after every element of a vector."""
    if tensor.ndim == 1:
        return tensor.repeat_interleave(2)[::2]
    return torch.nn.functional.pad(tensor, (0, 8))[..., :-8]


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda t: t[..., :-1],
    "stride": spread,
    "dtype": lambda t: t.to(torch.float64),
    "device": lambda t: t.to("meta"),
    "sign": torch._neg_view,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "check": check,
    "explain": explain,
    "forward": partial(forward, CONFIG),
    "forward_timed": partial(forward_timed, CONFIG),
    "backward": lambda q, k, v, **given: backward(CONFIG, q, q, k, v, q, q, **given),
    "emulate": partial(emulate, CONFIG),
}


def everything() -> Call:
    """A call with every tensor that there can be."""
    q, k, v, out = (torch.zeros(2, 4, 2, 8) for _ in range(4))
    sinks = torch.zeros(2)
    cu_seqlens_q, cu_seqlens_k, seqused_k = (torch.zeros(3, dtype=torch.int32) for _ in range(3))
    rng_state = torch.zeros(2, dtype=torch.int64)
    block_table = torch.zeros(2, 5, dtype=torch.int32)
    dq, dk, dv = (torch.zeros(2, 3) for _ in range(3))
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_k)
    return Call(q, k, v, out, sinks, *lengths, rng_state, block_table, dq, dk, dv)


def changed(call: Call, **fields: Any) -> Call:
    return call._replace(**fields)


def layout(tensor: Tensor) -> dict[str, object]:
    return {
        "shape": tensor.shape,
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "sign": tensor.is_neg(),
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TENSORS)
def test_the_key_knows_the_layout_of_every_tensor(name: str, change: str) -> None:
    call = everything()
    given: Tensor = getattr(call, name)
    other = CHANGES[change](given)
    assert [what for what, of in layout(given).items() if layout(other)[what] != of] == [change]
    assert changed(call, **{name: other}).key() != call.key()
    alone = changed(Call(*call[:4]), **{name: given})
    assert changed(alone, **{name: other}).key() != alone.key()


@pytest.mark.parametrize("name", OPTIONAL)
def test_the_key_knows_which_tensors_are_given(name: str) -> None:
    call, alone = everything(), Call(*everything()[:3])
    assert changed(call, **{name: None}).key() != call.key()
    with_one = changed(alone, **{name: getattr(call, name)})
    others = [changed(alone, **{n: getattr(call, name)}) for n in OPTIONAL if n != name]
    assert with_one.key() not in [alone.key(), *(other.key() for other in others)]


def test_the_key_knows_every_option() -> None:
    assert set(TENSORS) | set(OTHER_OPTIONS) == set(Call._fields)
    for call in (everything(), Call(*everything()[:4]), Call(*everything()[:3])):
        keys = [changed(call, **{name: value}).key() for name, value in OTHER_OPTIONS.items()]
        assert len({call.key(), *keys}) == 1 + len(OTHER_OPTIONS)


def test_calls_that_differ_in_their_data_share_a_key() -> None:
    for call in (everything(), Call(*everything()[:3])):
        other = changed(call, **{n: t + 1 for n in TENSORS if (t := getattr(call, n)) is not None})
        assert (other.key(), hash(other.key())) == (call.key(), hash(call.key()))


def test_extras_are_the_tensors_that_are_there_by_name() -> None:
    call = everything()
    assert list(call.extras()) == list(EXTRAS) == list(TENSORS[4:])
    assert all(call.extras()[name] is getattr(call, name) for name in EXTRAS)
    assert list(call._replace(sinks=None, seqused_k=None, v_descale=None).extras()) == [
        "cu_seqlens_q",
        "cu_seqlens_k",
        "rng_state",
        "block_table",
        "q_descale",
        "k_descale",
    ]
    assert Call(*call[:3], out=call.out).extras() == {}


def test_what_is_asked_can_be_passed_on_with_other_tensors() -> None:
    call = changed(everything(), **OTHER_OPTIONS)
    q, k, v = (torch.zeros(1, 3, 1, 8) for _ in range(3))
    other = Call(q, k, v, **call.keywords())
    assert (other.q is q, other.k is k, other.v is v, other.out) == (True, True, True, None)
    assert all(getattr(other, name) is getattr(call, name) for name in KEYWORDS[:-2])
    assert set(call.keywords()) == set(Keywords.__annotations__)


@pytest.mark.parametrize("followed", [Call, MergeCall])
def test_what_torch_compile_follows_has_no_properties(followed: type[Any]) -> None:
    """torch.compile of torch 2.9 and 2.10 does not follow those of named tuples."""
    assert [name for name, value in vars(followed).items() if isinstance(value, property)] == []


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "sinks", *DESCALES])
def test_a_gradient_may_be_asked_of_any_floating_tensor(name: str) -> None:
    assert not everything().needs_grad()
    assert not Call(*everything()[:3]).needs_grad()
    call = everything()
    getattr(call, name).requires_grad_()
    assert call.needs_grad()


def test_the_keywords_are_the_fields_of_a_call() -> None:
    fields = get_type_hints(Call)
    own = {"out": Tensor | None, "return_max": bool, "return_lse": bool}
    keywords = get_type_hints(Keywords)
    assert set(keywords) & set(own) == set()
    assert keywords | own == {name: fields[name] for name in Call._fields[3:]}
    assert set(KEYWORDS) == set(keywords) | {"return_max", "return_lse"}


def test_every_function_shows_the_same_keywords() -> None:
    defaults = {name: Call._field_defaults[name] for name in KEYWORDS}
    for function in (attention, check, explain, forward, forward_timed, emulate):
        shown = inspect.signature(function).parameters
        assert {name: shown[name].default for name in KEYWORDS} == defaults
        assert {shown[name].kind for name in KEYWORDS} == {inspect.Parameter.KEYWORD_ONLY}
        assert inspect.Parameter.VAR_KEYWORD not in {each.kind for each in shown.values()}
    shown = inspect.signature(attention).parameters
    assert shown["window"].annotation == "Window | None"
    own = ["out", "score", "mask", "config", "backward_config", "deterministic", "validate"]
    assert list(shown) == ["q", "k", "v", *own, *KEYWORDS]
    for gradients in (backward, backward_timed):
        assert set(inspect.signature(gradients).parameters) >= set(BACKWARD_KEYWORDS)


def test_what_looks_at_a_call_takes_all_its_arguments() -> None:
    asked = inspect.signature(attention).parameters.items()
    for function in (explain, check):
        assert asked <= inspect.signature(function).parameters.items()


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_keyword_is_told_the_nearest_one(name: str) -> None:
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
    for given, hint in (
        ("casual", r"; did you mean 'causal'\?"),
        ("scale", r"; did you mean 'softmax_scale'\?"),
        ("temperature", ""),
    ):
        message = rf"^{name}\(\) got an unexpected keyword argument '{given}'{hint}$"
        with pytest.raises(TypeError, match=message):
            FUNCTIONS[name](q, q, q, softcap=1.0, **{given: True})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_keywords_of_other_libraries_are_told_what_to_do_instead(name: str) -> None:
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
    for given, instead in (
        (
            "attn_mask",
            "no mask tensors here; pass causal=True, a window, or sequences of their own",
        ),
        ("key_padding_mask", r"pass seqused_k=key_padding_mask\.sum.*bert_padding\.unpad_input"),
        ("num_splits", "pass split_keys, how many keys a split has, or batch_invariant=True"),
        (
            "alibi_slopes",
            r"pass function=flash_attention\.Function\(flash_attention\.scores\.alibi\(slopes",
        ),
    ):
        message = rf"^{name}\(\) got an unexpected keyword argument '{given}': .*{instead}"
        with pytest.raises(TypeError, match=message):
            FUNCTIONS[name](q, q, q, **{given: None})


def test_what_key_padding_masks_are_told_is_right() -> None:
    q, k, v = (torch.randn(2, 6, 2, 16) for _ in "qkv")
    key_padding_mask = torch.arange(6) < torch.tensor([[4], [6]])
    out = attention(q, k, v, seqused_k=key_padding_mask.sum(-1, dtype=torch.int32))
    mask = key_padding_mask[:, None, None]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    torch.testing.assert_close(out, wanted)


def test_a_call_is_made_of_what_a_function_was_given() -> None:
    whole = everything()
    keywords = {name: getattr(whole, name) for name in KEYWORDS} | OTHER_OPTIONS
    made = call_of("attention", whole.q, whole.k, whole.v, whole.out, keywords)
    assert all(map(lambda a, b: a is b, made[:9], whole[:9]))
    assert {name: getattr(made, name) for name in OTHER_OPTIONS} == OTHER_OPTIONS
    with pytest.raises(TypeError, match=r"attention\(\) .* argument 'out'"):
        call_of("attention", whole.q, whole.k, whole.v, None, {"out": whole.out})


@pytest.mark.parametrize(
    "window", [(torch.tensor(3), 2), (3, torch.tensor(2, dtype=torch.int32)), (3, 2)], ids=str
)
def test_sides_of_a_window_may_be_tensors_without_dimensions(window: Any) -> None:
    q = torch.randn(1, 8, 2, 16)
    made = call_of("attention", q, q, q, None, {"window": window})
    assert made.window == (3, 2)
    assert {type(side) for side in made.window} == {int}
    assert torch.equal(attention(q, q, q, window=window), attention(q, q, q, window=(3, 2)))
    given: Any = flash_attn_func(q, q, q, window_size=window)
    assert torch.equal(given, attention(q, q, q, window=(3, 2)))


@pytest.mark.parametrize("side", [torch.tensor(3.0), torch.tensor([3])], ids=["float", "vector"])
def test_other_tensors_are_no_sides_of_a_window(side: Any) -> None:
    q = torch.randn(1, 8, 2, 16)
    with pytest.raises(UnsupportedError, match="each side is a whole number"):
        attention(q, q, q, window=(side, 0))
