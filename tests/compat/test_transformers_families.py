# SPDX-License-Identifier: Apache-2.0
"""Twelve families of models of transformers under every name by which this package is asked for:
what they compute, their gradients and what they generate, against eager attention."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import calls as counted_calls
from flash_attention.compat import flash_attn, hub_kernel, install, uninstall
from flash_attention.compat import transformers as compat
from tests.compat.families import FAMILIES, text, twins
from tests.compat.tiny_models import IDS, IS_5
from tests.gate import in_turn

NAMES = ["flash_attention_2", "flash_attention_3", compat.NAME]
if importlib.util.find_spec("kernels") is not None and IS_5:
    NAMES.append(hub_kernel.REPOSITORY)
CASES = in_turn(FAMILIES, NAMES)
GENERATING = in_turn([name for name, family in FAMILIES.items() if family.generates], NAMES)


@pytest.fixture(autouse=True)
def calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Tensor]]:
    """The queries of the calls that are computed here; every test makes some."""
    seen: list[Tensor] = []

    def counted(q: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(q)
        return attention(q, *args, **kwargs)

    for module in (flash_attn, compat):
        monkeypatch.setattr(module, "attention", counted)
    monkeypatch.setenv(hub_kernel.OVERRIDES, "")
    hub_kernel.offer(tmp_path_factory.getbasetemp() / "hub_kernel")
    compat.register()
    install()
    yield seen
    uninstall()
    assert seen


def real_rows(family: str, found: Tensor) -> Tensor:
    """An output without the rows of padding, whose values are arbitrary."""
    mask = FAMILIES[family].inputs().get("attention_mask")
    if mask is None or found.shape[:2] != mask.shape:
        return found
    return found[mask.bool()]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_outputs_and_gradients(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "1")  # what transformers asks for

    def computed(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
        out = real_rows(family, getattr(model(**FAMILIES[family].inputs()), FAMILIES[family].shown))
        out.square().mean().backward()
        return out, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    (wanted, of_eager), (given, gradients) = map(computed, twins(family, name))
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == of_eager.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_eager[parameter], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), GENERATING)
def test_what_is_generated(family: str, name: str) -> None:
    wanted, given = (
        model.generate(
            **FAMILIES[family].inputs(), min_new_tokens=6, max_new_tokens=6, do_sample=False
        )
        for model in twins(family, name)
    )
    assert torch.equal(given, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::2])
def test_assisted_decoding(name: str) -> None:
    """A model that proposes tokens for itself, some of which another seed makes wrong."""
    eager, ours = twins("llama", name)
    assistant = twins("qwen3", name)[1]
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    wanted = eager.generate(IDS[:1], **options)
    assert torch.equal(ours.generate(IDS[:1], assistant_model=assistant, **options), wanted)


@pytest.mark.slow
@pytest.mark.skipif(not IS_5, reason="transformers 4 passes no block tables")
@pytest.mark.parametrize("name", [name for name in NAMES if "flash" in name])
def test_paged_caches(name: str) -> None:
    """The call of transformers' continuous batching: one new row for each of two sequences."""
    from transformers.modeling_flash_attention_utils import _flash_attention_forward

    twins("llama", name)  # which has transformers load the functions
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator) for n in (4, 2, 2))
    caches = [torch.randn(4, 8, 2, 16, generator=generator) for _ in range(2)]
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    starts = torch.tensor([0, 6, 16], dtype=torch.int32)  # with the new rows
    lines = [[torch.cat([c[i], c[j]]) for i, j in table.tolist()] for c in caches]
    out = _flash_attention_forward(
        *(q, k, v, None, 1, True),
        softmax_scale=0.3,
        cu_seq_lens_k=starts,
        block_table=table,
        k_cache=caches[0],
        v_cache=caches[1],
        attn_implementation=name,
    )
    for row, used in enumerate((5, 9)):
        keys, values = (
            torch.cat([line[row][:used], new[0, row : row + 1]])[None]
            for line, new in zip(lines, (k, v), strict=True)
        )
        wanted = attention(q[:, row : row + 1], keys, values, softmax_scale=0.3)
        torch.testing.assert_close(out[:, row : row + 1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_counted(name: str) -> None:
    before = counted_calls.copy()
    with torch.no_grad():
        twins("llama", name)[1](IDS)
    library = "transformers" if name == compat.NAME else "flash_attn"
    assert counted_calls - before == {library: 2}


def test_every_kind_of_model_is_there(calls: list[Tensor]) -> None:
    calls.append(text()["input_ids"])
    assert len(FAMILIES) == 12


def test_the_repository_is_saved_as_a_whole(calls: list[Tensor], tmp_path: Path) -> None:
    calls.append(IDS)
    saved = hub_kernel.save_repository(tmp_path / "repository")
    assert {path.relative_to(saved).as_posix() for path in saved.rglob("*.*")} == {
        f"build/torch-{backend}/{file}"
        for backend in ("cpu", "cuda")
        for file in ("__init__.py", "metadata.json")
    }
