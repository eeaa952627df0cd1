# SPDX-License-Identifier: Apache-2.0
"""The drawings of docs/primer.md. What they show is computed: lanes, banks, sums, steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.render.blocks import replace_block, wrap
from benchmarks.render.svg import COLOURS, GREY, Canvas

DOCUMENT = Path("docs/primer.md")
FOLDER = Path("docs/primer")
BLUE, ORANGE, GREEN, PINK, PURPLE, YELLOW, *_ = COLOURS


@dataclass(frozen=True)
class Drawing:
    """A picture, its title, and what it shows in words: the alternative text."""

    name: str
    title: str
    told: str
    draw: Callable[[], Canvas]

    @property
    def file(self) -> str:
        return self.draw().svg(self.title, self.told)

    @property
    def markdown(self) -> str:
        return f"![{self.told}](primer/{self.name}.svg)"


def tiles() -> Canvas:
    """One CTA has a tile of Q and walks over the blocks of K and V."""
    c = Canvas(760, 330)
    c.words(20, 28, "one CTA: 128 rows of Q, and all keys in blocks of 32", bold=True)
    c.words(60, 62, "Q")
    for i in range(4):
        c.box(60, 74 + 50 * i, 80, 50, BLUE if i == 1 else "#ffffff", "tile" if i == 1 else "")
    c.words(250, 62, "S = Q Kᵀ, never stored")
    for j in range(6):
        fill = ORANGE if j == 2 else "#eeeeee" if j < 2 else "#ffffff"
        c.box(250 + 40 * j, 124, 40, 50, fill, ("done", "done", "now", "", "", "")[j])
        c.box(250 + 40 * j, 224, 40, 30, fill, f"K{j}")
        c.box(250 + 40 * j, 260, 40, 30, fill, f"V{j}")
    c.arrow(142, 149, 246, 149)
    c.arrow(350, 222, 350, 178)
    c.words(590, 62, "O")
    for i in range(4):
        c.box(590, 74 + 50 * i, 80, 50, GREEN if i == 1 else "#ffffff", "tile" if i == 1 else "")
    c.arrow(492, 149, 586, 149)
    c.words(
        20,
        316,
        "Shared memory has one block of K and one of V. Other tiles are other CTAs.",
        size=12,
    )
    return c


def online_softmax() -> Canvas:
    """Three blocks of two scores each, with the maximum, the sum and the output so far."""
    blocks, values = ((1.0, 3.0), (2.0, 0.0), (5.0, 4.0)), ((2.0, 4.0), (6.0, 8.0), (1.0, 3.0))
    c = Canvas(760, 250)
    c.words(20, 28, "one row of S in three blocks of keys", bold=True)
    heads = ("scores s", "values v", "maximum m", "old sums times", "sum l", "output o / l")
    lefts = (20, 130, 240, 360, 500, 620)
    for x, head in zip(lefts, heads, strict=True):
        c.words(x, 62, head, colour=GREY)
    top, total, out = -math.inf, 0.0, 0.0
    for row, (scores, numbers) in enumerate(zip(blocks, values, strict=True)):
        new = max(top, *scores)
        shrink = math.exp(top - new)
        weights = [math.exp(s - new) for s in scores]
        total = total * shrink + sum(weights)
        out = out * shrink + sum(w * v for w, v in zip(weights, numbers, strict=True))
        top, y = new, 78 + 42 * row
        for k in range(2):
            c.box(20 + 44 * k, y, 44, 30, BLUE, f"{scores[k]:g}")
            c.box(130 + 44 * k, y, 44, 30, ORANGE, f"{numbers[k]:g}")
        c.box(240, y, 88, 30, YELLOW, f"{top:g}")
        c.box(360, y, 110, 30, PINK if 0 < shrink < 1 else "#ffffff", f"{shrink:.4f}")
        c.box(500, y, 88, 30, PURPLE, f"{total:.4f}")
        c.box(620, y, 100, 30, GREEN, f"{out / total:.4f}")
    flat = [s for block in blocks for s in block]
    weights = [math.exp(s - max(flat)) for s in flat]
    every = [v for block in values for v in block]
    whole = sum(w * v for w, v in zip(weights, every, strict=True)) / sum(weights)
    c.words(
        20, 232, f"All six scores at once give {whole:.4f} too. The factor is exp(old m - new m)."
    )
    return c


def fragments() -> Canvas:
    """Which lane of a warp holds which element of a 16 x 8 accumulator."""
    c = Canvas(760, 420)
    c.words(20, 28, "mma.m16n8k16: a warp's 16 x 8 floats of S, four in each lane", bold=True)
    for lane in range(32):
        for e in range(4):
            row, col = lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2
            fill = COLOURS[lane // 4] if lane % 4 == 1 else "#f4f4f4" if lane % 2 else "#ffffff"
            c.box(60 + 52 * col, 50 + 22 * row, 52, 22, fill, f"{lane}.{e}")
    for row in range(0, 16, 8):
        c.words(52, 66 + 22 * row, str(row), anchor="end", colour=GREY)
    c.words(510, 80, "lane.element", bold=True)
    c.words(510, 110, "row = lane / 4 + 8 (e / 2)")
    c.words(510, 132, "column = 2 (lane % 4) + e % 2")
    c.words(510, 176, "Four lanes hold a row: a quad.")
    c.words(510, 198, "The maximum of a row takes")
    c.words(510, 220, "two shuffles within it.")
    c.words(510, 264, "The map of P as operand A of")
    c.words(510, 286, "O += P V is the same, so that")
    c.words(510, 308, "P never leaves the registers.")
    return c


def _row_major(row: int, chunk: int) -> int:
    return chunk


def _xor(row: int, chunk: int) -> int:
    return chunk ^ (row % 8)


def swizzle() -> Canvas:
    """The 16-byte chunks that eight lanes of ldmatrix read, and their banks."""
    c = Canvas(760, 350)
    for side, (title, place) in enumerate((("row-major", _row_major), ("chunk ^ (row % 8)", _xor))):
        x = 60 + 370 * side
        c.words(x, 28, title, bold=True)
        for chunk in range(8):
            c.words(x + 38 * chunk + 19, 56, f"{4 * chunk}", anchor="middle", size=12, colour=GREY)
        for row in range(8):
            found = {place(row, chunk): chunk for chunk in range(8)}
            for column in range(8):
                read = found[column] == 0
                fill = COLOURS[row] if read else "#ffffff"
                c.box(x + 38 * column, 64 + 26 * row, 38, 26, fill, f"{found[column]}")
        used = len({place(row, 0) for row in range(8)})
        c.words(x, 300, f"chunk 0 of eight rows: {used} of 8 bank groups,")
        c.words(x, 322, f"so that the read takes {8 // used} wavefront{'s' if used < 8 else ''}")
    c.words(20, 56, "bank", size=12, colour=GREY)
    for row in range(8):
        c.words(52, 82 + 26 * row, f"row {row}", anchor="end", size=12, colour=GREY)
    return c


def pipelines() -> Canvas:
    """When copies and products run, in three schedules."""
    c = Canvas(760, 360)
    copy, product = 44, 60  # lengths of a copy and of a product, in pixels
    y = 28
    for title, ahead in (
        ("rung 1: every copy is awaited where it starts", 0),
        ("rung 3: the next copy runs during a product", 1),
    ):
        c.words(20, y, title, bold=True)
        at = copied = 90
        c.words(80, y + 34, "copies", anchor="end", size=12, colour=GREY)
        c.words(80, y + 66, "products", anchor="end", size=12, colour=GREY)
        for name in ("K0", "V0", "K1", "V1", "K2"):
            start = copied if ahead else max(at, copied)
            copied = start + copy
            c.box(start, y + 16, copy, 26, BLUE, name)
            at = max(at, copied)
            c.box(at, y + 48, product, 26, ORANGE, "Q K" if name[0] == "K" else "P V")
            begun, at = at, at + product
            copied = max(copied, begun) if ahead else at
        c.words(at + 10, y + 66, f"{at - 90}", colour=GREY)
        y += 110
    c.words(20, y, "rungs 19 to 22: one warpgroup copies, two compute in turns", bold=True)
    for row, who in enumerate(("producer", "consumer 1", "consumer 2")):
        c.words(86, y + 34 + 32 * row, who, anchor="end", size=12, colour=GREY)
    for step in range(9):
        c.box(96 + 64 * step, y + 16, 56, 26, BLUE, "KV"[step % 2] + str(step // 2))
    for consumer in range(2):
        x = 160 + 64 * consumer
        for step in range(8 - consumer):
            even = step % 2 == 0
            words, fill = ("Q K, P V", ORANGE) if even else ("softmax", GREEN)
            c.box(x + 64 * step, y + 48 + 32 * consumer, 64, 26, fill, words)
    return c


def wgmma() -> Canvas:
    """One asynchronous product of a warpgroup, and where its operands are."""
    c = Canvas(760, 340)
    c.words(20, 28, "wgmma.m64n128k16: four warps, one asynchronous product", bold=True)
    c.words(50, 62, "A: 64 x 16, shared memory or registers", size=12, colour=GREY)
    c.box(50, 74, 60, 180, BLUE, "Q")
    c.words(330, 62, "B: 16 x 128, shared memory only", size=12, colour=GREY)
    c.box(330, 74, 300, 44, ORANGE, "K: a descriptor names its tile")
    c.words(330, 142, "64 x 128 floats, 64 registers a thread", size=12, colour=GREY)
    for warp in range(4):
        c.box(330, 154 + 25 * warp, 300, 25, COLOURS[2 + warp], f"warp {warp}: rows {16 * warp} on")
    c.arrow(114, 204, 326, 204)
    c.arrow(610, 120, 610, 150)
    steps = ("fence", "wgmma x d / 16", "commit_group", "other work", "wait_group")
    for i, word in enumerate(steps):
        c.box(50 + 138 * i, 284, 126, 32, YELLOW if word == "other work" else "#ffffff", word)
        if i:
            c.arrow(50 + 138 * i - 12, 300, 50 + 138 * i - 1, 300)
    return c


def backward() -> Canvas:
    """The five products of one block of keys and one block of queries."""
    c = Canvas(760, 380)
    c.words(20, 28, "a CTA keeps K and V of a block of keys, and walks over queries", bold=True)
    boxes = (
        (40, 60, 150, BLUE, "S = Q Kᵀ"),
        (40, 190, 150, BLUE, "dP = dO Vᵀ"),
        (270, 60, 190, YELLOW, "P = exp(S - lse)"),
        (270, 190, 190, YELLOW, "dS = P (dP - δ)"),
        (560, 60, 170, GREEN, "dV += Pᵀ dO"),
        (560, 150, 170, GREEN, "dK += dSᵀ Q"),
        (560, 240, 170, PINK, "dQ += dS K"),
    )
    for x, y, wide, fill, words in boxes:
        c.box(x, y, wide, 46, fill, words)
    c.arrow(192, 83, 266, 83)
    c.arrow(192, 213, 266, 213)
    c.arrow(365, 108, 365, 187)
    c.arrow(462, 83, 556, 83)
    c.arrow(462, 208, 556, 176)
    c.arrow(462, 218, 556, 258)
    c.words(40, 282, "δ = rowsum(dO O): a small kernel computes it first.")
    c.words(40, 306, "lse is the log-sum-exp that the forward pass stored.")
    c.words(
        40,
        340,
        "dK and dV stay in registers. dQ belongs to other CTAs too: they add to it in float32,",
    )
    c.words(
        40, 362, "by atomics, or one after the other if the bits have to be the same in every run."
    )
    return c


DRAWINGS = (
    Drawing(
        "tiles",
        "Tiles",
        "A CTA has one tile of 128 rows of Q and one tile of O. It walks over K and V in blocks of"
        " 32 keys, and computes one block of S at a time, which is never stored.",
        tiles,
    ),
    Drawing(
        "online_softmax",
        "Online softmax",
        "A table of three blocks of two scores. When the maximum grows from 3 to 5, the sum and"
        " the output so far are multiplied by 0.1353. The last output is that of all six scores"
        " at once.",
        online_softmax,
    ),
    Drawing(
        "fragments",
        "Fragments",
        "The 16 x 8 accumulator of an mma instruction. Lane l holds two neighbours in row l / 4 and"
        " two in row l / 4 + 8, so that four lanes hold a row.",
        fragments,
    ),
    Drawing(
        "swizzle",
        "Swizzle",
        "Eight rows of eight 16-byte chunks, twice. Row-major, chunk 0 of all rows lies in the same"
        " banks. With the place chunk xor row, chunk 0 lies on a diagonal, in all banks once.",
        swizzle,
    ),
    Drawing(
        "pipelines",
        "Pipelines",
        "Three timelines of copies and products. In rung 1 they alternate. In rung 3 a copy runs"
        " during the product before it. From rung 19 on one warpgroup copies all the time, and two"
        " others alternate products and softmax.",
        pipelines,
    ),
    Drawing(
        "wgmma",
        "wgmma",
        "Four warps multiply Q, 64 x 16, with a block of K in shared memory that a descriptor"
        " names. Each warp has 16 rows of the accumulator. Fence, products, commit, other work,"
        " wait.",
        wgmma,
    ),
    Drawing(
        "backward",
        "The backward pass",
        "S and dP are computed from Q, K, dO and V. P and dS follow from them. P gives dV, and dS"
        " gives dK and dQ: five products for each pair of blocks.",
        backward,
    ),
)


def write_drawings() -> None:
    """Writes every picture, and the line of the document that shows it."""
    FOLDER.mkdir(exist_ok=True)
    text = DOCUMENT.read_text()
    for drawing in DRAWINGS:
        (FOLDER / f"{drawing.name}.svg").write_text(drawing.file)
        block = f"drawing-{drawing.name}"
        text = replace_block(text, block, wrap(block, [drawing.markdown]))
    DOCUMENT.write_text(text)
