# SPDX-License-Identifier: Apache-2.0
"""One file of a rung: lines of its headers, those that it uses, and the very same machine code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.compile import compile_kernel
from flash_attention.compile.binding import defined_types
from flash_attention.compile.elf import text_section
from flash_attention.compile.includes import include_closure
from flash_attention.families.passes import Pass
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import DType
from flash_attention.ladder import Rung, get_ladder
from flash_attention.launch.kernels import compile_config
from flash_attention_workbench.ladder.one_file import one_file
from tests.gate import one_in

FORWARD, BACKWARD = get_ladder(), get_ladder(pass_=Pass.BACKWARD)
RUNGS = [*FORWARD, *BACKWARD]
OWN_LINE = re.compile(
    r'// (SPDX|----) ?|}  // namespace|namespace |extern "C"|    flash_|\s+const __grid'
)
OTHERS_CALL_IT = {"attn::rescale::Lazy"}  # a variant that another is made of


@cache
def file_of(rung: Rung) -> str:
    return one_file(unit_of(rung.config).source)


def name_of(rung: Rung) -> str:
    return f"{'backward ' if rung in BACKWARD else ''}{rung.number}"


every_rung = pytest.mark.parametrize("rung", one_in(3, RUNGS, id_of=name_of))


@every_rung
def test_its_lines_are_those_of_the_headers_in_order_less_three_tenths(rung: Rung) -> None:
    unit = unit_of(rung.config).source
    lines = "".join((*include_closure(unit).values(), unit)).splitlines()
    left = iter(lines)
    for line in file_of(rung).splitlines():
        assert not line or OWN_LINE.match(line) or line in left, line
    assert len(file_of(rung).splitlines()) < 0.7 * len(lines)


@every_rung
def test_it_has_the_variants_of_its_config_and_no_others(rung: Rung) -> None:
    text = file_of(rung)
    bound = set(re.findall(r"using \w+ = fa::([\w:]+)", text))
    slots = {name.rpartition("::")[0] for name in bound}
    for name in defined_types():
        space, _, variant = name.rpartition("::")
        if space in slots and name not in OTHERS_CALL_IT:
            inside = re.search(rf"^namespace fa::{space} {{$.*?^}}  // ", text, re.M | re.S)
            found = inside and re.search(rf"^(struct|class) {variant}\b", inside[0], re.M)
            assert bool(found) == (name in bound), name
    for word in ("#include", "#pragma once", "concept ", "check_slots", "__INTADDR__"):
        assert word not in text


@every_rung
def test_every_header_stands_under_its_name_and_comment(rung: Rung) -> None:
    text, texts = file_of(rung), include_closure(unit_of(rung.config).source)
    headings = re.findall(r"^// ---- (.+?) -+\n(//.*)?", text, re.MULTILINE)
    *headers, last = (heading for heading, _ in headings)
    assert headers == [header for header in texts if header in headers]
    assert last == "the config, and the kernel"
    for header, comment in headings[:-1]:
        assert comment == texts[header].splitlines()[1]
    assert text.count("SPDX") == 1
    assert text.index("struct Config {") > text.index(last)


def test_the_formatter_would_not_change_a_line(tmp_path: Path) -> None:
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    formatter = shutil.which("clang-format", path=folders)
    if formatter is None:
        pytest.skip("clang-format is not installed")
    for rung in RUNGS:
        (tmp_path / f"{name_of(rung)}.cu").write_text(file_of(rung))
    style = Path(__file__).parents[3] / ".clang-format"
    command = [
        formatter,
        f"--style=file:{style}",
        "--dry-run",
        "-Werror",
        *map(str, tmp_path.iterdir()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow  # left out of `make quick`
@pytest.mark.parametrize(
    ("rung", "features"),
    [
        (FORWARD[0], PLAIN),
        (FORWARD[15], CAUSAL),
        (get_ladder(DType.BF16, 64, 8)[16], CAUSAL),
        (FORWARD[-1], PLAIN),
        (get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)[9], CAUSAL),
        (BACKWARD[-1], PLAIN),
    ],
    ids=lambda value: value.config.kernel_name() if isinstance(value, Rung) else value.suffix,
)
def test_it_compiles_alone_to_the_machine_code_of_the_rung(
    rung: Rung, features: Features, tmp_path: Path
) -> None:
    config, arch = rung.config, rung.config.default_arch
    text = one_file(unit_of(config, features).source)
    target = config.target(arch)
    alone = compile_kernel(text, arch=target, name="one_file", include_dir=tmp_path)
    together = compile_config(config, arch, features)
    assert text_section(alone.cubin) == text_section(together.cubin)


UNIT = """// A small kernel.
#define TWICE(x) x, x
#define UNUSED(x) x

namespace fa {

using u32 = unsigned int;
using u64 = unsigned long long;

inline constexpr int kSize = 4;  // used

template <class T>
concept SomeSlot = requires { T::kOn; };

template <class T>
__device__ int width();

template <>
__device__ int width<slot::On>() {
  return 1;
}

template <>
__device__ int width<slot::Off>() {
  return 0;
}

// Not the one of fa::slot.
struct Helper {};

}  // namespace fa

namespace fa::slot {

struct Helper {
  // { a bracket in a comment, and "another {" in a string
  u32 x = kSize;
};

struct On {
  static constexpr Helper kOn = {};
};

struct Off {};

}  // namespace fa::slot

struct Config {
  using Slot = fa::slot::On;
};

static_assert(sizeof(fa::u64) == 8);

extern "C" __global__ void __launch_bounds__(32)
flash_forward_kernel_with_a_long_name(
    int* out) {
  static_assert(fa::SomeSlot<Config::Slot>);
  static_assert(fa::kSize == 4, "a number");
  int x[] = {TWICE(fa::width<Config::Slot>())};
  out[0] = x[0];
}
"""


def test_a_definition_goes_with_all_that_only_it_names() -> None:
    text = one_file(UNIT, ["A title."])
    assert text == (
        """// SPDX-License-Identifier: Apache-2.0
// A title.

"""
        + f"{'// ---- the config, and the kernel '.ljust(100, '-')}"
        + """

#define TWICE(x) x, x

namespace fa {

using u32 = unsigned int;

inline constexpr int kSize = 4;  // used

template <class T>
__device__ int width();

template <>
__device__ int width<slot::On>() {
  return 1;
}

}  // namespace fa

namespace fa::slot {

struct Helper {
  // { a bracket in a comment, and "another {" in a string
  u32 x = kSize;
};

struct On {
  static constexpr Helper kOn = {};
};

}  // namespace fa::slot

struct Config {
  using Slot = fa::slot::On;
};

extern "C" __global__ void __launch_bounds__(32)
    flash_forward_kernel(int* out) {
  static_assert(fa::kSize == 4, "a number");
  int x[] = {TWICE(fa::width<Config::Slot>())};
  out[0] = x[0];
}
"""
    )
