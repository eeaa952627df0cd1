# SPDX-License-Identifier: Apache-2.0
"""`ptx-emulator FILE`: the kernels of docs/emulate_your_kernel.md, wrong and mended."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ptx_emulator.command import main
from ptx_emulator.user_kernel.compiling import toolkit_headers

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "examples" / "kernels"
DOCUMENT = (ROOT / "docs" / "emulate_your_kernel.md").read_text()


def invoke(*arguments: str, exit_code: int = 0) -> str:
    """Standard output of `ptx-emulator ARGUMENTS`, which must end with `exit_code`."""
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == exit_code, out.getvalue()
    return out.getvalue()


def refuse(*arguments: str) -> str:
    """What `ptx-emulator ARGUMENTS` says when it refuses them."""
    with redirect_stderr(io.StringIO()) as said:
        assert invoke(*arguments, exit_code=2) == ""
    return " ".join(said.getvalue().split())


class Example(NamedTuple):
    """A kernel of the page: how it is launched, and the lines that mend it."""

    name: str
    launch: str
    before: str
    after: str

    def emulate(self, source: Path, *more: str, exit_code: int = 0) -> str:
        reference = f"{KERNELS / 'reference.py'}:{self.name}"
        launch = self.launch.split()
        return invoke(str(source), *launch, "--compare", reference, *more, exit_code=exit_code)

    def mended(self, folder: Path) -> Path:
        text = (KERNELS / f"{self.name}.cu").read_text()
        assert text.count(self.before) == 1
        path = folder / f"{self.name}.cu"
        path.write_text(text.replace(self.before, self.after))
        return path


SUM = Example(
    "block_sum",
    "--grid 4 --block 256 --arg f32:out:4 --arg f32:in:1024@random",
    "    if (t < step) partial[t] += partial[t + step];\n",
    "    if (t < step) partial[t] += partial[t + step];\n    __syncthreads();\n",
)
PRODUCT = Example(
    "tiled_matmul",
    "--grid 2,2 --block 32,32 --arg f32:c:64x64 --arg f32:a:64x64@random"
    " --arg f32:b:64x64@random --arg i32=64",
    "  __shared__ float b_tile[kTile][kTile];\n",
    "  __shared__ float b_tile[kTile][kTile + 1];\n",
)
COPY = Example(
    "bulk_copy",
    "--arch sm_90 --grid 2 --block 256 --arg f32:out:512 --arg f32:in:512@random",
    "    expect_bytes(&arrived, kCount);\n",
    "    expect_bytes(&arrived, sizeof(tile));\n",
)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_race_is_found_though_the_sum_is_right() -> None:
    printed = SUM.emulate(Path("examples/kernels/block_sum.cu"), exit_code=1)
    shown = printed[printed.index("out: right") : printed.index("hottest")]
    assert shown.strip() in DOCUMENT
    assert "[race] block_sum" in shown
    assert "that address is partial + 256 bytes" in shown
    assert "examples/kernels/block_sum.cu:10  if (t < step)" in shown


def test_another_schedule_shows_wrong_numbers() -> None:
    source = KERNELS / "block_sum.cu"
    printed = SUM.emulate(source, "--schedule", "depth-first", exit_code=1)
    (line,) = (line for line in printed.splitlines() if line.startswith("out: wrong"))
    assert line in DOCUMENT


def test_an_element_is_watched_and_a_thread_is_stopped() -> None:
    asked = ("--schedule", "depth-first", "--watch", "partial[64]", "--break", "block_sum.cu:12")
    printed = SUM.emulate(KERNELS / "block_sum.cu", *asked, exit_code=1)
    told = printed[: printed.index("block_sum, sm_80")].strip().splitlines()
    first, last = told[0], told[-1]
    assert first.endswith("(block_sum.cu:7), by CTA 0 warp 2 lane 0")
    assert last.endswith("(block_sum.cu:10), by CTA 0 warp 2 lane 0")
    stored = next(n for n, line in enumerate(told) if "], out: " in line)
    assert "\n".join((first, "...", *told[stored - 6 :])) in DOCUMENT


def test_a_thread_is_named_by_two_numbers() -> None:
    source = str(KERNELS / "block_sum.cu")
    error = refuse(source, *SUM.launch.split(), "--break", "k.cu:1", "--thread", "3")
    assert "--thread: '3': pass the CTA and the thread, as in 0,5" in error


@pytest.mark.parametrize("example", [SUM, PRODUCT, COPY], ids=lambda example: example.name)
def test_mended_kernels_are_clean(example: Example, tmp_path: Path) -> None:
    assert all(line.strip() in DOCUMENT for line in example.after.splitlines())
    for schedule in ("lockstep", "depth-first", "random"):
        printed = example.emulate(example.mended(tmp_path), "--schedule", schedule)
        assert "findings: none" in printed


def test_bank_conflicts_are_counted_by_line(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    wavefronts = []
    for source in (KERNELS / "tiled_matmul.cu", PRODUCT.mended(tmp_path)):
        PRODUCT.emulate(source, "--json", str(record))
        counted = json.loads(record.read_text())
        assert counted["ok"] is True
        sites = [site for site in counted["counters"]["shared"] if ":16" in site["source"]]
        wavefronts.append(sum(site["wavefronts"] for site in sites))
        assert sum(site["requests"] for site in sites) == 16384
    assert wavefronts == [16384 // 2 * 33, 16384]


def test_the_wrong_byte_count_stops_the_launch() -> None:
    printed = COPY.emulate(KERNELS / "bulk_copy.cu", exit_code=1)
    assert printed.strip() in DOCUMENT.replace(" \n", "\n")
    assert "-768 transaction bytes expected" in printed


def test_everything_that_is_not_emulated_is_named_at_once(tmp_path: Path) -> None:
    source = tmp_path / "refused.cu"
    source.write_text(
        "__global__ void k(int* out) {\n"
        '  asm volatile("multimem.red.relaxed.gpu.global.add.u32 [%0], 1;" :: "l"(out));\n'
        "  out[0] = 1;\n"
        '  asm volatile("discard.global.L2 [%0], 128;" :: "l"(out));\n'
        "}\n"
    )
    printed = refuse(
        str(source), "--arch", "sm_90", "--grid", "1", "--block", "32", "--arg", "i32:out:32@zeros"
    )
    assert "has 2 instructions that are not emulated:" in printed
    assert "refused.cu:2): " in printed
    assert "refused.cu:4): " in printed


def test_arrays_of_files_and_text_that_is_printed(tmp_path: Path) -> None:
    source, data = tmp_path / "speak.cu", tmp_path / "x.npy"
    np.save(data, np.array([1.5, 2.5], np.float32))
    source.write_text(
        "__global__ void speak(const float* x, double scale) {\n"
        '  printf("%d: %g\\n", threadIdx.x, scale * x[threadIdx.x]);\n}\n'
    )
    printed = invoke(
        str(source), "--grid", "1", "--block", "2", "--arg", f"f32:x:2@{data}",
        "--arg", "f64=10",
    )  # fmt: skip
    assert "  0: 15\n  1: 25\n" in printed


def test_bad_input_is_refused(tmp_path: Path) -> None:
    source = str(KERNELS / "block_sum.cu")
    launch = ("--grid", "4", "--block", "256")
    assert "required: --grid" in refuse(source, "--block", "256")
    assert "pass one to three whole numbers" in refuse(source, "--grid", "4x4", "--block", "256")
    assert "0 arguments for 2 parameters" in refuse(source, *launch)
    assert "write it as f32:x:1024@random" in refuse(source, *launch, "--arg", "f32")
    assert "choose from bf16, f16, f32" in refuse(source, *launch, "--arg", "f8:x:4")
    assert "is no int32" in refuse(source, *launch, "--arg", "i32=x")
    there = str(tmp_path / "none" / "x.json")
    assert "in no folder there is" in refuse(source, *launch, "--json", there)
    assert "0 kernels are called 'other'; the text has block_sum" in refuse(
        source, *launch, "--entry", "other"
    )
    assert "pass FILE.py:FUNCTION" in refuse(source, *launch, "--compare", "x")
    (tmp_path / "bad.cu").write_text("__global__ void k() { oops; }")
    assert "oops" in refuse(str(tmp_path / "bad.cu"), *launch)


def test_help_waits_for_nothing() -> None:
    code = (
        "import sys; from ptx_emulator.command.options import parser; parser().format_help();"
        " print([name for name in ('numpy', 'torch') if name in sys.modules])"
    )
    folder = ROOT / "packages" / "ptx_emulator" / "src"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


HALVED = """
#include <cuda_bf16.h>
__global__ void halved(__nv_bfloat16* out, const __nv_bfloat16* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16(__bfloat162float(in[i]) / TIMES);
}
"""


@pytest.mark.skipif(not toolkit_headers(), reason="needs the headers of a CUDA toolkit")
def test_bfloat16_and_macros(tmp_path: Path) -> None:
    source, reference = tmp_path / "halved.cu", tmp_path / "reference.py"
    source.write_text(HALVED)
    launch = (
        *("--grid", "2", "--block", "64", "--arg", "bf16:out:8x16"),
        *("--arg", "bf16:in:128@random", "--arg", "i32=128"),
    )
    compare = ("--compare", f"{reference}:halved", "--arch", "sm_90")
    reference.write_text("def halved(out, x, n):\n    out.reshape(-1)[:] = x / 2\n")
    printed = invoke(str(source), *launch, *compare, "-D", "TIMES=2")
    assert "out    bf16  8x16" in printed
    assert "out: right" in printed
    wrong = invoke(str(source), *launch, *compare, "-D", "TIMES=2.1f", exit_code=1)
    assert "out: wrong" in wrong


CLUSTERED = """
#include <cuda.h>
__global__ void copied(const __grid_constant__ CUtensorMap from, float* out) {
  __shared__ alignas(128) float tile[8 * 8];
  __shared__ alignas(8) unsigned long long arrived;
  unsigned bar = __cvta_generic_to_shared(&arrived), rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::
                 "r"((unsigned)__cvta_generic_to_shared(tile)), "l"(&from), "r"(bar), "r"(0),
                 "r"(8 * rank) : "memory");
  }
  __syncthreads();
  asm volatile("{.reg .pred p;\\nW: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\\n@!p bra W;}"
               :: "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 64; i += 32) out[blockIdx.x * 64 + i] = tile[i];
}
"""


def test_tensor_maps_and_clusters(tmp_path: Path) -> None:
    source, reference = tmp_path / "copied.cu", tmp_path / "reference.py"
    source.write_text(CLUSTERED)
    reference.write_text("def copied(x, out):\n    out[...] = x\n")
    printed = invoke(
        *(str(source), "--arch", "sm_90a", "--grid", "2", "--block", "32", "--cluster", "2"),
        *("--arg", "f32:from:16x8:box=8x8@random", "--arg", "f32:out:16x8"),
        *("--compare", f"{reference}:copied"),
    )
    assert "out: right, max error 0.000e+00" in printed


def test_findings_stand_beside_the_lines_of_a_pull_request() -> None:
    printed = SUM.emulate(
        Path("examples/kernels/block_sum.cu"), "--annotate", "github", exit_code=1
    )
    shown = [line for line in printed.splitlines() if line.startswith("::")]
    start = (
        "::error file=examples/kernels/block_sum.cu,line=10,title=race::[race] block_sum PTX line"
    )
    assert shown[0].startswith(start)
    assert "%0A" in shown[0]
    assert len(shown) == 2


def test_a_launch_that_does_not_end_is_annotated_too() -> None:
    printed = COPY.emulate(KERNELS / "bulk_copy.cu", "--annotate", "github", exit_code=1)
    stopped, finding = (line for line in printed.splitlines() if line.startswith("::"))
    assert stopped.startswith(f"::error file={KERNELS / 'bulk_copy.cu'},title=the launch did not")
    assert "bulk_copy.cu,line=44,title=mbarrier-transaction::" in finding


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    launch = ("--grid", "1", "--block", "32")
    broken, kernel = tmp_path / "x.npy", tmp_path / "k.cu"
    broken.write_bytes(b"\x93NUMPY nothing")
    kernel.write_bytes(b"\xff\xfe\x00")
    source = str(KERNELS / "block_sum.cu")
    assert "cannot read" in refuse(source, *launch, "--arg", f"f32:x:4@{broken}")
    assert "300' is no int8" in refuse(source, *launch, "--arg", "i8=300")
    assert "cannot read" in refuse(str(kernel), *launch)
    assert "cannot read" in refuse(str(tmp_path), *launch)
    for text in ("", "\0", ".version 8.0\n.entry k() { ret", ".entry k() { {{ ret; }"):
        (tmp_path / "k.ptx").write_text(text)
        assert refuse(str(tmp_path / "k.ptx"), *launch).startswith("error: ")


CHAIN = """
__device__ float innermost(const float* p) { return *p; }
__device__ float between(const float* p) { return 2 * innermost(p); }
__global__ void k(float* x) { x[threadIdx.x] = between(x + threadIdx.x); }
"""


def test_the_table_of_hot_places_names_both_ends_of_calls(tmp_path: Path) -> None:
    source = tmp_path / "chain.cu"
    source.write_text(CHAIN)
    printed = invoke(
        str(source), *["--grid", "1", "--block", "32", "--arg", "f32:x:32@random"], exit_code=0
    )
    assert f"{source}:2, from {source}:4 " in printed
    assert f"{source}:3" not in printed


def test_an_address_outside_of_an_array_is_told_by_that_array(tmp_path: Path) -> None:
    source = tmp_path / "ends.cu"
    source.write_text(
        "__global__ void k(float* x, const float* y) {\n  x[0] = y[8];\n  x[1] = y[-2];\n}"
    )
    arguments = ["--grid", "1", "--block", "1", "--arg", "f32:x:8", "--arg", "f32:y:8@ones"]
    printed = invoke(str(source), *arguments, exit_code=1)
    assert "that address is y + 32 bytes, past its end" in printed
    assert "that address is 8 bytes before y" in printed
