# SPDX-License-Identifier: Apache-2.0
"""Commands about attention on several GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from flash_attention_workbench.commands.console import json_file
from flash_attention_workbench.commands.declared.options import JsonOption

NODE, NEAR, FAR = 8, (360.0, 8.0), (45.0, 20.0)  # GPUs of a node; GB/s and microseconds of links


def simulate(
    length: Annotated[int, typer.Option(help="rows of the sequence", min=1)] = 1 << 20,
    gpus: Annotated[int, typer.Option(help="GPUs that it is divided among", min=1)] = 8,
    heads: Annotated[int, typer.Option(help="heads of q", min=1)] = 32,
    heads_k: Annotated[
        int | None, typer.Option(help="heads of k and v; as many as of q if left out", min=1)
    ] = None,
    d: Annotated[int, typer.Option("--d", help="head dimension", min=1)] = 128,
    batch: Annotated[int, typer.Option(help="sequences", min=1)] = 1,
    causal: Annotated[
        bool, typer.Option("--causal/--full", help="whether query i sees no key after it")
    ] = True,
    window: Annotated[
        int | None, typer.Option(help="keys that a query sees before its own", min=0)
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward/--forward", help="the pass to simulate")
    ] = False,
    node: Annotated[int, typer.Option(help="GPUs of a node", min=1)] = NODE,
    bandwidth: Annotated[
        float, typer.Option(help="of a GPU within its node, GB/s each way", min=0.001)
    ] = NEAR[0],
    latency: Annotated[
        float, typer.Option(help="of a message within a node, microseconds", min=0)
    ] = NEAR[1],
    far_bandwidth: Annotated[
        float, typer.Option(help="of a GPU to other nodes, GB/s each way", min=0.001)
    ] = FAR[0],
    far_latency: Annotated[
        float, typer.Option(help="of a message between nodes, microseconds", min=0)
    ] = FAR[1],
    json: JsonOption = None,
) -> None:
    """How long each schedule of distributed attention takes, what it moves and what it hides.

    Kernels take the times that were measured on one H200. The links are assumptions. Nothing runs.
    """
    given = locals()
    from flash_attention_workbench.commands.simulate import simulate as run

    with json_file(json) as given["json"]:
        run(**given)
