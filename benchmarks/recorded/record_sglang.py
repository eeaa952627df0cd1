# SPDX-License-Identifier: Apache-2.0
"""Record what SGLang's scheduler plans for random requests, and how its FlashAttention backend
calls attention, without a GPU:

python -m benchmarks.recorded.record_sglang sglang.json
python -m benchmarks.recorded.record_sglang sglang_64.json --page 64 --mixed

SGLang's whole `Scheduler` runs on the CPU: its policy, radix cache, allocators and model runner
with a model of one layer. So does its FlashAttention backend, through the plug-in of this package.
Only the attention itself is left out: each call is written down, and answered with zeros. CUDA
graphs need a GPU, so these are the calls that SGLang makes without them.

Requests come at four rates, one after the other. Most prompts begin with one of a few that are
shared, which the radix cache keeps. The file has some of the steps: the queries and the keys of
each request, and the pages where the scheduler keeps its keys.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.recorded.record import MOST_TOKENS, RATES, runs
from flash_attention.compat import sglang as ours
from flash_attention.compat.backends import plug_ins

TOKENS, MOST_REQUESTS, LONGEST = 160_000, 96, 16_384  # of the cache, of a step, of a request
STEPS = 20  # that are kept, with prompts and without
WORDS = 256
SHARED = (400, 1500, 3000)  # tokens that many prompts begin with
MODEL = {
    **{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "bfloat16"},
    **{"n_embd": 64, "n_inner": 64, "n_head": 2, "n_layer": 1, "n_positions": LONGEST},
    **{"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2},
}


def main() -> None:
    """Run the scheduler and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", type=int, default=1)
    parser.add_argument("--mixed", action="store_true", help="chunks of prompts beside decoding")
    given = parser.parse_args()
    engine = Engine(given.page, given.mixed)
    for steps, rate in RATES:
        for _ in range(steps):
            engine.step(rate)
    given.file.write_text(json.dumps(engine.record(), separators=(",", ":")) + "\n")


@dataclass
class Engine:
    """SGLang's scheduler, whose model computes no attention."""

    page: int
    mixed: bool
    draw: random.Random = field(default_factory=lambda: random.Random(33))
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    pages: list[list[int]] = field(default_factory=list)  # of each request of the record
    names: dict[str, int] = field(default_factory=dict)  # where `pages` has a request of SGLang
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: int = 0

    def __post_init__(self) -> None:
        self.shared = [self._tokens(count) for count in SHARED]
        self.given: dict[str, Any] = {}  # to the last call
        vars(ours)["flash_attn_with_kvcache"] = self._answer  # from where the backend takes it
        self.scheduler = scheduler(self.page, self.mixed)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Let requests arrive, plan a step and run the model."""
        engine = self.scheduler
        arrived = sum(self.draw.random() < rate / 4 for _ in range(4))
        engine.process_input_requests([self._request() for _ in range(arrived)])
        plan = engine.get_next_batch_to_run(
            running_batch=engine.running_batch, last_batch=engine.last_batch
        )
        engine.running_batch, batch = plan.running_batch, plan.batch_to_run
        if batch is not None:
            names, mode = [request.rid for request in batch.reqs], batch.forward_mode.name
            result = engine.run_batch(batch)
            self._keep(names, mode)
            engine.process_batch_result(batch, result)
        engine.last_batch = batch

    def record(self) -> dict[str, Any]:
        """Some of the steps, and the pages of their requests."""
        import sglang

        kept = [*evenly(self.steps, prompts=True), *evenly(self.steps, prompts=False)]
        most = dict[int, int]()
        for name, _, keys in (row for step in kept for row in step):
            most[name] = max(most.get(name, 0), -(-keys // self.page))
        return {
            "engine": f"sglang {sglang.__version__}",
            "page": self.page,
            "calls": self.calls,
            "pages": {name: runs(self.pages[name][:count]) for name, count in most.items()},
            "steps": kept,
        }

    def _answer(self, **given: Any) -> Tensor:
        self.given = given
        return torch.zeros_like(given["q"])

    def _keep(self, names: list[str], mode: str) -> None:
        """Write down the last call, which a step of these requests made."""
        given = self.given
        self.calls.setdefault(mode, {name: described(value) for name, value in given.items()})
        rows = given["cu_seqlens_q"].diff().tolist(), given["cache_seqlens"].tolist()
        table = given["page_table"].tolist()
        self.steps.append(
            [
                (self._number(name, pages[: -(-keys // self.page)]), queries, keys)
                for name, queries, keys, pages in zip(names, *rows, table, strict=True)
            ]
        )

    def _number(self, name: str, pages: list[int]) -> int:
        """The request in the record. One that was moved to other pages is another one there."""
        number = self.names.get(name)
        if number is None or self.pages[number][: len(pages)] != pages[: len(self.pages[number])]:
            number = self.names[name] = len(self.pages)
            self.pages.append([])
        known = self.pages[number]
        known.extend(pages[len(known) :])
        return number

    def _request(self) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        prompt = self._tokens(self._length(700, 1.2, 8, 10_000))
        if self.draw.random() < 0.7:
            prompt = self.draw.choice(self.shared) + prompt
        answer = self._length(180, 0.9, 4, 1500)
        sampling = SamplingParams(max_new_tokens=answer, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        self.requests += 1
        none: Any = dict.fromkeys(("input_text", "input_embeds", "mm_inputs", "token_type_ids"))
        return TokenizedGenerateReqInput(
            **none,
            rid=str(self.requests),
            input_ids=array("q", prompt),
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )

    def _length(self, median: int, sigma: float, least: int, most: int) -> int:
        return max(least, min(most, round(median * self.draw.lognormvariate(0, sigma))))

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(3, WORDS) for _ in range(count)]


def evenly(steps: list[list[tuple[int, int, int]]], prompts: bool) -> Any:
    """Some of the steps with prompts, or of those without."""
    some = [step for step in steps if any(queries > 1 for _, queries, _ in step) == prompts]
    return some[:: len(some) // STEPS][:STEPS]


def described(value: Any) -> Any:
    """A keyword as the record has it: of a tensor the dtype, the shape and the strides."""
    if not isinstance(value, Tensor):
        return value
    return [str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride())]


def scheduler(page: int, mixed: bool) -> Any:
    """SGLang's scheduler on the CPU, with its FlashAttention backend."""
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    plug_ins.register_sglang()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        given = ServerArgs(
            model_path=folder,
            device="cpu",
            load_format="dummy",
            skip_tokenizer_init=True,
            attention_backend=plug_ins.SGLANG,
            page_size=page,
            enable_mixed_chunk=mixed,
            max_total_tokens=TOKENS,
            max_running_requests=MOST_REQUESTS,
            chunked_prefill_size=MOST_TOKENS,
            disable_overlap_schedule=True,
            disable_cuda_graph=True,
            mem_fraction_static=0.2,
        )
        publish(given, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        from sglang.srt.managers.scheduler import Scheduler

        kernels: Any = ModuleType("sgl_kernel")  # which loads on a GPU only
        kernels.merge_state_v2 = None
        sys.modules |= {"sgl_kernel": kernels, "sgl_kernel.flash_attn": ours}
        return Scheduler(given, PortArgs.init_new(given))


if __name__ == "__main__":
    main()
