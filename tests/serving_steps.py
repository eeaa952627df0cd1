# SPDX-License-Identifier: Apache-2.0
"""Steps of a serving engine: given ones, random ones, and the judgement of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.results import E4M3
from flash_attention.reference.judge import check_lse, check_output, cu_seqlens


@dataclass(frozen=True)
class Step:
    """A step of a serving engine: packed queries of sequences over pages, or padded ones."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    page: int = 16
    heads: int = 4
    heads_k: int = 2
    d: int = 64
    padded: bool = False
    sinks: bool = False
    keywords: tuple[tuple[str, Any], ...] = (("causal", True),)

    def call(self, place: str = "cpu", seed: int = 0) -> Call:
        """The call with random tensors, pages in random order, and NaN behind the last keys."""
        random = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random).to(place, torch.bfloat16)

        batch, width = len(self.queries), -(-max(self.keys) // self.page)
        pages = [-(-count // self.page) for count in self.keys]
        order = torch.randperm(sum(pages) + 2, generator=random).to(torch.int32)
        table = torch.full((batch, width), 1 << 20, dtype=torch.int32)  # no page beyond the last
        k, v = (draw(sum(pages) + 2, self.page, self.heads_k, self.d) for _ in range(2))
        for sequence, (used, count) in enumerate(zip(pages, self.keys, strict=True)):
            own, order = order[:used], order[used:]
            table[sequence, :used] = own
            if count % self.page:
                k[own[-1], count % self.page :] = v[own[-1], count % self.page :] = torch.nan
        rows = (batch, max(self.queries)) if self.padded else (sum(self.queries),)
        starts: dict[str, Any] = {
            "cu_seqlens_q": cu_seqlens(self.queries, place),
            "max_seqlen_q": max(self.queries),
        }
        sinks = torch.randn(self.heads, generator=random).to(place) if self.sinks else None
        return Call(
            draw(*rows, self.heads, self.d),
            k,
            v,
            **({} if self.padded else starts),
            block_table=table.to(place),
            seqused_k=torch.tensor(self.keys, dtype=torch.int32, device=place),
            sinks=sinks,
            return_lse=True,
            **dict(self.keywords),
        )


def of_8_bits(call: Call, *, q_8_bit: bool) -> Call:
    """The call with a cache of 8 bits, and queries too if they are asked for."""
    one = torch.ones(1, device=call.q.device)
    k, v = (tensor.nan_to_num().to(E4M3) for tensor in (call.k, call.v))
    call = call._replace(k=k, v=v, k_descale=one, v_descale=one)
    return call._replace(q=call.q.to(E4M3), q_descale=one) if q_8_bit else call


def random_step(seed: int) -> Step:
    """A step with lengths of up to 32k keys: decodes, chunks, or a mixture of both."""
    draw = torch.Generator().manual_seed(seed)

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=draw))

    def length(most: int) -> int:
        return min(most, int(2 ** (torch.rand((), generator=draw) * 15)) - 1)

    heads_k, d = 2 ** number(0, 3), (64, 128, 256)[number(0, 2)]
    batch = 2 ** number(0, 5)
    queries = [number(0, 1) or 1 for _ in range(batch)]
    for _ in range(number(0, 2)):
        queries[number(0, batch - 1)] = number(0, 400)
    keys = [max(length(32767), 0 if number(0, 9) == 0 else n) for n in queries]
    keywords: list[tuple[str, Any]] = [("causal", True)]
    if number(0, 2) == 0:
        keywords = [("window", (number(0, 2000), number(0, 5)))]
    if number(0, 3) == 0:
        keywords.append(("softcap", 20.0))
    page = (1, 2, 3, 8, 16, 16, 16, 32, 64, 128, 256)[number(0, 10)]
    if not any(queries) or not any(keys):
        queries[0], keys[0] = 1, 5
    return Step(
        *(tuple(queries), tuple(keys), page, heads_k * 2 ** number(0, 3), heads_k, d),
        sinks=number(0, 1) == 1,
        keywords=tuple(keywords),
    )


def assert_right(call: Call, out: Tensor, lse: Tensor | None) -> None:
    keywords: dict[str, Any] = {
        k: v for k, v in call.keywords().items() if not k.startswith("max_seqlen")
    }
    check = check_output(out, *call[:3], **keywords)
    assert check.ok, str(check)
    assert lse is not None
    seen = check_lse(lse, *call[:2], **keywords)
    assert seen.ok, str(seen)
