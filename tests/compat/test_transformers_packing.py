# SPDX-License-Identifier: Apache-2.0
"""Documents in one row whose position_ids start again, against each document computed alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat import transformers as ours_in_transformers
from flash_attention.errors import UnsupportedError
from tests.compat.tiny_models import IDS, MODELS, transformers, twins

pytestmark = pytest.mark.slow  # left out of `make quick`

attention_forward: Any = ours_in_transformers.attention_forward
LENGTHS = (5, 9, 3)
PLACES = torch.cat([torch.arange(n) for n in LENGTHS])[None]
ROW = IDS[:1]


def alone(model: Any) -> Tensor:
    """The logits of each document, computed in a call of its own."""
    return torch.cat([model(document).logits for document in ROW.split(LENGTHS, dim=1)], dim=1)


def static_cache(model: Any) -> Any:
    return transformers.StaticCache(config=model.config, max_cache_len=32)


CACHES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "default": lambda model: {},
    "dynamic": lambda model: {"past_key_values": transformers.DynamicCache(config=model.config)},
    "static": lambda model: {"past_key_values": static_cache(model)},
    "none": lambda model: {"use_cache": False},
    "a mask of ones": lambda model: {"attention_mask": torch.ones_like(ROW)},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_documents_do_not_see_each_other(name: str, cache: str) -> None:
    eager, ours = twins(name)
    given = ours(ROW, position_ids=PLACES, **CACHES[cache](ours)).logits
    torch.testing.assert_close(given, alone(eager), rtol=1e-5, atol=1e-5)


def test_gradients_stay_in_their_document() -> None:
    eager, ours = twins("llama")
    embedded = [model.model.embed_tokens(ROW).detach() for model in (eager, ours)]
    rows = [rows.requires_grad_() for rows in embedded]
    logits = ours(inputs_embeds=rows[1], position_ids=PLACES).logits
    documents = rows[0].split(LENGTHS, dim=1)
    wanted = torch.cat([eager(inputs_embeds=part).logits for part in documents], dim=1)
    for results in (logits, wanted):
        results.square().sum().backward()
    torch.testing.assert_close(rows[1].grad, rows[0].grad, rtol=1e-4, atol=1e-5)


LAYER: Any = SimpleNamespace(is_causal=True)


def states(batch: int = 1, seq: int = 7) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 4, seq, 16, generator=generator) for _ in range(3)]


def attended(position_ids: Tensor, tensors: list[Tensor]) -> Tensor:
    out: Tensor = attention_forward(LAYER, *tensors, None, position_ids=position_ids)[0]
    return out


@pytest.mark.parametrize(
    ("places", "lengths"),
    [
        ([0, 1, 2, 0, 1, 0, 1], (3, 2, 2)),
        ([2, 3, 4, 2, 3, 4, 5], (3, 4)),  # those of RoBERTa start behind its padding
        ([5, 6, 0, 1, 2, 3, 4], (2, 5)),
        ([0, 1, 2, 3, 4, 5, 6], (7,)),
        ([3, 4, 5, 6, 7, 8, 9], (7,)),
        ([0, 1, 2, 2, 2, 3, 4], (7,)),  # the patches of a picture
    ],
    ids=str,
)
def test_a_document_starts_where_the_positions_have_their_minimum(
    places: list[int], lengths: tuple[int, ...]
) -> None:
    tensors = states()
    parts = zip(*(t.split(lengths, dim=2) for t in tensors), strict=True)
    wanted = torch.cat([attention_forward(LAYER, *part, None)[0] for part in parts], dim=1)
    torch.testing.assert_close(attended(torch.tensor([places]), tensors), wanted)


def test_several_rows_are_one_document_each() -> None:
    tensors, places = states(batch=2), torch.tensor([[0, 1, 2, 0, 1, 0, 1]] * 2)
    assert torch.equal(attended(places, tensors), attention_forward(LAYER, *tensors, None)[0])


def test_positions_are_read_once_for_all_layers_and_again_when_they_change() -> None:
    tensors, places = states(), torch.tensor([[0, 1, 2, 0, 1, 0, 1]])
    first = attended(places, tensors)
    kept = places._documents  # type: ignore[attr-defined]
    assert torch.equal(attended(places, tensors), first)
    assert places._documents is kept  # type: ignore[attr-defined]
    places.copy_(torch.arange(7))
    assert torch.equal(attended(places, tensors), attention_forward(LAYER, *tensors, None)[0])


def test_tensors_that_do_not_count_changes_are_read_again() -> None:
    with torch.inference_mode():
        tensors, places = states(), torch.tensor([[0, 1, 2, 0, 1, 0, 1]])
        attended(places, tensors)
        places.copy_(torch.arange(7))
        assert torch.equal(attended(places, tensors), attention_forward(LAYER, *tensors, None)[0])


@pytest.mark.gpu
def test_a_layer_in_a_cuda_graph_reads_no_positions() -> None:
    tensors = [t.to("cuda", torch.bfloat16) for t in states()]
    places = torch.arange(7, device="cuda")[None]
    wanted = attended(places, tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = attended(places, tensors)
    places += 5
    graph.replay()
    assert torch.equal(given, wanted)


def test_new_documents_behind_a_filled_cache_are_refused() -> None:
    _, ours = twins("llama")
    cache = ours(ROW[:, :4]).past_key_values
    with pytest.raises(UnsupportedError, match="again in 5 tokens that have 9 keys; pass packed"):
        ours(ROW[:, 4:9], position_ids=torch.tensor([[4, 5, 0, 1, 2]]), past_key_values=cache)


def test_a_compiled_layer_ends_where_positions_start_again() -> None:
    tensors = states()
    torch._dynamo.reset()
    compiled = torch.compile(attended, backend="aot_eager", fullgraph=True)
    one = torch.arange(7)[None]
    torch.testing.assert_close(compiled(one, tensors), attended(one, tensors))
    with pytest.raises(RuntimeError, match="pass cu_seq_lens_q"):
        compiled(torch.tensor([[0, 1, 2, 0, 1, 0, 1]]), tensors)
