# SPDX-License-Identifier: Apache-2.0
"""The steps of the serving grid: which calls they are, and that lengths are drawn again."""

from __future__ import annotations

import random

from flash_attention_workbench.bench.serving import (
    LONGEST,
    SHORTEST,
    Layer,
    Step,
    drawn_decode,
    serving_steps,
)


def test_lengths_are_drawn_again_and_differ() -> None:
    assert serving_steps() == serving_steps()
    assert serving_steps(1) != serving_steps(2)
    steps = {step.label: step for step in serving_steps() if step.layer == Layer()}
    keys = steps["decode 256 x 2,048"].keys
    assert len(set(keys)) > 200
    assert min(keys) >= SHORTEST * 2048
    assert max(keys) <= LONGEST * 2048
    assert 0.9 < sum(keys) / len(keys) / 2048 < 1.1


def test_the_grid_has_every_kind_of_step() -> None:
    steps = serving_steps()
    every = {(step.label, step.layer.words) for step in steps}
    assert len(every) == len(steps)
    assert {s.layer.page for s in steps if s.label == "chunk of 2,048 at 8,192"} == {
        *(16, 32, 64, 128, 256)
    }
    assert {len(s.keys) for s in steps if s.layer.sinks} == {1, 32, 128}
    assert {s.layer.page for s in steps if s.layer.of_8_bits} == {64}
    assert sum(s.layer.d == 256 for s in steps) == 2
    mixed = next(s for s in steps if s.label.startswith("64 decodes"))
    assert (mixed.queries[0], set(mixed.queries[1:]), mixed.even_queries) == (2048, {1}, None)
    speculative = next(s for s in steps if s.label.startswith("speculative"))
    assert speculative.even_queries == 4
    for step in steps:
        assert len(step.queries) == len(step.keys)
        assert all(q <= k for q, k in zip(step.queries, step.keys, strict=True))


def test_work_is_that_of_all_sequences() -> None:
    step = Step("two", (1, 3), (10, 20), Layer(heads=4, heads_k=2, d=64))
    assert step.cells == 10 + 60
    assert step.kv_bytes == 2 * 30 * 2 * 64 * 2
    assert Step("8", (1,), (10,), Layer(heads_k=2, d=64, of_8_bits=True)).kv_bytes == 2 * 10 * 128


def test_steps_for_the_host_have_other_shapes() -> None:
    draw = random.Random(0)
    batches = {len(drawn_decode(draw).keys) for _ in range(20)}
    assert len(batches) > 10
