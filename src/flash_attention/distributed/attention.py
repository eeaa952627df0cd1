# SPDX-License-Identifier: Apache-2.0
"""attention of a sequence whose rows are divided among ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from flash_attention.attention import with_function
from flash_attention.call.call import Call, Window, call_of, check_keywords, with_keywords_in
from flash_attention.call.checks import check_call, check_meaning
from flash_attention.call.function import Function
from flash_attention.call.options import check_switch
from flash_attention.distributed.agreement import REFUSED, agree
from flash_attention.distributed.block import Score
from flash_attention.distributed.dtensors import local_rows, plan_of, wrapped
from flash_attention.distributed.heads import HeadExchange, check_heads
from flash_attention.distributed.layout import Circle, check_mesh, circles, rank_in
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, grouped
from flash_attention.distributed.ring import Ring, ring_attention
from flash_attention.distributed.rounds import HEADS, rounds_of
from flash_attention.distributed.schedules import AUTO, check_schedule, choose
from flash_attention.distributed.transport import connect
from flash_attention.errors import FlashAttentionError, UnsupportedError
from flash_attention.families.padding import needs_padding, padded
from flash_attention.families.registry import check_limits
from flash_attention.program.trace import MaskFunction, ScoreFunction

if TYPE_CHECKING:
    from typing_extensions import Unpack

KEYWORDS = ("causal", "window", "softmax_scale", "softcap", "sinks", "function", "return_lse")


class _Asked(NamedTuple):
    """The arguments of one call, with tensors as (batch, rows, heads, d)."""

    call: Call
    plan: Plan
    mesh: DeviceMesh
    schedule: str
    deterministic: bool
    documents: bool  # are packed, and what functions count as sequences

    @property
    def mask(self) -> Mask:
        return Mask.of(self.call.causal, self.call.window)


class Keywords(TypedDict, total=False):
    """The keywords that `flash_attention.attention` takes too, for type checkers."""

    causal: bool
    window: Window | None
    softmax_scale: float | None
    softcap: float
    sinks: Tensor | None
    function: Function | None


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mesh: DeviceMesh,
    *,
    plan: Plan | None = None,
    schedule: str = "auto",
    deterministic: bool = False,
    check_ranks: bool = True,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    return_lse: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mesh: DeviceMesh,
    *,
    plan: Plan | None = None,
    schedule: str = "auto",
    deterministic: bool = False,
    check_ranks: bool = True,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    return_lse: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Tensor, Tensor]: ...


@with_keywords_in(KEYWORDS)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mesh: DeviceMesh,
    *,
    plan: Plan | None = None,
    schedule: str = "auto",
    deterministic: bool = False,
    check_ranks: bool = True,
    score: ScoreFunction | None = None,
    mask: MaskFunction | None = None,
    **keywords: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute self-attention of a sequence whose rows are divided among the ranks of a mesh.

    It is differentiable in q, k, v and sinks. Every rank of the mesh makes the same call with its
    own rows, and if one calls backward, all must.

    - `q`, `k`, `v`: this rank's rows, (batch, rows, heads, d), (batch, rows, heads_k, d) and
      (batch, rows, heads_k, d_v), or packed documents without the batch dimension. `shard` takes
      them out of whole tensors. They may be DTensors that are sharded along the sequence.
    - `mesh`: a torch DeviceMesh. If it has two dimensions, heads are exchanged along the second,
      and the schedule is that of the first.
    - `plan`: which rows each rank holds, and the lengths of packed documents, from `make_plan`. By
      default the rows of all ranks form one sequence, equally many on each rank, in order.
    - `schedule`: "ring" sends keys and values while other ones are computed with. "all-gather"
      brings them together first. "heads" exchanges rows for heads. "auto" takes the one that a
      model of their cost finds fastest.
    - `causal`, `window`, `softmax_scale`, `softcap`, `sinks`, `return_lse`, `deterministic`: as in
      `flash_attention.attention`.
    - `score`, `mask`, `function`: as in `flash_attention.attention`. They see places in the whole
      sequence, or in the document, whose number is `batch` then. Tensors that they capture are
      those of the whole problem on every rank, and have no gradients.
    - `check_ranks`: compare a digest of shapes, dtypes, options and plan between all ranks before
      anything is sent. If the mesh has only NCCL groups, that waits for the GPU.

    Returns the output of this rank's rows, or (out, lse). The gradient of sinks is the sum over
    this rank's queries; sum it over ranks as those of other replicated parameters.

    Raises UnsupportedError on all ranks if the arguments of one are not supported, or differ from
    those of the others. If a rank is gone, the error of the process group ends the others, after
    its time-out at the latest.
    """
    if score is not None or mask is not None:
        keywords = with_function(score, mask, keywords)
    check_keywords("attention", keywords, KEYWORDS)
    call = call_of("attention", q, k, v, None, keywords)
    out, lse = _outside_of_graphs(
        call, plan, check_mesh(mesh), schedule, deterministic, check_ranks
    )
    if q.ndim == 3:
        out, lse = out[0], lse[0]
    if isinstance(q, DTensor):
        rows = q.shape[-3]
        out, lse = wrapped(out, q, -3, rows), wrapped(lse, q, -1, rows)
    return (out, lse) if call.return_lse else out


@torch.compiler.disable  # type: ignore[untyped-decorator]  # messages are in no graph
def _outside_of_graphs(
    call: Call,
    plan: Plan | None,
    mesh: DeviceMesh,
    schedule: str,
    deterministic: bool,
    check_ranks: bool,
) -> tuple[Tensor, Tensor]:
    return _compute(_agreed(call, plan, mesh, schedule, deterministic, check_ranks))


def _agreed(
    call: Call,
    plan: Plan | None,
    mesh: DeviceMesh,
    schedule: str,
    deterministic: bool,
    check_ranks: bool,
) -> _Asked:
    """Check a call on this rank, and then that the other ranks make the same one."""
    refusal: FlashAttentionError | None = None
    try:
        check_switch("check_ranks", check_ranks)
        asked = _read(call, plan, mesh, schedule, deterministic)
        facts = _facts(asked)
    except FlashAttentionError as error:
        refusal, facts = error, {REFUSED: str(error)}
    if check_ranks:
        try:
            agree([circle.group for circle in circles(mesh)], facts)
        except UnsupportedError as error:
            raise refusal or error from None
    if refusal is not None:
        raise refusal
    return asked


def _read(
    call: Call, plan: Plan | None, mesh: DeviceMesh, schedule: str, deterministic: bool
) -> _Asked:
    """Check a call on this rank alone."""
    check_switch("deterministic", deterministic)
    check_schedule(schedule, mesh)
    q, k, v = (local_rows(name, t, mesh) for name, t in zip("qkv", call[:3], strict=True))
    if plan is None:
        plan = plan_of(call.q, mesh)
    documents = call.q.ndim == 3
    call = call._replace(q=q, k=k, v=v)
    _check_captured(call.function)
    sinks = call.sinks.detach() if isinstance(call.sinks, Tensor) else call.sinks
    alone = call._replace(q=q.detach(), k=k.detach(), v=v.detach(), sinks=sinks)
    if q.is_cuda and not needs_padding(q, v):
        check_limits(*check_call(alone))
    else:
        check_meaning(alone)
    asked = _Asked(call, plan, mesh, schedule, bool(deterministic), documents)
    _check_rows(asked)
    return asked


def _check_captured(function: Function | None) -> None:
    if isinstance(function, Function) and function.needs_grad() and torch.is_grad_enabled():
        raise UnsupportedError(
            "a captured tensor of the score or mask function requires grad, and there are no"
            " gradients of captured tensors where ranks share a sequence; capture tensor.detach()"
        )


def _check_rows(asked: _Asked) -> None:
    plan, mesh = asked.plan, asked.mesh
    if plan.ranks != mesh.size():
        raise UnsupportedError(
            f"the plan is for {plan.ranks} ranks, the mesh has {mesh.size()}; make the plan with"
            " mesh.size()"
        )
    rank = rank_in(mesh)
    for name, tensor in zip("qkv", asked.call[:3], strict=True):
        if tensor.shape[1] != plan.rows[rank]:
            raise UnsupportedError(
                f"{name} has {tensor.shape[1]} rows, and rank {rank} has {plan.rows[rank]} by the"
                f" plan ({plan}); pass shard({name}, plan, mesh)"
            )
    exchanging = mesh.size(1) if mesh.ndim == 2 else mesh.size() if asked.schedule == HEADS else 1
    if exchanging > 1:
        check_heads(asked.call.q.shape[2], asked.call.k.shape[2], exchanging)


def _facts(asked: _Asked) -> dict[str, str]:
    """What must be the same on all ranks."""
    call = asked.call
    batch, _, heads, d = call.q.shape
    *_, heads_k, d_v = call.v.shape
    facts: dict[str, Any] = {
        "the shape (batch, heads, heads_k, d, d_v)": (batch, heads, heads_k, d, d_v),
        "the dtype": call.q.dtype,
        "the device": call.q.device.type,
        "the plan": asked.plan,
        "schedule": asked.schedule,
        "the mask (left, right)": tuple(asked.mask),
        "softmax_scale": call.softmax_scale,
        "softcap": float(call.softcap),
        "whether there are sinks": call.sinks is not None,
        "the function (program, numbers, shapes)": _described(call.function),
        "return_lse": bool(call.return_lse),
        "deterministic": asked.deterministic,
        "whether gradients are recorded": torch.is_grad_enabled() and call.needs_grad(),
    }
    return {name: str(value) for name, value in facts.items()}


def _described(function: Function | None) -> object:
    if function is None:
        return None
    shapes = [tuple(tensor.shape) for tensor in function.tensors]
    return function.program.digest, function.traced.numbers, shapes


def _compute(asked: _Asked) -> tuple[Tensor, Tensor]:
    columns = asked.call.v.shape[-1]
    if needs_padding(asked.call.q, asked.call.v):
        asked = asked._replace(call=padded(asked.call))
    for circle in circles(asked.mesh):
        connect(circle.group, asked.call.q.device)
    schedule = asked.schedule
    if schedule == AUTO:
        schedule = choose(asked.call, asked.plan, asked.mask, tuple(asked.mesh.mesh.shape))
    *inner, outer = circles(asked.mesh)
    if schedule == HEADS:
        out, lse = _over_heads(asked, outer, None, schedule)
    elif inner:
        out, lse = _over_heads(asked, inner[0], outer, schedule)
    else:
        out, lse = _over_rows(asked, asked.plan, outer, schedule)
    return out[..., :columns], lse


def _over_heads(
    asked: _Asked, inner: Circle, outer: Circle | None, schedule: str
) -> tuple[Tensor, Tensor]:
    """Exchange rows for heads within a group, compute, and exchange back."""
    call, pieces = asked.call, asked.plan.pieces
    exchange = HeadExchange(
        inner.group, inner.rank, tuple(pieces[rank] for (rank,) in inner.members)
    )
    sinks = call.sinks if call.sinks is None else call.sinks[exchange.own(call.q.shape[2])]
    q, k, v = map(exchange.to_heads, call[:3])
    within = asked._replace(call=call._replace(q=q, k=k, v=v, sinks=sinks))
    plan = grouped(asked.plan, exchange.ranks)
    out, lse = _over_rows(within, plan, outer, schedule, exchange.own(call.q.shape[2]).start)
    out = exchange.to_rows(out)
    if call.return_lse:
        lse = exchange.to_rows(lse.mT[..., None])[..., 0].mT
    return out, lse


def _over_rows(
    asked: _Asked,
    plan: Plan,
    circle: Circle | None,
    schedule: str,
    first_head: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute with the keys of all ranks of a group."""
    call = asked.call
    group, rank = (None, 0) if circle is None else (circle.group, circle.rank)
    may_pack, placed = call.q.shape[0] == 1, call.function is not None
    rounds = rounds_of(plan, asked.mask, rank, schedule, may_pack, placed)
    score = Score(
        *(call.softmax_scale, float(call.softcap)), call.function, first_head, asked.documents
    )
    ring = Ring(group, rank, rounds, score, asked.deterministic)
    return ring_attention(ring, *call[:3], call.sinks)
