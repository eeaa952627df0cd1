# SPDX-License-Identifier: Apache-2.0
"""What a new environment must do: attention on the CPU, also traced by torch.compile, two compiles,
one emulated kernel."""

from __future__ import annotations

import platform

import torch
from torch.nn.functional import scaled_dot_product_attention

import flash_attention
from flash_attention.arch import ARCHES
from flash_attention.compile import nvrtc_version
from flash_attention.compile.library import nvrtc_library
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.kernels import compile_config
from flash_attention.reference.judge import check_output, generate_qkv


def main() -> None:
    """Raises, or prints what was used."""
    assert "site-packages" in flash_attention.__file__, flash_attention.__file__
    q, k, v = (torch.randn(2, 33, 4, 64) for _ in range(3))
    expected = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    ours = flash_attention.attention(q, k, v, causal=True)
    torch.testing.assert_close(ours, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
    try_torch_compile()

    ladder = get_ladder(n_heads=1)
    ampere = [rung.config for rung in ladder if rung.config.default_arch.name == "sm_80"][-1]
    for config, target in ((ampere, "sm_80"), (ladder[-1].config, "sm_90a")):
        kernel = compile_config(config, ARCHES[target.rstrip("a")])
        assert (kernel.arch, kernel.cubin[:4]) == (target, b"\x7fELF"), kernel.arch
        assert kernel.resources.registers > 0

    q, k, v = generate_qkv(1, 128, 1, ampere.d_head, ampere.dtype)
    emulation = emulate(ampere, q, k, v)
    assert check_output(emulation.output, q, k, v).ok
    assert emulation.findings == (), emulation.findings

    used = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{used}, NVRTC {nvrtc_version()} {nvrtc_library().why}")


def try_torch_compile() -> None:
    """Trace calls, their gradients and a merge without a break in the graph."""
    q, k, v = (torch.randn(2, 33, 4, 60, requires_grad=True) for _ in range(3))

    def halves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = (slice(None, 17), slice(17, None))
        found = (flash_attention.attention(q, k[:, p], v[:, p], return_lse=True) for p in parts)
        (o1, lse1), (o2, lse2) = found
        return flash_attention.merge(o1, lse1, o2, lse2)[0]

    for function in (flash_attention.attention, halves):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        results = [attend(q, k, v) for attend in (compiled, flash_attention.attention)]
        gradients = [torch.autograd.grad(result.square().sum(), (q, k, v)) for result in results]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()
