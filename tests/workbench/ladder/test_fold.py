# SPDX-License-Identifier: Apache-2.0
"""What is left of a small kernel when its config is settled."""

from __future__ import annotations

import re

from flash_attention_workbench.ladder.one_file import one_file

HEADER = """
namespace fa::slot {
struct Off {
  static constexpr bool kOn = false;
  static __device__ int same(int x, int) { return x; }
  static __device__ void nothing(int) {}
};
struct On {
  static constexpr bool kOn = true;
  static __device__ int same(int x, int) { return x; }
  static __device__ void nothing(int x) { x += 1; }
};
struct Twice {
  static constexpr int kFactor = 1;
  template <int Times>
  static __device__ void store(int* out, int x) {
    for (int i = 0; i < Times; ++i) out[i] = x;  // again
  }
};
}  // namespace fa::slot
namespace fa {
struct Unused {};
template <class Config>
struct Pair {
  static constexpr int kHalf = Config::kN / 2;
  __device__ Pair(int x) : x_(x) {}
  __device__ int sum() const { return x_ + kHalf; }
  __device__ int unused() const { return 0; }
  int x_, y_;
};
template <class Config>
__device__ void forward(int* out, int n) {
  BODY
}
}  // namespace fa
struct Config {
  static constexpr int kN = 8;
  using Slot = fa::slot::SLOT;
  using Twice = fa::slot::Twice;
};
extern "C" __global__ void kernel(int* out, int n) {
  fa::forward<Config>(out, n);
}
"""


def left_of(body: str, slot: str = "Off") -> str:
    """What the kernel does for this config, on one line."""
    text = one_file(HEADER.replace("BODY", body).replace("SLOT", slot))
    entry = text.partition('extern "C"')[2].partition("{")[2].rpartition("}  // namespace fa")[0]
    return " ".join(entry.rpartition("}")[0].split())


def test_branches_that_are_not_taken_go() -> None:
    body = "if (Config::Slot::kOn) out[0] = 1; else out[0] = 2;"
    assert left_of(body) == "out[0] = 2;"
    assert left_of(body, "On") == "out[0] = 1;"


def test_operands_that_decide_nothing_go() -> None:
    assert left_of("if (n > 0 && !Config::Slot::kOn) out[0] = 1;") == "if (n > 0) out[0] = 1;"
    assert left_of("if (n > 0 && Config::Slot::kOn) out[0] = 1;") == ""
    assert left_of("out[0] = Config::Slot::kOn ? n : n + 1;") == "out[0] = n + 1;"
    assert left_of("out[0] = n * Config::Twice::kFactor + 2;") == "out[0] = n + 2;"


def test_conditions_are_computed_from_the_config() -> None:
    assert left_of("if (Config::kN % 4 == 0) out[0] = Config::kN;") == "out[0] = Config::kN;"
    assert left_of("if (Pair<Config>::kHalf > Config::kN) out[0] = 1;") == ""


def test_calls_of_empty_functions_go() -> None:
    assert left_of("Config::Slot::nothing(n); out[0] = n;") == "out[0] = n;"
    changes = left_of("Config::Slot::nothing(out[0]++); out[0] = n;")
    assert changes == "Config::Slot::nothing(out[0]++); out[0] = n;"


def test_what_is_passed_on_stands_for_the_call() -> None:
    assert left_of("out[0] = 2 * Config::Slot::same(n + 1, 3);") == "out[0] = 2 * (n + 1);"


def test_a_function_called_once_stands_where_it_is_called() -> None:
    once = left_of("Config::Twice::template store<2>(out, n + 1);")
    assert once == "for (int i = 0; i < 2; ++i) out[i] = n + 1; // again"
    twice = left_of("Config::Twice::template store<2>(out, n); Config::Twice::store<3>(out, n);")
    assert twice == "Config::Twice::store<2>(out, n); Config::Twice::store<3>(out, n);"
    clash = left_of("const int i = n + out[1]; Config::Twice::template store<2>(out, i);")
    assert "Config::Twice::store<2>(out, i);" in clash


def test_unused_members_and_fields_go_and_the_config_is_no_parameter() -> None:
    text = one_file(
        HEADER.replace("BODY", "out[0] = Pair<Config>(n).sum();").replace("SLOT", "Off")
    )
    assert "struct Pair {" in text
    assert "sum()" in text
    assert not re.search(r"unused|Unused|y_,|Slot|template <class", text)


def test_a_chain_of_ifs_keeps_what_can_happen() -> None:
    chain = "if (n > 1) out[0] = 1; else if (Config::Slot::kOn) out[0] = 2; else out[0] = 3;"
    assert left_of(chain, "Off") == "if (n > 1) out[0] = 1; else out[0] = 3;"
    kept = left_of(chain, "On")
    assert "out[0] = 2" in kept
    assert "out[0] = 3" not in kept
    first = "if (Config::Slot::kOn) out[0] = 1; else if (n > 1) out[0] = 2; else out[0] = 3;"
    assert left_of(first, "Off") == "if (n > 1) out[0] = 2; else out[0] = 3;"
    assert left_of(first, "On") == "out[0] = 1;"


def test_an_empty_link_of_a_chain_keeps_its_else() -> None:
    chain = "if (n > 2) out[0] = 1; else if (n > 1) Config::Slot::nothing(n); else out[0] = 3;"
    assert left_of(chain, "Off") == "if (n > 2) out[0] = 1; else if (n > 1) {} else out[0] = 3;"


def test_both_lambdas_of_a_call_keep_their_bodies() -> None:
    call = (
        "both([&](int i) { out[i] = n; out[i + 1] = n; },"
        " [&](int i) { out[i + 2] = n; out[i + 3] = 4 * n; });"
    )
    assert left_of(call) == (
        "both([&](int i) { out[i] = n; out[i + 1] = n; },"
        " [&](int i) { out[i + 2] = n; out[i + 3] = 4 * n; });"
    )
