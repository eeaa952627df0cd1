# SPDX-License-Identifier: Apache-2.0
"""The scores S, P, the log-sum-exp and O of a kernel after one key block, and the correct values.

The kernel is not changed. It runs on the keys up to that key block. An identity matrix as V of the
last block makes it return P of that block, from which S follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.forward import forward
from flash_attention.kernel_configs import GivenConfig, config_for
from flash_attention.launch.emulate import emulate
from ptx_emulator import Finding


@dataclass(frozen=True)
class State:
    """The values after one key block, in float64. S and P are those of that block."""

    s: Tensor  # [rows, keys], scaled scores
    lse: Tensor  # [rows], log-sum-exp of the keys so far
    p: Tensor  # [rows, keys], exp(s - lse)
    o: Tensor  # [rows, d_head]


class Inspection:
    """A kernel after one key block. `step` counts key blocks in the order the kernel visits them.

    q, k and v are (batch, seq, heads, d_head) tensors on the CPU or a GPU. `row` selects the block
    of B_r query rows that contains it, `head` its head and `batch` its sequence.
    """

    def __init__(
        self,
        config: GivenConfig,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        step: int,
        row: int = 0,
        head: int = 0,
        batch: int = 0,
    ) -> None:
        config = config_for(config, Problem.of(Call(q, k, v)))
        blocks = -(-k.shape[1] // config.B_c)
        _check_index("key block", step, blocks)
        for name, index, dim in (("row", row, 1), ("head", head, 2), ("batch", batch, 0)):
            _check_index(name, index, q.shape[dim])
        self.config = config
        self.step = step
        self.rows = _block(row // config.B_r, config.B_r, q.shape[1])
        self.keys = _block(
            blocks - 1 - step if config.visits_descending else step, config.B_c, k.shape[1]
        )
        first = self.keys.start if config.visits_descending else 0
        end = k.shape[1] if config.visits_descending else self.keys.stop
        self.q = q[batch, None, self.rows.start : self.rows.stop, head, None]
        self.k, self.v = (t[batch, None, first:end, head, None] for t in (k, v))
        self._before = self.keys.start - first  # keys that precede the block among those visited
        self.findings: tuple[Finding, ...] = ()

    @cached_property
    def reference(self) -> State:
        """The correct values, computed on the CPU."""
        q, k, v = (t[0, :, 0].double().cpu() for t in (self.q, self.k, self.v))
        scores = q.shape[1] ** -0.5 * q @ k.T
        lse = scores.logsumexp(dim=1)
        weights = (scores - lse[:, None]).exp()
        block = slice(self._before, self._before + len(self.keys))
        return State(scores[:, block], lse, weights[:, block], weights @ v)

    @cached_property
    def kernel(self) -> State:
        """The kernel's values. S is NaN where P is 0."""
        o, p, lse = self._run(self.v, checks=True), self._weights(), self._lse()
        return State(torch.where(p == 0, torch.nan, p.log() + lse[:, None]), lse, p, o)

    @property
    def s_precision(self) -> Tensor:
        """The uncertainty of the kernel's S, because P is rounded to 16 bits twice."""
        limits = torch.finfo(self.q.dtype)
        return limits.eps * (1 + limits.smallest_normal / self.kernel.p)

    def _weights(self) -> Tensor:
        """Return O with an identity as the block's V and zeros elsewhere: column d is key d's."""
        parts = []
        for some in torch.arange(len(self.keys)).split(self.v.shape[3]):
            v = _like(self.v).zero_()
            v[0, self._before + some, 0, some - some[0]] = 1
            parts.append(self._run(v)[:, : len(some)])
        return torch.cat(parts, dim=1)

    def _run(self, v: Tensor, checks: bool = False) -> Tensor:
        """Return O [rows, d_head] in float64 on the CPU. `checks` keeps the emulator's findings."""
        o = _like(self.q).fill_(torch.nan)
        if self.q.is_cuda:
            forward(self.config, self.q, self.k, v, o)
        else:
            emulation = emulate(self.config, self.q, self.k, v, o, checks=checks)
            self.findings += emulation.findings
        return o[0, :, 0].double().cpu()

    def _lse(self) -> Tensor:
        """Compute the lse in a separate run, since storing it may change the compiled kernel."""
        tensors, o = (self.q, self.k, self.v), _like(self.q)
        if self.q.is_cuda:
            lse: Tensor | None = forward(self.config, *tensors, o, return_lse=True)[1]
        else:
            lse = emulate(self.config, *tensors, o, return_lse=True, checks=False).lse
        assert lse is not None
        return lse[0, 0].double().cpu()


def _block(index: int, size: int, count: int) -> range:
    return range(index * size, min((index + 1) * size, count))


def _like(tensor: Tensor) -> Tensor:
    """Allocate a tensor with the same shape and strides."""
    shape, strides = tensor.shape, tensor.stride()
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise UnsupportedError(f"{name} {index} does not exist; there are {count}, from 0 on")
