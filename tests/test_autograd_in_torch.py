# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention in what torch offers: checkpoints, transforms, graphs, hooks, threads."""

from __future__ import annotations

import gc
import operator
import threading
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from flash_attention import UnsupportedError, attention, masks
from tests.devices import DEVICES
from tests.gradients import dense, leaves


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "sinks", "seqused_k"])
def test_a_change_in_place_is_autograds_own_error(name: str, device: str) -> None:
    q, k, v = (2 * t for t in dense(device))
    sinks = 2 * torch.ones(4, device=device, requires_grad=True)
    used = torch.tensor([20, 3], dtype=torch.int32, device=device)
    options: dict[str, Any] = {"sinks": sinks, "seqused_k": used}
    out, lse = attention(q, k, v, **options, return_lse=True)
    loss = (2 * out.float()).sum() + (2 * lse).sum()
    named = {"q": q, "k": k, "v": v, "out": out, "lse": lse} | options
    with torch.no_grad():
        named[name].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_refused_in_words() -> None:
    message = "only attention itself is differentiable; for second derivatives call torch's"
    q, k, v = dense()
    (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    assert dq.requires_grad
    with pytest.raises(UnsupportedError, match=message):
        dq.sum().backward()
    do = torch.ones_like(q, requires_grad=True)
    (dv,) = torch.autograd.grad(attention(q.detach(), k.detach(), v), v, do, create_graph=True)
    with pytest.raises(UnsupportedError, match=message):
        dv.sum().backward()
    with pytest.raises(UnsupportedError, match=message):
        torch.func.grad(lambda v: torch.func.grad(lambda v: attention(q, k, v).sum())(v).sum())(v)
    out, *_ = torch.ops.flash_attention.dense(q, k, v)
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match=message):
        dq.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_that_is_kept_gives_the_same_gradients_twice(device: str) -> None:
    given = dense(device)
    out = attention(*given, deterministic=True)
    first = torch.autograd.grad(out.sum(), given, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(out.sum(), given)))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out.sum(), given)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_recompute_the_same(use_reentrant: bool, device: str) -> None:
    given = dense(device)
    out = attention(*given, causal=True, deterministic=True)
    wanted = torch.autograd.grad(out.square().sum(), given)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, deterministic=True)

    out = checkpoint(layer, *given, use_reentrant=use_reentrant)
    assert isinstance(out, Tensor)
    out.square().sum().backward()
    assert all(
        torch.equal(t.grad, exact)
        for t, exact in zip(given, wanted, strict=True)
        if t.grad is not None
    )
    assert all(t.grad is not None for t in given)


def test_hooks_of_saved_tensors_see_all_that_is_kept() -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    given = dense()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i]):
        out = attention(*given)
    wanted = torch.autograd.grad(attention(*given).sum(), given)
    assert [tuple(t.shape) for t in packed] == [
        *(tuple(t.shape) for t in (*given, out)),
        (2, 4, 12),
    ]
    assert all(map(torch.equal, torch.autograd.grad(out.sum(), given), wanted))


def test_nothing_is_kept_when_the_graph_is_gone() -> None:
    q, k, v = (2 * t for t in dense())
    out = attention(q, k, v)
    kept = [weakref.ref(t) for t in (q, k, v)]
    del q, k, v
    out.sum().backward()
    del out
    gc.collect()
    assert [each() for each in kept] == [None] * 3


def test_threads_have_gradients_of_their_own() -> None:
    tensors = [dense() for _ in range(4)]
    wanted = [torch.autograd.grad(attention(*t, causal=True).sum(), t) for t in tensors]
    found: dict[int, tuple[Tensor, ...]] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = torch.autograd.grad(attention(*tensors[i], causal=True).sum(), tensors[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, exact in enumerate(wanted):
        assert all(map(torch.equal, found[i], exact))


def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True, softcap=2.0)


def test_transforms_of_torch_func_differentiate() -> None:
    q, k, v = dense(dtype=torch.float32)
    wanted = torch.autograd.grad(function(q, k, v).square().sum(), (q, k, v))
    detached = [t.detach() for t in (q, k, v)]
    close = torch.testing.assert_close

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v).square().sum()

    for mine, exact in zip(
        torch.func.grad(loss, argnums=(0, 1, 2))(*detached), wanted, strict=True
    ):
        close(mine, exact)
    out, vjp, *_ = torch.func.vjp(function, *detached)
    for mine, exact in zip(vjp(2 * out), wanted, strict=True):
        close(mine, exact)
    many = torch.stack((detached[0], 2 * detached[0]))
    each = torch.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, *detached[1:])
    close(each[0], wanted[0])
    close(each[1], torch.func.grad(loss)(2 * detached[0], *detached[1:]))
    one, rest = detached[0][:1, :2], [t[:1] for t in detached[1:]]
    jacobian = torch.func.jacrev(function)(one, *rest)
    exact = torch.autograd.functional.jacobian(lambda q: function(q, *rest), one)
    close(jacobian, exact)


def test_transforms_of_torch_func_differentiate_the_lse() -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = attention(q, k, v, return_lse=True)
        return out.square().sum() + lse.square().sum()

    given = dense(dtype=torch.float32)
    wanted = torch.autograd.grad(loss(*given), given)
    found = torch.func.grad(loss, argnums=(0, 1, 2))(*(t.detach() for t in given))
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact)


def per_column(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.func.jacrev(lambda q: function(q, k[:1], v[:1]).sum(1))(q[:1])


def of_lse(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def loss(sinks: Tensor) -> Tensor:
        return attention(q, k, v, sinks=sinks, return_lse=True)[1].sum()

    return torch.func.grad(loss)(torch.ones(q.shape[2]))


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.grad(lambda *tensors: function(*tensors).square().sum(), argnums=(0, 1, 2)),
        lambda q, k, v: torch.func.vjp(function, q, k, v)[1](q),
        per_column,
        of_lse,
    ],
    ids=["grad", "vjp", "jacrev", "grad of lse"],
)
@pytest.mark.parametrize("trace", ["compile", "make_fx"])
def test_transforms_of_torch_func_can_be_traced(trace: str, transformed: Any) -> None:
    if trace == "compile" and torch.__version__ < "2.11":
        pytest.skip("torch.compile follows no autograd function in a transform before torch 2.11")
    torch._dynamo.reset()
    given = [t.detach() for t in dense(dtype=torch.float32)]
    traced: Any
    if trace == "compile":
        traced = torch.compile(transformed, backend="aot_eager", fullgraph=True)
    else:
        traced = make_fx(transformed)(*given)
    found, wanted = traced(*given), transformed(*given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert all(bool(t.any()) for t in (wanted if isinstance(wanted, tuple) else [wanted]))


def test_torch_func_refuses_a_captured_tensor_that_changed() -> None:
    ids, q = torch.zeros(9, dtype=torch.int32), torch.randn(1, 9, 1, 8)
    made: Any = torch.func.vjp(lambda q: attention(q, q, q, mask=masks.documents(ids)), q)
    out, pull_back = made
    leaf = q.clone().requires_grad_()
    attention(leaf, leaf, leaf, mask=masks.documents(ids)).backward(out)
    torch.testing.assert_close(pull_back(out)[0], leaf.grad)
    ids[4:] = 1
    with pytest.raises(UnsupportedError, match=r"captured tensor 0 .* changed in place"):
        pull_back(out)


def test_a_compiled_call_is_the_operator_alone() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def seen(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(function, backend=seen, fullgraph=True)(*dense())
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.flash_attention.dense.default, operator.getitem]


def test_a_refusal_comes_through_transforms_of_torch_func() -> None:
    q, k, v = (t.detach() for t in dense())
    many = torch.stack((q, q))[..., :3, :]
    gradients = torch.vmap(torch.func.grad(lambda *t: attention(*t).sum()), in_dims=(0, None, None))
    with pytest.raises(UnsupportedError, match="q has 3 heads, k and v have 2"):
        gradients(many, k, v)


def test_graphs_of_gradients_have_the_backward_operator() -> None:
    def gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(q, k, v).sum(), (q, k, v))

    given = dense()
    graph = make_fx(gradients)(*given)
    names = [str(node.target) for node in graph.graph.nodes]
    assert names.count("flash_attention.dense_backward.default") == 1
    for mine, exact in zip(graph(*given), gradients(*given), strict=True):
        torch.testing.assert_close(mine, exact)


@pytest.mark.parametrize("where", ["fake", "meta"])
def test_tensors_without_memory_have_gradients_without_values(where: str) -> None:
    given = dense(d_v=8)
    mode = FakeTensorMode()
    without = [
        t.detach().to("meta") if where == "meta" else mode.from_tensor(t.detach()) for t in given
    ]
    without = [t.requires_grad_() for t in without]
    out = attention(*without)
    for gradient, tensor in zip(torch.autograd.grad(out.sum(), without), given, strict=True):
        assert (gradient.shape, gradient.stride(), gradient.dtype) == (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_trains(device: str) -> None:
    torch.manual_seed(0)
    project = torch.nn.Linear(32, 96, device=device)
    x = torch.randn(2, 9, 32, device=device)

    def loss(precision: torch.dtype | None) -> Tensor:
        with torch.autocast(device, precision, enabled=precision is not None):
            q, k, v = project(x).view(2, 9, 3, 2, 16).unbind(2)
            if precision is not None:
                out: Tensor = attention(q, k, v, causal=True)
                assert out.dtype == precision
            else:
                q, k, v = (t.transpose(1, 2) for t in (q, k, v))
                out = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return out.float().square().sum()

    parameters = list(project.parameters())
    found = torch.autograd.grad(loss(torch.bfloat16), parameters)
    for mine, exact in zip(found, torch.autograd.grad(loss(None), parameters), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, exact, rtol=0, atol=0.03 * float(exact.abs().max()))


@pytest.mark.gpu
def test_a_training_step_can_be_captured_and_replayed() -> None:
    q, k, v = given = dense("cuda")
    weights = torch.randn_like(q)

    def step() -> tuple[Tensor, ...]:
        out = attention(q, k, v, causal=True, deterministic=True)
        return torch.autograd.grad(out, given, weights)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in (*given, weights):
            tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    assert all(map(torch.equal, captured, step()))


def test_a_checkpoint_may_keep_the_operator_and_recompute_the_rest() -> None:
    given = dense()
    wanted = torch.autograd.grad(function(*given).sin().sum(), given)
    seen: list[Any] = []

    def policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(operator)
        kept = operator is torch.ops.flash_attention.dense.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    out = checkpoint(
        lambda *tensors: function(*tensors).sin(),
        *given,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, policy),
    )
    assert isinstance(out, Tensor)
    found = torch.autograd.grad(out.sum(), given)
    assert torch.ops.flash_attention.dense.default in seen
    assert all(map(torch.equal, found, wanted))


def test_compiled_checkpoints_and_lengths_that_change() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda *tensors: checkpoint(function, *tensors, use_reentrant=False),
        backend=counter,
        fullgraph=True,
    )
    q, k, v = dense()
    for length in (7, 9, 5):
        given = leaves(q[:, :length], k, v)
        found = torch.autograd.grad(compiled(*given).sum(), given)
        wanted = torch.autograd.grad(function(*given).sum(), given)
        assert all(map(torch.equal, found, wanted))
    assert counter.frame_count == 2


def test_compiled_autograd_finds_the_backward_operator() -> None:
    given = dense()
    wanted = torch.autograd.grad(function(*given).sum(), given)
    torch._dynamo.reset()
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        function(*given).sum().backward()
    assert all(
        t.grad is not None and torch.equal(t.grad, d) for t, d in zip(given, wanted, strict=True)
    )
