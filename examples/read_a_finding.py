# SPDX-License-Identifier: Apache-2.0
"""What the emulator says of a kernel with a mistake, and how to read it.

Run it with `python examples/read_a_finding.py`. It needs no GPU. A barrier is taken out of a copy
of the headers. The output is still right; only the findings tell. The command line does the same:
`flash-attention emulate --plant missing-barrier`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from flash_attention.call.call import Call
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention.testing import check_output, generate_qkv
from flash_attention_workbench.mends import MENDS
from flash_attention_workbench.plants import compiler, edited_headers, find_plant, shortened

plant = find_plant("missing-barrier")
print(f"planted: {plant.idea}, in {plant.edits[0].header}")

config = get_ladder(n_heads=2)[plant.rung - 1].config
q, k, v = generate_qkv(1, 256, 2, config.d_head, config.dtype)
call = Call(q, k, v)
with TemporaryDirectory() as folder:
    compile_unit = compiler(edited_headers(plant.edits, Path(folder)))
    result = emulate_plan(Plan(call, config), call, Settings(), compile_unit=compile_unit)

print(f"the output: {check_output(result.output, q, k, v)}")

# A finding is one mistake at one pair of instructions, with the first lane that made it.
first = result.findings[0]
print(f"{len(result.findings)} findings, the first of kind {first.kind}:")
print(f"  who    CTA {first.cta}, warp {first.warp}, lane {first.lane}, {first.count} times in all")
print(f"  what   {first.detail}, at address {first.address:#x}")
print(f"  where  {shortened(str(first.source))}")
print(f"  other  {shortened(str(first.other_source))}")
print(f"  mend   {MENDS[first.kind]}")
assert first.kind == plant.caught_by
