# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors of e4m3, their results judged, and configs of all variants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.sm90.fp8.config import HopperFp8KernelConfig
from flash_attention.reference.judge import check_lse, check_output
from flash_attention.reference.oracle import oracle

E4M3 = torch.float8_e4m3fn
MOST_RMS = 3e-2  # of the error relative to the output, for normal data
MOST_RMS_LINEAR = 3.5e-2  # if half of the weights are piecewise linear


def most_rms(config: HopperFp8KernelConfig) -> float:
    """The largest error of a config's outputs."""
    return MOST_RMS_LINEAR if config.linear_groups else MOST_RMS


def config(text: str) -> HopperFp8KernelConfig:
    """The config with a short form without its prefix."""
    parsed = parse_kernel_config(f"hopper_fp8{text}")
    assert isinstance(parsed, HopperFp8KernelConfig)
    return parsed


OVERLAPPED = config("(BF16, 128, 2, 64, 2): q_in_registers+overlap+tensor_sums+promote_2+dynamic_4")
SERIAL = config("(BF16, 64, 3, 96, 2): q_buffers_2+tensor_sums+promote_1+persistent")
WIDE = config("(BF16, 256, 2, 64, 2): overlap+promote_2+persistent")
LINEAR = config(
    "(BF16, 128, 2, 64, 2): q_in_registers+overlap+tensor_sums+linear_2+promote_2+persistent"
)
PLAIN = config("(FP16, 128, 2, 32, 1): one_each")


@dataclass(frozen=True)
class Case:
    """The shapes of a call, its keywords, and what makes it special."""

    seq_q: int = 200
    seq_k: int = 330
    heads: int = 2
    heads_k: int = 1
    batch: int = 1
    d: int = 0  # 0: that of the config
    d_v: int = 0
    keywords: tuple[tuple[str, Any], ...] = ()
    per_head: bool = True  # descale factors
    sharp: bool = False  # the maximum of a row keeps rising
    scale: float = 1.0  # of all scores
    mean: float = 0.0  # of v
    whole: bool = False  # q and k hold numbers from -2 to 2, whose products 14 bits add exactly
    v_transposed: bool = False  # the keys of v are contiguous

    def call(self, d_head: int, device: str = "cpu") -> Call:
        """The call with tensors of at most `d_head` columns."""
        return _made(self, self.d or d_head, device)


@cache
def _made(case: Case, d: int, device: str) -> Call:
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q = drawn(case.batch, case.seq_q, case.heads, d)
    k = drawn(case.batch, case.seq_k, case.heads_k, d)
    v = drawn(case.batch, case.seq_k, case.heads_k, case.d_v or d) + case.mean
    if case.whole:
        q, k = q.round().clamp(-2, 2), k.round().clamp(-2, 2)
    if case.sharp:
        q *= 3
        k[:, ::97] *= 3
    shape = (case.batch, case.heads_k) if case.per_head else (1,)
    factors = [torch.rand(shape, generator=generator) + 0.5 for _ in range(3)]
    factors[0] *= case.scale
    keywords = dict(case.keywords)
    if "seqused_k" in keywords:
        keywords["seqused_k"] = torch.tensor(keywords["seqused_k"], dtype=torch.int32).to(device)
        for entry, used in enumerate(keywords["seqused_k"].tolist()):
            k[entry, used:] = v[entry, used:] = torch.nan  # what is not used may hold anything
    if "sinks" in keywords:
        keywords["sinks"] = drawn(case.heads).to(device)
    names = ("q_descale", "k_descale", "v_descale")
    q, k, v = (t.to(E4M3).to(device) for t in (q, k, v))
    v = with_contiguous_keys(v) if case.v_transposed else v
    keywords |= {n: f.to(device) for n, f in zip(names, factors, strict=True)}
    return Call(q, k, v, **keywords, return_lse=True)


def with_contiguous_keys(v: Tensor) -> Tensor:
    """Copy v so that its keys are contiguous. NaN follows the last one, up to 16 bytes."""
    batch, keys, heads, d = v.shape
    room = torch.full((batch, heads, d, -(-keys // 16) * 16), torch.nan, device=v.device).to(E4M3)
    return room[..., :keys].permute(0, 3, 1, 2).copy_(v)


def assert_right(call: Call, out: Tensor, lse: Tensor | None, most_rms: float = MOST_RMS) -> None:
    """Judge the results of a call."""
    check = check_output(out, *call[:3], **call.keywords())
    assert check.ok, check
    assert relative_rms(call, out) <= most_rms
    if lse is not None:
        of_lse = check_lse(lse, call.q, call.k, **call.keywords())
        assert of_lse.ok, of_lse


def relative_rms(call: Call, out: Tensor) -> float:
    """The root mean square error of an output, relative to that of the exact one."""
    exact = oracle(*call[:3], **call.keywords())
    return float((out.double() - exact).norm() / exact.norm())


CASES = {
    "gqa": (OVERLAPPED, Case(heads=4, heads_k=2)),
    "causal": (OVERLAPPED, Case(300, 430, keywords=(("causal", True),))),
    "fewer keys than queries": (OVERLAPPED, Case(300, 130, keywords=(("causal", True),))),
    "window": (OVERLAPPED, Case(300, 430, keywords=(("window", (90, 20)),))),
    "softcap": (OVERLAPPED, Case(70, 130, keywords=(("softcap", 3.0),))),
    "sinks": (OVERLAPPED, Case(70, 130, keywords=(("sinks", True),))),
    "seqused_k": (
        OVERLAPPED,
        Case(140, 330, batch=4, keywords=(("seqused_k", (330, 0, 65, 128)), ("causal", True))),
    ),
    "serial, seqused_k": (SERIAL, Case(140, 330, batch=2, keywords=(("seqused_k", (1, 200)),))),
    "sharp": (OVERLAPPED, Case(130, 700, sharp=True)),
    "narrow": (OVERLAPPED, Case(70, 130, d=96, d_v=48, per_head=False)),
    "one key": (OVERLAPPED, Case(1, 1)),
    "serial": (SERIAL, Case(200, 330, batch=2)),
    "serial, causal": (SERIAL, Case(330, 330, keywords=(("causal", True),))),
    "serial, sharp": (SERIAL, Case(130, 700, sharp=True)),
    "d 256": (WIDE, Case(140, 330)),
    "d 256, causal, sharp": (WIDE, Case(140, 430, keywords=(("causal", True),), sharp=True)),
    "linear": (LINEAR, Case(140, 330)),
    "linear, causal": (LINEAR, Case(300, 430, keywords=(("causal", True),))),
    "linear, sharp": (LINEAR, Case(130, 700, sharp=True)),
    "no switch": (PLAIN, Case(70, 130)),
    "no switch, sharp": (PLAIN, Case(70, 330, sharp=True)),
}
"""A config, and a call that it runs."""
