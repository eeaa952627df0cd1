# SPDX-License-Identifier: Apache-2.0
"""Training steps on a stand-in for a GPU: how a backward pass is found, and what it is told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flash_attention import UnsupportedError, attention
from flash_attention.call.backward_call import BackwardCall
from flash_attention.families.backward_args import VIEWS, BackwardKernelArgs
from flash_attention.launch import driver, plan
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plans import forget_plans, plan_for
from tests.launch.calls import call_with
from tests.launch.stand_in import Gpus, gpu_of_the_cpu
from tests.launch.test_kin import forbidden, functions
from tests.test_saved_tensors import LAYOUTS

CONFIGS: dict[str, Any] = {"config": "rung:27", "backward_config": "rung:10"}
ADDING = "rung:14"  # which adds dq up in any order
HEADS, D = 2, 128


class Read:
    """What the kernels of a backward pass would read: its tensors by name, and its arguments."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.arguments = BackwardKernelArgs()
        self.launches = 0

    def note(self, arguments: BackwardKernelArgs, rows: int, batch: int) -> None:
        self.arguments, self.launches = arguments, self.launches + 1
        for name in VIEWS[:5]:
            stride = getattr(arguments, f"{name}_stride")
            strides = (stride.batch, stride.seq, stride.head, 1)
            self.tensors[name] = strided(
                getattr(arguments, name), (batch, rows, HEADS, D), strides, torch.float16
            )
        of_lse = (arguments.lse_batch_stride, arguments.lse_head_stride, 1)
        for name in ("lse", "dlse"):
            if at := getattr(arguments, name):
                self.tensors[name] = strided(at, (batch, HEADS, rows), of_lse, torch.float32)


def strided(
    at: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """A copy of what memory holds."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(at)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides).clone()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return gpu_of_the_cpu(monkeypatch)


@pytest.fixture
def read(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> Read:
    """What the last backward pass was told, whose kernels share their arguments."""
    made, launch = Read(), driver.launch_kernel

    def note(config: Any, function: str, parameters: int, extra: int) -> tuple[int]:
        done: tuple[int] = launch(config, function, parameters, extra)
        if function.startswith("backward_prepare"):
            at = gpus.launches[-1].arguments_at
            copied = ctypes.string_at(at, ctypes.sizeof(BackwardKernelArgs))
            arguments = BackwardKernelArgs.from_buffer_copy(copied)
            made.note(arguments, arguments.total_q or arguments.seq_len_q, batch_of(arguments))
        return done

    monkeypatch.setattr(driver, "launch_kernel", note)
    return made


def batch_of(arguments: BackwardKernelArgs) -> int:
    return 1 if arguments.total_q else int(arguments.batch)


def leaves(*shape: int) -> list[Tensor]:
    return [torch.randn(*shape, HEADS, D).half().requires_grad_() for _ in range(3)]


def packed(lengths: list[int]) -> dict[str, Any]:
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return {
        **{"cu_seqlens_q": starts, "max_seqlen_q": max(lengths)},
        **{"cu_seqlens_k": starts, "max_seqlen_k": max(lengths)},
    }


def step(
    given: list[Tensor], do: Tensor, dlse: Tensor | None = None, **options: Any
) -> tuple[Any, tuple[Tensor | None, ...]]:
    """The outputs of a call, and its gradients."""
    asked: dict[str, Any] = {**CONFIGS, **options}
    out, lse = attention(*given, return_lse=True, **asked)
    with torch.no_grad():  # no kernel runs
        for tensor in (out, lse):
            tensor.data.copy_(torch.arange(tensor.numel()).view(tensor.shape) % 997)
    wanted = [tensor for tensor in given if tensor.requires_grad]
    results = (out,) if dlse is None else (out, lse)
    of = (do,) if dlse is None else (do, dlse)
    return (out, lse), torch.autograd.grad(results, wanted, of)


def assert_read(read: Read, given: list[Tensor], do: Tensor, outputs: Any) -> None:
    """The last pass read the tensors of its forward pass."""
    out, lse = outputs
    named = {**dict(zip("qkv", given, strict=True)), "d_o": do, "o": out, "lse": lse}
    for name, tensor in named.items():
        found = read.tensors[name].view(tensor.shape)
        assert torch.equal(found, tensor.detach()), name


def named(called: list[str]) -> list[str]:
    """The names of functions, without those that encode a tensor map of a new address."""
    new = ("launcher.encode", "tensor_map.__missing__")
    return [name.partition(".")[2] for name in called if name not in new]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("options", [{}, packed([70, 30])], ids=["dense", "packed"])
def test_a_known_step_passes_few_functions(options: dict[str, Any]) -> None:
    given = leaves(100) if options else leaves(1, 100)
    do = torch.zeros_like(given[0])
    detached = [tensor.detach() for tensor in given]
    out, lse = attention(*detached, config=CONFIGS["config"], return_lse=True, **options)
    plan_for(BackwardCall(do, call_with(*detached, out, **options), lse))  # of the fastest kernel
    outs: list[Tensor] = []
    for _ in range(4):  # plans are made, found by key, noted, and kept
        outs.clear()
        forward = functions(
            lambda: outs.append(attention(*given, config=CONFIGS["config"], **options))
        )
        backward = functions(lambda: torch.autograd.grad(outs[0], given, do))
    assert named(backward) == [
        *("backward", "run_partner", *(("_have_lengths",) if options else ())),
        *("fill", *(("_put_given",) if options else ()), "launch"),
    ]
    assert named(forward) == [
        *("attention", "is_traced", "needs_grad", "run_recorded", "known_plan"),
        *("kind_and_tensors", *(("find",) if options else ()), "forward", "run", "prepare"),
        *(*(("_put_given",) if options else ()), "launch"),
    ]


def test_new_lengths_make_no_plan_and_their_kernels_read_what_is_theirs(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lengths in ([70, 30], [34, 9]):  # of many rows, and of few
        given = leaves(sum(lengths))
        step(given, torch.randn_like(given[0]), **packed(lengths))
    for name in ("choose", "check_any_call"):
        monkeypatch.setattr(plan, name, forbidden)
    monkeypatch.setattr(Launcher, "__init__", forbidden)
    for lengths in ([5, 9, 200], [64] * 6, [5, 9, 200], [33]):
        given = leaves(sum(lengths))
        do = torch.randn_like(given[0])
        outputs, gradients = step(given, do, **packed(lengths))
        assert_read(read, given, do, outputs)
        seen = read.arguments
        assert (seen.batch, seen.total_q, seen.total_k) == (len(lengths), *[sum(lengths)] * 2)
        assert (seen.seq_len_q, seen.seq_len_k) == (max(lengths), max(lengths))
        assert [seen.dq, seen.dk, seen.dv] == [g.data_ptr() for g in gradients if g is not None]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [[], [20, 16]], ids=["dense", "packed"])
def test_tensors_that_hooks_have_exchanged_are_read_with_their_own_strides(
    lengths: list[int], layout: str, read: Read
) -> None:
    options = packed(lengths) if lengths else {}
    given = leaves(36) if lengths else leaves(2, 18)
    do = torch.randn_like(given[0])
    for _ in range(4):
        step(given, do, **options)
    known = read.launches
    with saved_tensors_hooks(lambda tensor: tensor, LAYOUTS[layout]):
        outputs, _ = step(given, do, **options)
    assert read.launches == known + 1
    assert_read(read, given, do, outputs)


def test_a_log_sum_exp_with_gaps_is_copied(read: Read) -> None:
    given, options = leaves(36), packed([20, 16])
    do = torch.randn_like(given[0])
    for _ in range(4):
        step(given, do, **options)
    gaps = LAYOUTS["with gaps"]
    with saved_tensors_hooks(lambda t: t, lambda t: gaps(t) if t.ndim == 2 else t):
        outputs, _ = step(given, do, **options)
    assert_read(read, given, do, outputs)


def test_packed_tensors_that_hooks_return_with_fewer_rows_are_refused(read: Read) -> None:
    given, options = leaves(36), packed([20, 16])
    do = torch.randn_like(given[0])
    for _ in range(4):
        step(given, do, **options)
    known = read.launches
    with (
        saved_tensors_hooks(lambda t: t, lambda t: t[:-1] if t.ndim == 3 else t),
        pytest.raises(UnsupportedError, match="do has"),
    ):
        step(given, do, **options)
    assert read.launches == known


def half_the_columns(shape: torch.Size) -> Tensor:
    return torch.randn(*shape[:-1], 2 * shape[-1])[..., : shape[-1]].half()


DO: dict[str, Callable[[torch.Size], Tensor]] = {
    "half the columns": half_the_columns,
    "expanded": lambda shape: torch.randn(shape[-1]).half().expand(shape),
    "in columns": lambda shape: torch.randn(shape).half().mT.contiguous().mT,
    "negative": lambda shape: torch._neg_view(torch.randn(shape).half()),
}


@pytest.mark.parametrize("kind", DO)
@pytest.mark.parametrize("lengths", [[], [20, 16]], ids=["dense", "packed"])
def test_a_gradient_with_other_strides_is_read_with_them_or_copied(
    lengths: list[int], kind: str, read: Read
) -> None:
    options = packed(lengths) if lengths else {}
    given = leaves(36) if lengths else leaves(2, 18)
    plain = torch.randn_like(given[0]).detach()
    for do in (plain, plain, plain, DO[kind](plain.shape), plain):
        outputs, _ = step(given, do, **options)
        assert_read(read, given, do, outputs)


def test_every_set_of_wanted_gradients_has_a_plan_of_its_own(read: Read) -> None:
    q, k, v = leaves(2, 18)
    do, dlse = torch.randn_like(q).detach(), torch.randn(2, HEADS, 18)
    for _ in range(4):
        for given in ([q, k, v], [q.detach(), k, v], [q, k.detach(), v.detach()]):
            for of_lse in (None, dlse):
                outputs, gradients = step(given, do, of_lse)
                assert_read(read, given, do, outputs)
                found = iter(gradients)
                for name, tensor in zip(("dq", "dk", "dv"), given, strict=True):
                    gradient = next(found) if tensor.requires_grad else None
                    at = None if gradient is None else gradient.data_ptr()
                    assert getattr(read.arguments, name) == at
                assert (read.arguments.dlse is None) == (of_lse is None)
                if of_lse is not None:
                    assert torch.equal(read.tensors["dlse"], of_lse)


def test_a_graph_that_is_kept_is_differentiated_again(read: Read) -> None:
    q, k, v = leaves(2, 18)
    for _ in range(3):
        out = attention(q, k, v, **CONFIGS)
        do, other = torch.randn(2, *out.shape).half()
        for each in (do, other):
            torch.autograd.grad(out, (q, k, v), each, retain_graph=True)
            assert torch.equal(read.tensors["d_o"], each)
            assert torch.equal(read.tensors["q"], q.detach())


def test_determinism_that_is_asked_of_torch_later_has_another_plan(read: Read) -> None:
    q, k, v = leaves(2, 18)
    do = torch.zeros_like(q).detach()
    for _ in range(4):
        out = attention(q, k, v, config=CONFIGS["config"], backward_config=ADDING)
        torch.autograd.grad(out, q, do)
    out = attention(q, k, v, config=CONFIGS["config"], backward_config=ADDING)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(ValueError, match="adds dq up in any order"):
            torch.autograd.grad(out, q, do)
    finally:
        torch.use_deterministic_algorithms(False)
    assert read.launches == 4


def gpu_step(lengths: list[int], kind: str, seed: int) -> tuple[Tensor, ...]:
    """The gradients of a step on a GPU, by kernels that repeat their bits."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (sum(lengths), 4, D) if lengths else (2, 200, 4, D)
    given = torch.randn(3, *shape, generator=generator, device="cuda").bfloat16().unbind()
    given = tuple(tensor.requires_grad_() for tensor in given)
    options: dict[str, Any] = {
        n: t.cuda() if isinstance(t, Tensor) else t for n, t in packed(lengths or [1]).items()
    }
    out = attention(*given, causal=True, deterministic=True, **(options if lengths else {}))
    do = torch.randn(out.shape, generator=generator, device="cuda").bfloat16()
    if kind == "expanded":
        do = do[..., :1].expand_as(do)
    elif kind == "in columns":
        do = do.mT.contiguous().mT
    return torch.autograd.grad(out, given, do)


STEPS = [
    (lengths, kind, seed)
    for seed, lengths in enumerate(([], [300, 100], [7, 200, 70], [64] * 9))
    for kind in ("plain", "expanded", "in columns", "plain")
]


@pytest.mark.gpu
def test_steps_that_alternate_have_the_bits_of_first_ones() -> None:
    wanted = []
    for asked in STEPS:
        forget_plans()
        wanted.append(gpu_step(*asked))
    for _ in range(4):
        for asked, gradients in zip(STEPS, wanted, strict=True):
            assert all(map(torch.equal, gpu_step(*asked), gradients)), asked


@pytest.mark.gpu
def test_threads_that_train_at_once_have_the_bits_of_one() -> None:
    wanted = [gpu_step(*asked) for asked in STEPS]

    def run(thread: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream() if thread % 2 else torch.cuda.current_stream()):
            turns = [(thread + i) % len(STEPS) for i in range(60)]
            found = [(i, gpu_step(*STEPS[i])) for i in turns]
            torch.cuda.synchronize()
        return all(all(map(torch.equal, mine, wanted[i])) for i, mine in found)

    with ThreadPoolExecutor(6) as workers:
        assert all(workers.map(run, range(6)))
