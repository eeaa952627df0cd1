# SPDX-License-Identifier: Apache-2.0
"""The timing discipline on a GPU: order, poisoning, checking, and times that mean something."""

from __future__ import annotations

import pytest
import torch

from flash_attention_workbench.bench.timing import Contender, captured, time_in_turn

pytestmark = pytest.mark.gpu


def test_contenders_take_turns_and_only_the_last_output_is_checked() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    out = torch.zeros(8, device=device)
    events: list[str] = []

    def contender(name: str, value: float) -> Contender:
        def run() -> torch.Tensor:
            events.append(f"run {name}")
            return out.fill_(value)

        return Contender(name, run, poison=lambda: events.append(f"poison {name}"))

    def check(name: str, written: torch.Tensor) -> None:
        events.append(f"check {name} {written[0].item():.0f}")

    timings = time_in_turn(
        [contender("a", 1), contender("b", 2)], device=device, repeats=2, check=check
    )
    assert {name: timing.samples for name, timing in timings.items()} == {"a": 2, "b": 2}
    of_a = ["run a", "poison a", "run a"]
    of_b = ["run b", "poison b", "run b"]
    assert events[:6] in (of_a + of_b, of_b + of_a)
    of_a, of_b = [*of_a, "check a 1"], [*of_b, "check b 2"]
    assert events[6:] in (of_a + of_b, of_b + of_a)


def test_the_order_changes_from_round_to_round() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    out = torch.zeros(1, device=device)
    timed: list[str] = []

    def contender(name: str) -> Contender:
        return Contender(name, lambda: out, poison=lambda: timed.append(name))

    time_in_turn(
        [contender(name) for name in "abcd"],
        device=device,
        repeats=4,
        check=lambda name, written: None,
    )
    rounds = ["".join(timed[i : i + 4]) for i in range(0, 16, 4)]
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 1


def test_ten_times_the_work_takes_about_ten_times_as_long() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.float16)

    def multiply(times: int) -> torch.Tensor:
        for _ in range(times):
            product = matrix @ matrix
        return product

    timings = time_in_turn(
        [Contender("one", lambda: multiply(1)), Contender("ten", lambda: multiply(10))],
        device=device,
        repeats=11,
        check=lambda name, out: None,
    )
    ratio = timings["ten"].median_ms / timings["one"].median_ms
    assert ratio > 6  # and no bound above: other programs may be at work on the GPU


def test_what_fits_into_l2_is_read_faster_hot_than_cold() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    half = torch.cuda.get_device_properties(device).L2_cache_size // 2
    source = torch.ones(half // 4, device=device)
    contender = Contender("sum", lambda: source.sum())
    cold, hot = (
        time_in_turn([contender], device=device, repeats=11, check=lambda name, out: None, hot=hot)
        for hot in (False, True)
    )
    assert hot["sum"].median_ms < cold["sum"].median_ms


def test_a_captured_contender_launches_its_kernels_again() -> None:
    x = torch.ones(8, device="cuda")
    runs: list[str] = []

    def run() -> torch.Tensor:
        runs.append("run")
        return x.add_(1)

    replayed = captured(Contender("sum", run))
    assert len(runs) == 2  # before the graph, and into it
    assert replayed.run() is replayed.run()
    assert len(runs) == 2
    assert x.tolist() == [4.0] * 8  # once before the graph, and twice by it
