# SPDX-License-Identifier: Apache-2.0
"""Which document shows which results, and the block that each kind of results goes into.

A grid goes wherever the block of its name and dtype stands, as in <!-- grid-fa3-bf16:begin -->.
docs/ladder.md and docs/backward_ladder.md take what all files together say of every rung,
README.md what they say of every workload, and docs/measuring.md where each was measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.render import api, commands, distributed, drawings, gpus, masks
from benchmarks.render.blocks import begin, replace_block, table, wrap
from benchmarks.render.conformance import CONFORMANCE, conformance_block
from benchmarks.render.corpus import CORPUS, corpus_block
from benchmarks.render.functions import functions_block, functions_name
from benchmarks.render.gradients import (
    CURVES,
    CURVES_PLOT,
    GRADIENT_PROBLEMS,
    LLAMA,
    curves_block,
    curves_figure,
    gradient_problems_block,
    gradients_block,
    is_gradients,
    llama_block,
)
from benchmarks.render.grid_tables import grid_table, is_plain, point_table
from benchmarks.render.inference import FP8, MLA, fp8_block, mla_block
from benchmarks.render.ledger import (
    ABLATIONS,
    POINTS,
    PROFILE,
    ablations_block,
    points_block,
    profile_block,
)
from benchmarks.render.measured import MEASURED, measured_block
from benchmarks.render.options import OPTIONS, options_block
from benchmarks.render.overview import OVERVIEW, overview_block
from benchmarks.render.random_problems import PROBLEMS, problems_block
from benchmarks.render.recorded import RECORDED, is_recorded, recorded_block
from benchmarks.render.rungs import render_rungs
from benchmarks.render.sanitizer import SANITIZER, sanitizer_block
from benchmarks.render.serving import SERVING_PLOT, serving_block
from benchmarks.render.tangents import is_tangents, tangents_block
from benchmarks.render.tuned import tuned_block, tuned_name
from flash_attention.families.passes import Pass
from flash_attention_workbench.bench import plot, results
from flash_attention_workbench.bench.comparison import Comparison, compare
from flash_attention_workbench.bench.functions import FUNCTIONS
from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.grid_summary import mean_ratio, rivals, selected_rows, unit
from flash_attention_workbench.bench.serving import SERVING
from flash_attention_workbench.bench.serving_plot import serving_speeds
from flash_attention_workbench.bench.serving_run import serving_record
from flash_attention_workbench.bench.stored import Stored, read_file, read_folder

LADDER, COUNTERS, HOST, TIMED = "ladder", "counters", "host", "forward-timed"
BACKWARD_LADDER = "backward-ladder"
PLOT, BACKWARD_PLOT = Path("ladder.png"), Path("backward_ladder.png")  # beside the document
PLOTS = {
    "grid-fa3-bf16": Path("fa3.png"),
    "grid-backward-bf16": Path("backward.png"),
}  # of grids
RESULTS = Path("results")
DOCUMENTS = (
    ("README.md", ""),
    ("docs/attention.md", "h200_decode_bf16.json"),
    ("docs/attention.md", "h200_decode_graph_bf16.json"),
    ("docs/attention.md", "h200_hopper_grid_bf16.json"),
    ("docs/attention.md", "h200_options.json"),
    ("docs/attention.md", "h200_prefill_gqa_bf16.json"),
    ("docs/attention.md", "h200_random_problems.json"),
    ("docs/attention.md", "h200_tangent.json"),
    ("docs/attention.md", "h200_tuned_models_bf16.json"),
    ("docs/attention.md", "h200_uneven_bf16.json"),
    ("docs/attention.md", "h200_varlen_bf16.json"),
    ("docs/attention.md", "h200_window_bf16.json"),
    ("docs/backward.md", "h200_backward_bf16.json"),
    ("docs/backward.md", "h200_backward_gqa_bf16.json"),
    ("docs/backward.md", "h200_backward_random_bf16.json"),
    ("docs/backward.md", "h200_backward_seed_fp16.json"),
    ("docs/backward.md", "h200_backward_varlen_bf16.json"),
    ("docs/backward.md", "h200_llama.json"),
    ("docs/backward.md", "h200_random_gradients.json"),
    ("docs/backward.md", "h200_training_bf16.json"),
    ("docs/backward.md", "h200_training_curves.json"),
    ("docs/backward_ladder.md", "h200_backward_ladder.json"),
    ("docs/backward_ladder.md", ""),
    ("docs/distributed.md", "cpu_distributed.json"),
    ("docs/emulator.md", "emulator_corpus.json"),
    ("docs/emulator.md", "h200_conformance.json"),
    ("docs/emulator.md", "h200_emulator_counters.json"),
    ("docs/emulator.md", "h200_sanitizer.json"),
    ("docs/forward.md", "h200_forward_timed.json"),
    ("docs/ladder.md", "h200_ladder.json"),
    ("docs/ladder.md", "h200_ladder_profile.json"),
    ("docs/ladder.md", ""),
    ("docs/masks.md", "h200_first_calls.json"),
    ("docs/masks.md", "h200_functions.json"),
    ("docs/measuring.md", ""),
    ("docs/measurements.md", "h200_fp8.json"),
    ("docs/measurements.md", "h200_hopper_grid_fp16.json"),
    ("docs/measurements.md", "h200_host_cost.json"),
    ("docs/measurements.md", "h200_mla.json"),
    ("docs/measurements.md", "h200_random_bf16.json"),
    ("docs/measurements.md", "h200_seed_grid.json"),
    ("docs/measurements.md", "h200_hopper_ablations.json"),
    ("docs/measurements.md", "h200_hopper_profile.json"),
    ("docs/serving.md", "h200_recorded.json"),
    ("docs/serving.md", "h200_recorded_sglang.json"),
    ("docs/serving.md", "h200_recorded_sglang_64.json"),
    ("docs/serving.md", "h200_serving.json"),
    ("docs/tuning.md", "h200_tuned_bf16.json"),
    ("docs/tuning.md", "h200_tuned_models_bf16.json"),
)
"""Which document shows which stored results; no name is the whole folder. What was not measured
yet leaves its block as it is."""
_HOW = "Numbers are medians of interleaved runs with L2 {l2}."


def ladder_block(measured: results.Results) -> str:
    """The speeds of the ladder: where they were measured, table, plot."""
    comparison = compare(measured)
    setting = (
        f"{_where(vars(measured))}. "
        f"{measured.dtype}, {measured.n_heads} heads of {measured.d_head}; {measured.pass_}, "
        f"{'causal mask' if measured.causal else 'no mask'} unless the row says so. "
        "A cell is TFLOP/s and percent of FA2, which is torch's SDPA with its FlashAttention-2 "
        f"backend. {_HOW.format(l2='cold')} "
        "The mean over the lengths is harmonic."
    )
    best = max(entry.mean_of_fa2 for entry in comparison.entries)
    told = (
        f"A bar for each rung of the {measured.pass_} pass: its speed as a share of"
        f" FlashAttention-2's. The highest is {100 * best:.0f} %"
    )
    image = f"![{told}]({ladder_plot(measured).as_posix()})"
    return wrap(ladder_name(measured), (setting, "", *_speeds(comparison), "", image))


def ladder_name(measured: results.Results) -> str:
    """The block that the speeds of a ladder belong into."""
    return BACKWARD_LADDER if measured.pass_ == Pass.BACKWARD.value else LADDER


def ladder_plot(measured: results.Results) -> Path:
    return BACKWARD_PLOT if measured.pass_ == Pass.BACKWARD.value else PLOT


def counters_block(record: Mapping[str, Any]) -> str:
    """What Nsight Compute and the emulator counted, from benchmarks/counters_against_ncu.py."""
    rows = record["rows"]
    header = ["counter", *(f"{row['rung']} {row['name']}" for row in rows)]
    lines = [
        [name, *(_compared(row["ncu"][name], row["emulator"][name]) for row in rows)]
        for name in rows[0]["ncu"]
    ]
    batch, seq_len, heads, d_head = record["shape"]
    setting = (
        f"{_where(record)}. Batch {batch}, {seq_len} rows, {heads} heads of {d_head}, FP16. A cell"
        " is Nsight Compute's count, and the emulator's where it differs."
    )
    return wrap(COUNTERS, (setting, "", *table(header, lines, left=1)))


def grid_name(record: Mapping[str, Any]) -> str:
    """The block that a grid's results belong into."""
    graphs = "-graph" if record.get("graph") else ""
    return f"grid-{record['grid']}-{record['dtype'].lower()}{graphs}"


def grid_block(record: Mapping[str, Any]) -> str:
    """Kernels beside their peers over a grid, from what `flash-attention bench` wrote."""
    rows = grid_rows(record)
    mean = mean_ratio(selected_rows(rows))
    how = _HOW.format(l2=record.get("l2", "cold"))
    if record.get("graph"):
        how = f"Every contender replays a CUDA graph. {how}"
    over = f"Geometric mean of the multiples: **{mean:.3f}**." if mean else "No peer was measured."
    if is_plain(rows):
        setting = (
            f"{_where(record)}. {record['dtype']}, forward, self-attention. A cell is TFLOP/s;"
            f" ours also has the speed as a multiple of the faster of {rivals()}. {how} A causal"
            " mask halves the count of FLOP."
        )
        return wrap(grid_name(record), (setting, "", *grid_table(rows), "", over))
    setting = (
        f"{_where(record)}. {record['dtype']}, forward. A cell is {unit(rows)}; a peer's also says"
        f" how many times as fast ours is. {how}"
    )
    over = over.replace("multiples", f"multiples of the faster of {rivals()}")
    return wrap(grid_name(record), (setting, "", *point_table(rows), "", over))


def host_block(record: Mapping[str, Any]) -> str:
    """What a call costs the host, from benchmarks/host_cost.py."""
    times = [[name, f"{us:.1f}"] for name, us in record["steady_us"].items()]
    first = ", ".join(f"{name} {ms:,.0f} ms" for name, ms in record["first_call_ms"].items())
    batch, seq_len, heads, d_head = record["shape"]
    setting = (
        f"{_where(record)}. Microseconds of the host for a call in steady state; batch {batch},"
        f" {seq_len} rows, {heads} heads of {d_head}. In a new process: {first}."
    )
    lines = [setting, "", *table(["call", "us"], times, left=1)]
    if peaks := record.get("peak_mib"):
        told = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in peaks.items())
        lines += [
            "",
            f"Peak memory of a training step besides its inputs, {record['trained']}: {told}.",
        ]
    return wrap(HOST, lines)


def timed_block(record: Mapping[str, Any]) -> str:
    """`forward_timed` beside `flash-attention bench`, from benchmarks/forward_timed.py."""
    rows = [
        [
            str(row["rung"]),
            f"{row['batch']} x {row['seq']}",
            f"{row['bench']:.4f}",
            f"{row['timed']:.4f}",
            f"{100 * row['apart']:+.1f} %",
        ]
        for row in record["rows"]
    ]
    header = ["rung", "batch x rows", "bench, ms", "forward_timed, ms", "difference"]
    return wrap(TIMED, (f"{_where(record)}.", "", *table(header, rows, left=2)))


def _compared(measured: float, emulated: float) -> str:
    return f"{measured:,.0f}" if measured == emulated else f"{measured:,.0f} / {emulated:,.0f}"


def _where(record: Mapping[str, Any]) -> str:
    commit = f", commit {record['commit']}" if record["commit"] else ""
    return (
        f"{record['device']}, driver {record['driver']}, NVRTC {record['nvrtc']}, "
        f"torch {record['torch']}, {record['date']}{commit}"
    )


def _speeds(comparison: Comparison) -> list[str]:
    rows = []
    for entry in comparison.entries:
        cells = [
            f"{speed:.0f} ({100 * entry.of_fa2[i]:.0f}%)" for i, speed in enumerate(entry.tflops)
        ]
        mean = f"{entry.mean_tflops:.0f} (**{100 * entry.mean_of_fa2:.1f}%**)"
        change = f"`{entry.change}`" if entry.change else ""
        rows.append([entry.title, change, *cells, mean])
    shapes = [f"{batch} x {seq_len}" for batch, seq_len in comparison.shapes]
    return table(["rung", "what changes", *shapes, "mean"], rows, left=2)


def render(text: str, record: Mapping[str, Any]) -> str | None:
    """`text` with the block that these results are for; None if they are the ladder's speeds.

    A grid has a block of its own name, or one for what a table is worth at it; where a document
    lacks both, it lists every config.
    """
    if "repositories" in record:
        return replace_block(text, CORPUS, corpus_block(record))
    if "steady_us" in record:
        return replace_block(text, HOST, host_block(record))
    if "worst_gradients" in record:
        return replace_block(
            text, GRADIENT_PROBLEMS, gradient_problems_block(record, _where(record))
        )
    if "failures" in record:
        return replace_block(text, PROBLEMS, problems_block(record, _where(record)))
    if "tokens" in record:
        return replace_block(text, LLAMA, llama_block(record, _where(record)))
    if "losses" in record:
        return replace_block(text, CURVES, curves_block(record, _where(record)))
    if record.get("grid") == FUNCTIONS:
        name = functions_name(record)
        return replace_block(text, name, functions_block(record, _where(record)))
    row = record["rows"][0]
    if "simulated_ms" in row:
        return replace_block(text, distributed.PROCESSES, distributed.processes_block(record))
    if "mistake" in row:
        return replace_block(text, SANITIZER, sanitizer_block(record, _where(record)))
    if "instruction" in row:
        return replace_block(text, CONFORMANCE, conformance_block(record, _where(record)))
    if record.get("grid") == SERVING:
        return replace_block(text, SERVING, serving_block(SERVING, record, _where(record)))
    if "grid" in record:
        name = grid_name(record)
        if is_tangents(record):
            return replace_block(text, name, tangents_block(name, record, _where(record)))
        if is_gradients(record):
            picture = PLOTS[name].as_posix() if name in PLOTS else None
            block = gradients_block(name, record, _where(record), picture)
            return replace_block(text, name, block)
        if begin(tuned_name(record)) in text:
            return replace_block(text, tuned_name(record), tuned_block(record, _where(record)))
        if begin(name) in text or begin(ABLATIONS) not in text:
            return replace_block(text, name, grid_block(record))
        return replace_block(text, ABLATIONS, ablations_block(record, _where(record)))
    if "options_ms" in row:
        return replace_block(text, OPTIONS, options_block(record, _where(record)))
    if "tb_s" in row:
        return replace_block(text, MLA, mla_block(record, _where(record)))
    if "relative_rms" in row:
        return replace_block(text, FP8, fp8_block(record, _where(record)))
    if "timed" in row:
        return replace_block(text, TIMED, timed_block(record))
    if "ncu" in row:
        return replace_block(text, COUNTERS, counters_block(record))
    if "rung" in row and "kcycles" in row:
        return replace_block(text, PROFILE, profile_block(record, _where(record)))
    if "kcycles" in row:
        return replace_block(text, POINTS, points_block(record, _where(record)))
    return None


def _render_folder(text: str, stored: Sequence[Stored]) -> str:
    if begin(OVERVIEW) in text:
        return replace_block(text, OVERVIEW, overview_block(stored))
    if begin(MEASURED) in text:
        return replace_block(text, MEASURED, measured_block(stored, DOCUMENTS))
    pass_ = Pass.BACKWARD if begin(BACKWARD_LADDER) in text else Pass.FORWARD
    return render_rungs(text, stored, pass_)


def write(document: Path, stored: Path) -> None:
    """Brings what `document` shows of the results `stored` up to date."""
    text = document.read_text()
    if stored.is_dir():
        document.write_text(_render_folder(text, read_folder(stored)))
        return
    record = read_file(stored).record
    if is_recorded(record):  # the engines of a folder share a table
        records = [one.record for one in read_folder(stored.parent) if is_recorded(one.record)]
        document.write_text(replace_block(text, RECORDED, recorded_block(records, _where)))
        return
    if (rendered := render(text, record)) is not None:
        document.write_text(rendered)
        if record.get("grid") == SERVING:
            rows_beside = [row for row in serving_record(record).rows if row.ratio is not None]
            if rows_beside:
                figure = serving_speeds(rows_beside, record["device"])
                plot.save(figure, document.parent / SERVING_PLOT)
        elif "grid" in record and begin(name := grid_name(record)) in text and name in PLOTS:
            rows = grid_rows(record)
            words = Measured[rows[0].measured].words
            setting = f"{record['device']}, {record['dtype']}, {words}"
            plot.save(plot.grid_speeds(rows, setting), document.parent / PLOTS[name])
        if "losses" in record:
            plot.save(curves_figure(record), document.parent / CURVES_PLOT)
        return
    measured = results.load(stored)
    text = replace_block(text, ladder_name(measured), ladder_block(measured))
    picture = document.parent / ladder_plot(measured)
    plot.save(plot.speeds(compare(measured), measured.setting), picture)
    document.write_text(text)


def write_reference() -> None:
    """Brings what the documents say of functions and commands up to date."""
    api.DOCUMENT.write_text(api.api_page())
    for document, name, block in (
        (commands.DOCUMENT, commands.COMMANDS, commands.commands_block()),
        (distributed.DOCUMENT, distributed.SIMULATED, distributed.simulated_block()),
        (gpus.DOCUMENT, gpus.GPUS, gpus.gpus_block()),
        (masks.DOCUMENT, masks.PICTURES, masks.pictures_block()),
        *((page, commands.FINDING, commands.finding_block(page)) for page in commands.PLANTS),
    ):
        document.write_text(replace_block(document.read_text(), name, block))
    drawings.write_drawings()
    picture = distributed.DOCUMENT.parent / distributed.PLOT
    plot.save(distributed.simulated_figure(), picture)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.render",
        description="Brings documents up to date: all of this checkout, or one with some results.",
    )
    parser.add_argument("document", type=Path, nargs="?")
    parser.add_argument("results", type=Path, nargs="?", help="a file, or a folder for the rungs")
    given = parser.parse_args(arguments)
    if given.document is None:
        for document, stored in DOCUMENTS:
            if (RESULTS / stored).exists():  # the others wait for a measurement
                write(Path(document), RESULTS / stored)
        write_reference()
    elif given.results is None:
        parser.error("a document needs the results that go into it")
    else:
        write(given.document, given.results)
