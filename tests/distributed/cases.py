# SPDX-License-Identifier: Apache-2.0
"""Calls of distributed attention, judged beside one process: what each rank runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import flash_attention
from flash_attention import Function, distributed
from flash_attention.call.backward_call import Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.distributed import Plan, make_plan, shard, unshard
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import check_lse, check_output

NAMES = ("o", "lse", "dq", "dk", "dv", "dsinks")


@dataclass(frozen=True)
class Case:
    """A problem. `lengths` are those of packed documents, or one, of a batch."""

    name: str
    lengths: tuple[int, ...]
    batch: int = 0  # 0 means packed
    grouped: bool = False  # fewer heads of k and v
    sinks: bool = False
    d: int = 16
    d_v: int = 16
    placement: str = "balanced"
    function: Callable[[str], Function] | None = None  # on a device
    options: dict[str, Any] = field(default_factory=dict)


def of_places(device: str) -> Function:
    """A function that is wrong if a coordinate is, and that hides some rows on some ranks."""
    slopes = torch.linspace(-0.1, 0.3, 16, device=device)
    ids = torch.arange(64, dtype=torch.int32, device=device) // 15
    return Function(
        lambda score, batch, head, query, key: (
            score * (1 - 0.2 * batch) - slopes[head] * (query - key)
        ),
        lambda batch, head, query, key: (ids[query] == ids[key]) | ((key + head) % 11 == 0),
    )


REQUIRED = ("full", "causal", "window", "documents", "GQA", "sinks", "fewer rows than ranks")
CASES: tuple[Case, ...] = (
    Case("full", (61,), batch=2),
    Case("causal", (61,), batch=2, options={"causal": True}),
    Case("window", (61,), batch=2, options={"causal": True, "window": (9, 0)}),
    Case("both-sided window", (61,), batch=1, options={"window": (7, 4)}),
    Case("documents", (5, 1, 40, 23), options={"causal": True}),
    Case("full documents", (17, 30, 9)),
    Case("windowed documents", (5, 40, 23), options={"causal": True, "window": (6, 0)}),
    Case("GQA", (50,), batch=1, grouped=True, options={"causal": True}),
    Case("GQA of documents", (33, 20), grouped=True, options={"causal": True}),
    Case("sinks", (50,), batch=2, sinks=True, options={"causal": True}),
    Case("contiguous", (50,), batch=1, placement="contiguous", options={"causal": True}),
    Case("softcap and scale", (40,), batch=1, options={"softcap": 3.0, "softmax_scale": 0.3}),
    Case("head dimensions", (40,), batch=1, d=12, d_v=24, options={"causal": True}),
    Case("fewer rows than ranks", (2,), batch=1, options={"causal": True}),
    Case("function", (61,), batch=2, function=of_places, sinks=True, options={"causal": True}),
    Case("function without a mask", (61,), batch=1, function=of_places),
    Case("function of documents", (5, 1, 40, 23), grouped=True, function=of_places),
    Case("function of causal documents", (40, 23), function=of_places, options={"causal": True}),
)


class Problem:
    """The tensors of a case, the same on all ranks."""

    def __init__(self, case: Case, ranks: int, device: str, dtype: torch.dtype) -> None:
        heads = 2 * ranks
        heads_k = heads if not case.grouped else 4 if ranks == 8 else ranks
        drawn = torch.Generator().manual_seed(len(case.name))
        batch = (case.batch,) if case.batch else ()

        def draw(heads: int, d: int) -> Tensor:
            drawn_as = torch.randn(*batch, sum(case.lengths), heads, d, generator=drawn)
            return drawn_as.to(device, dtype).requires_grad_()

        self.case, self.dim = case, len(batch)
        self.function = None if case.function is None else case.function(device)
        self.q, self.k = draw(heads, case.d), draw(heads_k, case.d)
        self.v = draw(heads_k, case.d_v)
        self.do = torch.randn(*self.v.shape[:-2], heads, case.d_v, generator=drawn)
        self.do = self.do.to(device, dtype)
        self.dlse = torch.randn(*batch, heads, sum(case.lengths), generator=drawn).to(device)
        self.sinks = torch.randn(heads, generator=drawn) if case.sinks else None
        if self.sinks is not None:
            self.sinks = self.sinks.to(device).requires_grad_()

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the same call in one process."""
        found = {**self.case.options, "sinks": self.sinks, "function": self.function}
        if not self.case.batch:
            starts = torch.tensor([0, *accumulate(self.case.lengths)], dtype=torch.int32)
            starts, longest = starts.to(self.q.device), max(self.case.lengths)
            found |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
            found |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
        return found

    def plan(self, ranks: int) -> Plan:
        """The plan of the case."""
        asked = {n: o for n, o in self.case.options.items() if n in ("causal", "window")}
        return make_plan(self.case.lengths, ranks, placement=self.case.placement, **asked)

    @cached_property
    def alone(self) -> list[Tensor]:
        """The results of one process."""
        o, lse = flash_attention.attention(self.q, self.k, self.v, return_lse=True, **self.keywords)
        return self._with_gradients(o, lse, self.do, self.dlse, [self.q, self.k, self.v])

    def of_rank(self, mesh: DeviceMesh, schedule: str) -> list[Tensor]:
        """The results of this rank's rows."""
        plan = self.plan(mesh.size())

        def mine(tensor: Tensor, dim: int = self.dim) -> Tensor:
            return shard(tensor.detach(), plan, mesh, dim)

        q, k, v = (mine(t).requires_grad_() for t in (self.q, self.k, self.v))
        o, lse = distributed.attention(
            *(q, k, v, mesh),
            plan=plan,
            schedule=schedule,
            return_lse=True,
            deterministic=True,
            sinks=self.sinks,
            function=self.function,
            **self.case.options,
        )
        of_rows = (mine(self.do), mine(self.dlse, self.dlse.ndim - 1))
        return self._with_gradients(o, lse, *of_rows, [q, k, v])

    def together(self, mesh: DeviceMesh, found: list[Tensor]) -> list[Tensor]:
        """The results of all ranks of a mesh."""
        plan = self.plan(mesh.size())
        dims = (self.dim, self.dlse.ndim - 1, *[self.dim] * 3)
        whole = [unshard(t, plan, mesh, d) for t, d in zip(found, dims, strict=False)]
        for dsinks in found[5:]:
            total = dsinks.clone()
            for dim in range(mesh.ndim):
                dist.all_reduce(total, group=mesh.get_group(dim))
            whole.append(total)
        return whole

    def _with_gradients(
        self, o: Tensor, lse: Tensor, do: Tensor, dlse: Tensor, leaves: list[Tensor]
    ) -> list[Tensor]:
        leaves = leaves + ([] if self.sinks is None else [self.sinks])
        # A row that sees no key has no finite log-sum-exp to differentiate.
        gradients = torch.autograd.grad([o, lse], leaves, [do, dlse.masked_fill(lse.isinf(), 0)])
        return [o.detach(), lse.detach(), *gradients]

    def wrong(self, found: list[Tensor]) -> list[str]:
        """What differs from one process, or breaks the tolerance rule of 16-bit results."""
        if self.q.dtype == torch.float32:
            pairs = zip(NAMES, found, self.alone, strict=False)
            return [name for name, mine, wanted in pairs if not _close(mine, wanted)]
        o, lse, *gradients = found
        tensors = [t.detach() for t in (self.q, self.k, self.v)]
        keywords = self.judged.keywords()
        checks: dict[str, Any] = {
            "o": check_output(o, *tensors, **keywords),
            "lse": check_lse(lse, *tensors[:2], **keywords),
            **self.judge.check(Gradients(*gradients)),
        }
        return [f"{name}: {check}" for name, check in checks.items() if not check.ok]

    @cached_property
    def judged(self) -> Call:
        """The call in one process, without autograd."""
        q, k, v = (t.detach() for t in (self.q, self.k, self.v))
        sinks = None if self.sinks is None else self.sinks.detach()
        return Call(q, k, v, **self.keywords)._replace(sinks=sinks)

    @cached_property
    def judge(self) -> GradientJudge:
        wanted = Wanted(dsinks=self.sinks is not None)
        return GradientJudge(self.judged, self.do, self.dlse, wanted)


def _close(mine: Tensor, wanted: Tensor) -> bool:
    return mine.dtype == wanted.dtype and torch.allclose(mine, wanted, rtol=2e-5, atol=2e-5)


def compare(problem: Problem, mesh: DeviceMesh, schedule: str) -> list[str]:
    """Compute twice. Returns what is wrong; all ranks have the results of all."""
    mine = problem.of_rank(mesh, schedule)
    again = problem.of_rank(mesh, schedule)
    wrong = [
        f"{name} differs between two runs"
        for name, one, other in zip(NAMES, mine, again, strict=False)
        if not torch.equal(one, other)
    ]
    found = problem.together(mesh, mine)
    return wrong + (problem.wrong(found) if dist.get_rank() == 0 else [])


def meshes(ranks: int, device: str) -> list[tuple[str, DeviceMesh]]:
    """Every schedule with its meshes."""
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("ring", (ranks,)),
        ("all-gather", (ranks,)),
        ("heads", (ranks,)),
        ("auto", (ranks,)),
    ]
    if ranks % 2 == 0:
        shapes += [("ring", (ranks // 2, 2)), ("all-gather", (2, ranks // 2))]
    made = {shape: init_device_mesh(device, shape) for shape in {shape for _, shape in shapes}}
    return [(schedule, made[shape]) for schedule, shape in shapes]


def chosen(ranks: int, device: str, share: int) -> list[tuple[Case, torch.dtype, str, DeviceMesh]]:
    """What some ranks run: on a GPU every case in every way, on the CPU one in `share` of these.

    With a share of 2, two and four ranks together run every case in every way, and each type with
    half of them. Eight ranks, more than a machine has cores, run each of some cases in one way.
    """
    ways = meshes(ranks, device)
    if device != "cpu":
        return [(case, torch.bfloat16, *way) for case, way in product(CASES, ways)]
    cases = CASES if ranks <= 4 else [case for case in CASES if case.name in REQUIRED]
    step = share if ranks <= 4 else len(ways)
    found = []
    for (row, case), (column, way) in product(enumerate(cases), enumerate(ways)):
        if (row + column + ranks // 3) % step == 0:
            dtype = torch.float32 if ranks > 4 or (row + column // 2) % 2 else torch.bfloat16
            found.append((case, dtype, *way))
    return found


def run_cases(rank: int, ranks: int, device: str = "cpu", share: str = "1") -> dict[str, str]:
    """Run cases, each with several schedules. Returns what is wrong, by case."""
    problems: dict[tuple[str, torch.dtype], Problem] = {}
    wrong = {}
    for case, dtype, schedule, mesh in chosen(ranks, device, int(share)):
        if (case.name, dtype) not in problems:
            problems[case.name, dtype] = Problem(case, ranks, device, dtype)
        name = f"{case.name}, {dtype}, {schedule} on {tuple(mesh.mesh.shape)}"
        try:
            found = compare(problems[case.name, dtype], mesh, schedule)
        except Exception:
            found = [traceback.format_exc()]
        if found:
            wrong[name] = "\n".join(found)
    return wrong
