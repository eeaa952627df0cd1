# SPDX-License-Identifier: Apache-2.0
"""Record what vLLM's scheduler plans for random requests, without a GPU:

python benchmarks/recorded/record.py FOLDER steps.json

FOLDER holds the config.json of a model. Requests come at four rates, one after the other. Their
prompts and answers have log-normal lengths. The file has some of the steps: the queries and the
keys of each request, and the pages where the scheduler keeps its keys.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE, PAGES = 16, 40_000
MOST_TOKENS, MOST_REQUESTS, LONGEST = 4096, 128, 16_384  # of a step, of a step, of a request
RATES = ((120, 0.15), (160, 0.6), (200, 1.2), (120, 0.3))  # steps, and requests in a step
STEPS = 75  # that are kept


def main() -> None:
    """Run the scheduler and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    engine = Engine(str(given.model))
    for steps, rate in RATES:
        for _ in range(steps):
            engine.step(rate)
    every = len(engine.steps) // STEPS
    given.file.write_text(json.dumps(engine.record(every), separators=(",", ":")) + "\n")


@dataclass
class Engine:
    """vLLM's scheduler, whose model samples random tokens."""

    model: str
    draw: random.Random = field(default_factory=lambda: random.Random(33))
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    pages: dict[int, list[int]] = field(default_factory=dict)  # of each request
    requests: int = 0

    def __post_init__(self) -> None:
        self.scheduler = scheduler(self.model)

    def step(self, rate: float) -> None:
        """Let requests arrive, plan a step and sample a token for each request."""
        from vllm.v1.outputs import ModelRunnerOutput

        for _ in range(sum(self.draw.random() < rate / 4 for _ in range(4))):
            self._add_request()
        plan = self.scheduler.schedule()
        if not plan.num_scheduled_tokens:
            return
        ids, of = list(plan.num_scheduled_tokens), self.scheduler.requests
        self.steps.append([self._planned(plan, each) for each in ids])
        sampled = [
            [self._token()] if of[each].num_computed_tokens >= of[each].num_tokens else []
            for each in ids
        ]
        places = {each: place for place, each in enumerate(ids)}
        self.scheduler.update_from_output(
            plan, ModelRunnerOutput(ids, places, sampled, pooler_output=[])
        )

    def record(self, every: int) -> dict[str, Any]:
        """Some of the steps, and the pages of their requests."""
        import vllm

        kept = self.steps[::every][:STEPS]
        named = sorted({request for step in kept for request, _, _ in step})
        return {
            "engine": f"vllm {vllm.__version__}",
            "page": PAGE,
            "pages": {request: runs(self.pages[request]) for request in named},
            "steps": kept,
        }

    def _planned(self, plan: Any, name: str) -> tuple[int, int, int]:
        """A request of a step: its number, its queries and its keys."""
        cached = plan.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        queries = plan.num_scheduled_tokens[name]
        pages = self.scheduler.kv_cache_manager.get_block_ids(name)[0]
        known = self.pages.setdefault(int(name), [])
        assert pages[: len(known)] == known, "a request was moved to other pages"
        known.extend(pages[len(known) :])
        return int(name), queries, computed[name] + queries

    def _add_request(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        prompt = [self._token() for _ in range(self._length(700, 1.2, 8, 14_000))]
        answer = SamplingParams(max_tokens=self._length(180, 0.9, 4, 1500), ignore_eos=True)
        self.scheduler.add_request(Request(str(self.requests), prompt, answer, None))
        self.requests += 1

    def _length(self, median: int, sigma: float, least: int, most: int) -> int:
        return max(least, min(most, round(median * self.draw.lognormvariate(0, sigma))))

    def _token(self) -> int:
        return self.draw.randrange(3, 31_999)


def scheduler(model: str) -> Any:
    """vLLM's scheduler with chunked prefill and a cache of one kind."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    limits = {"max_model_len": LONGEST, "is_encoder_decoder": False}
    limits |= {"max_num_batched_tokens": MOST_TOKENS, "max_num_seqs": MOST_REQUESTS}
    cache = CacheConfig(block_size=PAGE, enable_prefix_caching=False)
    cache.num_gpu_blocks = PAGES
    config = VllmConfig(
        model_config=ModelConfig(
            model, tokenizer=model, skip_tokenizer_init=True, max_model_len=LONGEST
        ),
        scheduler_config=SchedulerConfig(enable_chunked_prefill=True, **limits),
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
    )
    kind = FullAttentionSpec(PAGE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    layers = KVCacheConfig(PAGES, [], [KVCacheGroupSpec(["layer"], kind)])
    return Scheduler(config, layers, StructuredOutputManager(config), PAGE)


def runs(pages: list[int]) -> list[list[int]]:
    """Pages as runs: the first, how many, and from one to the next, which is 1 if left out."""
    found: list[list[int]] = []
    while pages:
        step = pages[1] - pages[0] if len(pages) > 1 else 1
        count = 1
        while count < len(pages) and pages[count] - pages[count - 1] == step:
            count += 1
        count = count if step == 1 or count > 2 else 1
        found.append([pages[0], count, step] if count > 1 and step != 1 else [pages[0], count])
        pages = pages[count:]
    return found


if __name__ == "__main__":
    main()
