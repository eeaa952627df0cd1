# SPDX-License-Identifier: Apache-2.0
"""Our kernels beside FlashAttention-3, cuDNN and FlashAttention-2, over a grid of problems:

FLASH_ATTENTION_FA3=LIBRARY PYTHONPATH=src python benchmarks/hopper_grid.py RESULTS [--grid seed]

At every point the config that `select_config` chooses, and every config of --configs that has the
head dimension. The ratio is how many times as fast as the faster of FA3 and cuDNN.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from flash_attention.bench.environment import describe
from flash_attention.bench.grid import GRIDS, Point, points
from flash_attention.bench.grid_run import GridRow, measure_point
from flash_attention.bench.grid_summary import summary
from flash_attention.bench.peers import PEERS, checked_names
from flash_attention.bench.statistics import tflops
from flash_attention.cli.precompile import Job, precompile
from flash_attention.dispatch import current_arch
from flash_attention.kernel_configs import DType, KernelConfig, parse_kernel_config
from flash_attention.select import select_config


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, help="JSON file to write")
    parser.add_argument("--grid", choices=GRIDS, default="fa3")
    parser.add_argument("--dtype", type=DType.from_string, help="fp16 or bf16; the grid's own")
    parser.add_argument("--d", type=numbers, help="head dimensions, comma-separated")
    parser.add_argument("--causal", type=numbers, help="0, 1 or 0,1")
    parser.add_argument("--seq", type=numbers, help="lengths, comma-separated")
    parser.add_argument("--configs", type=Path, help="short forms, one a line, timed too")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--fa3", type=Path, help="FA3's library, else $FLASH_ATTENTION_FA3")
    parser.add_argument("--repeats", type=int, default=25, help="timed runs of each contender")
    return parser.parse_args(arguments)


def read_configs(path: Path | None, dtype: DType) -> list[KernelConfig]:
    """The configs of a file in the dtype that is measured; # begins a comment."""
    lines = (
        [] if path is None else [line.partition("#")[0] for line in path.read_text().split("\n")]
    )
    return [replace(parse_kernel_config(line), dtype=dtype) for line in lines if line.strip()]


def compile_all(chosen: dict[Point, list[KernelConfig]]) -> None:
    """Fills the compile cache by all cores; what fails says so again when it is run."""
    arch = current_arch()
    jobs = {
        Job(config, arch, p.causal): None for p, configs in chosen.items() for config in configs
    }
    for _ in precompile(list(jobs), len(os.sched_getaffinity(0))):
        pass


def line(row: GridRow, point: Point, number: int, peers: Sequence[str]) -> str:
    """One row of the table; `number` stands for the config."""
    speeds = {name: f"{tflops(point.flop, ms):5.1f}" for name, ms in row.peers.items()}
    beside = " ".join(f"{name} {speeds.get(name, '    -')}" for name in peers)
    ratio = "" if row.ratio is None else f" x{row.ratio:.3f}"
    mask = "causal" if row.causal else "full"
    verdict = "" if row.ok else " WRONG"
    return f"{row.d:3} {mask:6} {row.seq:5} [{number}] {row.tflops:5.1f} {beside}{ratio}{verdict}"


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    grid = GRIDS[given.grid]
    dtype = given.dtype or grid.dtype
    masks = grid.masks if given.causal is None else tuple(map(bool, given.causal))
    todo = points(given.grid, given.d or grid.d_heads, masks, given.seq or grid.seq_lens)
    peers = checked_names(given.peers.split(","))
    if not torch.cuda.is_available():
        sys.exit("hopper_grid.py needs an NVIDIA GPU; torch sees none")
    arch, device = current_arch(), torch.device("cuda", torch.cuda.current_device())
    extra = read_configs(given.configs, dtype)
    chosen = {
        point: [select_config(point.problem(dtype), arch)]
        + [config for config in extra if config.d_head == point.d_head]
        for point in todo
    }
    compile_all(chosen)
    rows: list[GridRow] = []
    refused: list[dict[str, Any]] = []
    record: dict[str, Any] = {
        **describe(device),
        "command": " ".join(("benchmarks/hopper_grid.py", *arguments)),
        "grid": given.grid,
        "dtype": dtype.name,
        "repeats": given.repeats,
    }
    legend: dict[str, int] = {}
    for point, (selected, *others) in chosen.items():
        result = measure_point(
            *(point, selected, others),
            peers=peers,
            repeats=given.repeats,
            device=device,
            fa3=given.fa3,
        )
        for row in result.rows:
            number = legend.setdefault(row.config, len(legend) + 1)
            print(line(row, point, number, peers), flush=True)
        rows += result.rows
        refused += [{**asdict(point), "name": n, "why": why} for n, why in result.refused.items()]
        record.update(rows=[asdict(row) for row in rows], refused=refused)
        given.results.write_text(json.dumps(record, indent=1) + "\n")
    for text in summary(rows, refused, legend):
        print(text)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
