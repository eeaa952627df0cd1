# SPDX-License-Identifier: Apache-2.0
"""Blocks are rendered from results files, and the documents are in step with the stored ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.render import api, commands, documents, drawings, gpus, masks
from benchmarks.render.blocks import begin, end, marked_block, replace_block
from benchmarks.render.measured import MEASURED, measured_block
from benchmarks.render.overview import OVERVIEW, WORKLOADS, overview_block
from benchmarks.render.random_problems import PROBLEMS
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.results import load, save
from flash_attention_workbench.bench.stored import Stored, read_folder
from tests.workbench.bench.made_up import made_up_results
from tests.workbench.bench.made_up_grid import made_up_grid

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"


def test_every_number_of_the_table() -> None:
    lines = documents.ladder_block(made_up_results()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table == [
        "| rung | what changes | 2 x 512 | 1 x 1024 | mean |",
        "| --- | --- | ---: | ---: | ---: |",
        "| FA2 |  | 100 (100%) | 300 (100%) | 150 (**100.0%**) |",
        "| 1 base |  | 50 (50%) | 75 (25%) | 60 (**40.0%**) |",
        "| 2 swizzle | `swizzled: False -> True` | 110 (110%) | 330 (110%) | 165 (**110.0%**) |",
    ]


def test_the_block_says_where_it_was_measured() -> None:
    block = documents.ladder_block(made_up_results())
    for fact in ("Some GPU", "580.1 (CUDA 13.0)", "2.13.0", "2026-01-31", "0123456789ab", "FP16"):
        assert fact in block


def test_rendering_into_a_document(tmp_path: Path) -> None:
    readme, results = tmp_path / "ladder.md", tmp_path / "r.json"
    readme.write_text(f"# before\n{begin(documents.LADDER)}\nold\n{end(documents.LADDER)}\nafter\n")
    save(made_up_results(), results)
    for _ in range(2):
        documents.main([str(readme), str(results)])
        block = documents.ladder_block(made_up_results())
        assert readme.read_text() == f"# before\n{block}\nafter\n"
    assert (tmp_path / documents.PLOT).read_bytes().startswith(b"\x89PNG")


def test_a_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    readme, results = tmp_path / "README.md", tmp_path / "r.json"
    readme.write_text("# no markers\n")
    save(made_up_results(), results)
    with pytest.raises(UnsupportedError, match="ladder:begin"):
        documents.main([str(readme), str(results)])
    assert readme.read_text() == "# no markers\n"
    assert not (tmp_path / documents.PLOT).exists()


def test_counters_that_differ_show_both_numbers() -> None:
    counted = {"sectors": 20480, "conflicts": 8}
    record = {
        **vars(made_up_results()),
        "shape": [1, 256, 2, 128],
        "rows": [
            {"rung": 2, "name": "swizzle", "ncu": counted, "emulator": {**counted, "conflicts": 0}}
        ],
    }
    lines = documents.counters_block(record).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        "| counter | 2 swizzle |",
        "| --- | ---: |",
        "| sectors | 20,480 |",
        "| conflicts | 8 / 0 |",
    ]


def test_a_grid_goes_into_the_block_of_its_name(tmp_path: Path) -> None:
    document, results = tmp_path / "d.md", tmp_path / "r.json"
    name = "grid-fa3-bf16"
    others = f"{begin(documents.LADDER)}\nkept\n{end(documents.LADDER)}"
    document.write_text(f"{others}\n{begin(name)}\nold\n{end(name)}\nafter\n")
    results.write_text(json.dumps(made_up_grid()))
    documents.main([str(document), str(results)])
    block = documents.grid_block(made_up_grid())
    assert document.read_text() == f"{others}\n{block}\nafter\n"
    assert "| 64 | full | ours | 800 (**2.00**) | 500 (**0.50**) |  |" in block
    assert "Geometric mean of the multiples: **1.000**." in block
    assert "the faster of FA3 and cuDNN" in block
    for fact in ("Some GPU", "580.1 (CUDA 13.0)", "2026-01-31", "BF16"):
        assert fact in block


def test_a_grid_of_few_queries_is_told_in_bytes() -> None:
    record = made_up_grid() | {"grid": "decode", "l2": "hot"}
    few = {"heads_k": 8, "seq_q": 1, "gbps": 1000.0, "copy_gbps": 4000.0}
    record["rows"] = [record["rows"][0] | few]
    block = documents.grid_block(record)
    assert block.startswith(begin("grid-decode-bf16"))
    assert "A cell is GB/s of K and V; a peer's also says" in block
    assert "medians of interleaved runs with L2 hot." in block
    assert "| 32 x 512, 1 q, 32/8 h, d 64, full | 1000 | 500 (**2.00**) |" in block
    assert "multiples of the faster of FA3 and cuDNN: **2.000**" in block
    block = documents.grid_block(record | {"graph": True})
    assert block.startswith(begin("grid-decode-bf16-graph"))
    assert "Every contender replays a CUDA graph." in block


def test_a_table_is_shown_where_it_says_otherwise_than_the_heuristic() -> None:
    record = made_up_grid() | {"l2": "cold"}
    first, second, *_ = (row for row in record["rows"] if row["selected"])
    record["rows"] = [
        first | {"heuristic_ms": 1.21 * first["ms"]},
        second | {"heuristic_ms": second["ms"]},
    ]
    name = "tuned-fa3-bf16"
    text = documents.render(f"{begin(name)}\nold\n{end(name)}\n", record)
    assert text is not None
    (line,) = (line for line in text.splitlines() if line.startswith("| 32"))
    assert line.startswith(f"| 32 x 512, 32 h, d 64, full | `{first['config']}` |")
    assert line.endswith("| 1.210 |")
    assert "At the other 1 points the table keeps" in text
    assert "choice is **1.100** times as fast in geometric mean, and 1.000 times as fast" in text


def test_random_problems_are_told_in_words() -> None:
    record = {
        **{key: made_up_grid()[key] for key in ("device", "driver", "nvrtc", "torch", "date")},
        **{"commit": None, "count": 2000, "kernels": 7, "families": {"sm80": 500, "sm90": 1500}},
        **{"worst": {"share": 0.5}, "worst_lse": {"share": 0.25}},
        **{"features": {"causal": 1200, "pages": 30, "lse": 9, "sinks": 8}, "failures": [{}]},
    }
    text = documents.render(f"{begin(PROBLEMS)}\nold\n{end(PROBLEMS)}\n", record)
    assert text is not None
    assert "1,999 of 2,000 random problems were right" in text
    assert "1,500 of them computed by sm_90 kernels and 500 by sm_80 kernels" in text
    assert "50% of what is allowed, and that of a log-sum-exp 25%" in text
    assert "| causal | 1,200 | paged KV cache | 30 | log-sum-exp returned | 9 |" in text
    assert "| sinks | 8 |  |  |  |  |" in text


def test_the_documents_show_the_stored_measurements() -> None:
    ladder = (ROOT / "docs" / "ladder.md").read_text()
    stored = load(RESULTS / "h200_ladder.json")
    assert marked_block(ladder, documents.LADDER) == documents.ladder_block(stored)
    assert (ROOT / "docs" / documents.PLOT).exists()
    assert (ROOT / "docs" / documents.PLOTS["grid-fa3-bf16"]).exists()


def test_rendering_all_that_is_stored_changes_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = (api, commands, drawings, gpus, masks)
    references = [page.DOCUMENT.as_posix() for page in pages]
    names = sorted({*references, *(document for document, _ in documents.DOCUMENTS)})
    for document in names:
        copy = tmp_path / document
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((ROOT / document).read_text())
    (tmp_path / "results").symlink_to(RESULTS)
    monkeypatch.chdir(tmp_path)
    documents.main([])
    for document in names:
        rendered, stored = ((root / document).read_text() for root in (tmp_path, ROOT))
        if Path(document) in commands.PLANTS:  # where its numbers are another test's
            rendered, stored = (replace_block(t, commands.FINDING, "") for t in (rendered, stored))
        assert rendered == stored, document


def test_two_ways_to_time_are_shown_side_by_side() -> None:
    setting = {key: made_up_grid()[key] for key in ("device", "driver", "nvrtc", "torch", "date")}
    row = {"rung": 16, "batch": 4, "seq": 512, "bench": 2.0, "timed": 2.03, "apart": 0.015}
    block = documents.timed_block({**setting, "commit": None, "rows": [row]})
    assert "| 16 | 4 x 512 | 2.0000 | 2.0300 | +1.5 % |" in block


def test_the_overview_has_a_line_for_every_workload() -> None:
    stored = [Stored(Path(name), "grid", made_up_grid()) for name in WORKLOADS]
    block = overview_block(stored)
    assert block.startswith(begin(OVERVIEW))
    assert "Measured on: Some GPU. The speed is a multiple" in block
    lines = [line for line in block.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(WORKLOADS)
    assert all(line.endswith("| vLLM's | 01234567 | 2 | 1.00 | 0.50 to 2.00 |") for line in lines)


def test_the_overview_is_beside_one_build_of_fa3_and_of_one_commit_but_for_random_problems() -> (
    None
):
    block = overview_block(read_folder(RESULTS))
    rows = [line.split(" | ") for line in block.splitlines() if "[docs/" in line]
    assert len(rows) == len(WORKLOADS)
    later = {row[0]: row[3] for row in rows if row[3] != "68e22929"}
    assert {row[2] for row in rows} == {"upstream's"}
    assert later == {
        "| random problems of real models": "93a39d43",
        "| the backward pass of random problems": "c9af5f4d",
    }


def test_every_shown_measurement_says_where_it_was_made_and_beside_whose_fa3() -> None:
    page = (ROOT / "docs" / "measuring.md").read_text()
    block = marked_block(page, MEASURED)
    assert block == measured_block(read_folder(RESULTS), documents.DOCUMENTS)
    for file in {stored for _, stored in documents.DOCUMENTS if (RESULTS / stored).is_file()}:
        assert f"| `{file}` |" in block
    builds = dict(re.findall(r"^\| `h200_(\w+)\.json` .*\| ([^|]*) \|$", block, re.M))
    assert builds["serving"] == builds["prefill_gqa_bf16"] == "vLLM's"
    assert builds["mla"] == builds["decode_bf16"] == builds["training_bf16"] == "upstream's"
    assert builds["functions"] == builds["fp8"] == ""


def test_a_grid_is_plotted_beside_the_document_that_shows_it(tmp_path: Path) -> None:
    document, results = tmp_path / "d.md", tmp_path / "r.json"
    name = "grid-fa3-bf16"
    results.write_text(json.dumps(made_up_grid()))
    document.write_text(f"{begin(name)}\nold\n{end(name)}\n")
    documents.main([str(document), str(results)])
    assert (tmp_path / documents.PLOTS[name]).read_bytes().startswith(b"\x89PNG")


def test_every_stored_measurement_is_shown() -> None:
    shown = {*WORKLOADS, *(stored for _, stored in documents.DOCUMENTS)}
    files = {path.name for path in RESULTS.glob("h200_*.json")}
    beside_others = {
        "h200_peaks.json",
        "h200_hopper_grid_bf16_again.json",
        "h200_hopper_grid_bf16_vllm.json",
        "h200_sm80_tuned.json",  # a table of the tuner
    }
    assert files - shown == beside_others


def test_rendering_the_folder_of_results_changes_no_rung(tmp_path: Path) -> None:
    text = (ROOT / "docs/ladder.md").read_text()
    document = tmp_path / "ladder.md"
    document.write_text(text)
    documents.main([str(document), str(RESULTS)])
    assert document.read_text() == text


def test_the_memory_of_a_training_step_follows_what_calls_cost() -> None:
    record = json.loads((RESULTS / "h200_host_cost.json").read_text())
    cost = documents.host_block(record | {"trained": "", "peak_mib": {}})
    peaks = {"trained": "2 x 8192", "peak_mib": {"attention": 1234.4, "fa3": 1500.0}}
    told = "besides its inputs, 2 x 8192: attention 1,234 MiB, fa3 1,500 MiB."
    assert told not in cost
    assert told in documents.host_block(record | peaks)
