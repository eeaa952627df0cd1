# SPDX-License-Identifier: Apache-2.0
"""After a warm-up no call of a server compiles a kernel, whatever the lengths of its sequences."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function, UnsupportedError, attention, masks, warm_up
from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.results import E4M3
from flash_attention.choose.rules import choose
from flash_attention.compile.unit import Unit
from flash_attention.families.recipe import Setting
from flash_attention.launch import kernels
from flash_attention.warm_up import kernels_for

MULTIPROCESSORS = (78, 114, 132)  # of an H20, an H100 PCIe and an H200
STEPS, MOST_SEQUENCES, MOST_KEYS, MOST_CHUNK = 100, 300, 32_768, 8192
PAGES = 2  # their numbers are not read

MODELS: dict[str, dict[str, Any]] = {
    "32:8 d 128": {"heads": 32, "heads_k": 8, "d": 128, "page": 16},
    "gpt-oss": {"heads": 64, "heads_k": 8, "d": 64, "page": 16, "sinks": True, "window": 128},
    "16:8 d 256": {"heads": 16, "heads_k": 8, "d": 256, "page": 16, "softcap": 50.0},
    "8-bit cache": {"heads": 32, "heads_k": 8, "d": 128, "page": 64, "kv": E4M3},
    "8 bits": {"heads": 32, "heads_k": 8, "d": 128, "page": 64, "kv": E4M3, "q": E4M3},
    "wide": {"heads": 8, "heads_k": 1, "d": 512, "page": 32},
    "no group": {"heads": 12, "heads_k": 12, "d": 80, "page": 128},
    "interleaved cache": {"heads": 32, "heads_k": 8, "d": 128, "page": 16, "interleaved": True},
}


def cache(model: dict[str, Any], device: str) -> tuple[Tensor, Tensor]:
    """K and V of a model: two tensors, or the halves of the rows of one that has heads first."""
    page, heads_k, d, dtype = model["page"], model["heads_k"], model["d"], model.get("kv")
    dtype = dtype or torch.bfloat16
    if not model.get("interleaved"):
        k, v = (torch.empty(PAGES, page, heads_k, d, dtype=dtype, device=device) for _ in "kv")
        return k, v
    both = torch.empty(PAGES, heads_k, page, 2 * d, dtype=dtype, device=device).transpose(1, 2)
    return both[..., :d], both[..., d:]


def step_of(
    model: dict[str, Any], queries: list[int], keys: list[int], device: str = "meta"
) -> Call:
    """One step of a server: packed queries over pages."""
    options: dict[str, Any] = {"causal": True, "softcap": model.get("softcap", 0.0)}
    if model.get("sinks"):
        options["sinks"] = torch.empty(model["heads"], device=device)
    if model.get("window"):
        options["window"] = (model["window"] - 1, 0)
    if model.get("kv") is E4M3:
        factors = ("k_descale", "v_descale", *(("q_descale",) if "q" in model else ()))
        options |= {name: torch.empty(1, device=device) for name in factors}

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    dtype = model.get("q", torch.bfloat16)
    q = torch.empty(sum(queries), model["heads"], model["d"], dtype=dtype, device=device)
    table = numbers(len(queries), max(1, -(-max(keys) // model["page"])))
    return Call(
        *(q, *cache(model, device)),
        cu_seqlens_q=numbers(len(queries) + 1),
        max_seqlen_q=max(queries),
        seqused_k=numbers(len(queries)),
        block_table=table,
        **options,
    )


def drawn(draw: random.Random) -> tuple[list[int], list[int]]:
    """The queries and keys of a step: decoding, speculation, chunks, or some of each."""
    kind = draw.randrange(6)
    if kind == 5:  # a chunk alone
        return [draw.randint(1, MOST_CHUNK // 2)], [MOST_KEYS]
    batch = min(draw.randint(1, MOST_SEQUENCES), draw.randint(1, MOST_SEQUENCES))
    queries = [1 if kind == 0 else draw.randint(1, 16)] * batch
    if kind >= 2:
        chunks = draw.randint(1, min(batch, 3))
        longest = 1 << draw.randint(1, MOST_CHUNK.bit_length() - 1)
        queries[:chunks] = [draw.randint(1, longest) for _ in range(chunks)]
    return queries, [draw.randint(0, 1 << draw.randint(0, 15)) for _ in queries]


def units_of(call: Call, num_sms: int) -> set[Unit]:
    """The kernels of a call on a Hopper GPU."""
    problem, views = check_call(call, torch.device("cpu"))
    choice = choose(problem, Setting(ARCHES["sm_90"], num_sms), views)
    return {step.unit for step in choice.recipe(problem, views).steps}


OFTEN = ("32:8 d 128", "gpt-oss", "16:8 d 256", "8 bits", "interleaved cache")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.exhaustive) for name in MODELS],
)
def test_every_step_of_a_server_finds_its_kernels(name: str) -> None:
    model, draw = MODELS[name], random.Random(29)
    warm = set(kernels_for(step_of(model, [1], [1]), "sm_90"))
    met = set()
    for _ in range(STEPS):
        call = step_of(model, *drawn(draw))
        units = units_of(call, draw.choice(MULTIPROCESSORS))
        assert units <= warm, [unit.name for unit in units - warm]
        met |= units
    assert len(warm - met) <= 2  # little is compiled that no step needs


def test_a_call_with_a_batch_dimension_stands_for_others_of_its_kind() -> None:
    def call(batch: int, queries: int, width: int) -> Call:
        packed = step_of(MODELS["32:8 d 128"], [queries] * batch, [16 * width] * batch)
        q = packed.q.view(batch, queries, 32, 128)
        return packed._replace(q=q, cu_seqlens_q=None, max_seqlen_q=None)

    warm = set(kernels_for(call(2, 3, 5), "sm_90"))
    for batch, queries, width in ((1, 1, 1), (200, 1, 300), (32, 4, 100), (1, 2000, 200)):
        assert units_of(call(batch, queries, width), 132) <= warm


@pytest.mark.slow
def test_a_mask_function_has_the_kernels_that_attention_computes_it_with() -> None:
    causal = step_of(MODELS["32:8 d 128"], [1], [1])
    masked = causal._replace(causal=False, function=Function(mask=masks.causal()))
    assert kernels_for(masked, "sm_90") == kernels_for(causal, "sm_90")


def test_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_units", {})  # other tests may have compiled them
    model = {"heads": 4, "heads_k": 2, "d": 64, "page": 16}
    call = step_of(model, [1, 5], [30, 7])
    names = warm_up(*call[:3], arch="sm_80", **call.keywords())
    units = kernels_for(call, "sm_80")
    assert names == tuple(unit.name for unit in units)
    assert len(names) > 0
    built = {path.read_text() for path in tmp_path.glob("*/kernel.cu")}
    assert built == {unit.source for unit in units}
    compiled = {unit: one.compiled for unit, one in kernels._units.items()}
    assert warm_up(*call[:3], arch="sm_80", **call.keywords()) == names
    assert {unit: one.compiled for unit, one in kernels._units.items()} == compiled


def test_what_attention_refuses_is_refused() -> None:
    call = step_of(MODELS["32:8 d 128"], [1], [1])
    wrong = call._replace(seqused_k=None)
    with pytest.raises(UnsupportedError, match=r"block_table.*seqused_k"):
        warm_up(*wrong[:3], **wrong.keywords())
    with pytest.raises(UnsupportedError, match="no lengths are given"):
        warm_up(*torch.empty(3, 1, 8, 2, 64, device="meta"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'config'"):
        warm_up(*call[:3], config="rung:5", **call.keywords())
    with pytest.raises(UnsupportedError, match="sm_90"):
        warm_up(*call[:3], arch="sm_1", **call.keywords())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["32:8 d 128", "gpt-oss"])
def test_steps_on_a_gpu_compile_nothing(name: str) -> None:
    model, draw = MODELS[name], random.Random(30)
    call = step_of(model, [1], [1], "cuda")
    warm_up(*call[:3], **call.keywords())
    loaded = set(kernels._units)
    for _ in range(400):
        queries, keys = drawn(draw)
        step = step_of(model, queries, keys, "cuda")
        starts = torch.tensor([0, *queries], device="cuda").cumsum(0).int()
        used = torch.tensor(keys, dtype=torch.int32, device="cuda")
        assert step.block_table is not None
        pages = torch.zeros_like(step.block_table)
        step = step._replace(cu_seqlens_q=starts, seqused_k=used, block_table=pages)
        attention(*step[:3], **step.keywords())
    torch.cuda.synchronize()
    assert set(kernels._units) == loaded
