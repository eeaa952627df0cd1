# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers asks for beside its tensors: a version, a dtype."""

from __future__ import annotations

import inspect
import re
import sys
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from flash_attention.errors import UnsupportedError

OLDEST = (4, 57)
NEWEST_MAJOR = 5
CAST_TO = (torch.float16, torch.bfloat16)


def check_version() -> None:
    """Raise UnsupportedError if the version of transformers is not supported."""
    from transformers import __version__ as version

    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < OLDEST or numbers[0] > NEWEST_MAJOR:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedError(
            f"transformers {version} is installed; supported are {oldest} to {NEWEST_MAJOR}.x,"
            f" install one with pip install 'transformers>={oldest},<{NEWEST_MAJOR + 1}'"
        )


def refuse_deaf_models(name: str) -> None:
    """Make transformers refuse the implementation `name` for models that never call it.

    Without that, such a model ends in a KeyError, or computes its own attention with a mask that is
    meant for the implementation.
    """
    from transformers import PreTrainedModel

    check = PreTrainedModel.get_correct_attn_implementation
    names: set[str] = getattr(check, "refused", set())
    names.add(name)
    if hasattr(check, "refused"):
        return

    @wraps(check)
    def checked(self: Any, requested: str | None, *args: Any, **kwargs: Any) -> Any:
        if requested in names and not _calls_registered(type(self)):
            raise _deaf(type(self))
        return check(self, requested, *args, **kwargs)

    vars(checked)["refused"] = names
    PreTrainedModel.get_correct_attn_implementation = checked


def _calls_registered(kind: type) -> bool:
    """Whether the file of a model with layers of attention looks for registered functions."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # typed into a prompt
        return True
    layers = re.search(r"^class \w*Attention\w*\(nn\.Module\)", source, re.MULTILINE)
    return layers is None or "ALL_ATTENTION_FUNCTIONS" in source


def _deaf(kind: Any) -> UnsupportedError:
    from transformers import __version__ as version

    how = 'load it with attn_implementation="eager"'
    if getattr(kind, "_supports_flash_attn", False):
        how = 'load it with attn_implementation="flash_attention_2" after compat.install()'
    elif getattr(kind, "_supports_sdpa", False):
        how = 'load it with attn_implementation="sdpa" and call it inside compat.sdpa.route_sdpa()'
    newer = f", or install transformers {NEWEST_MAJOR}, where more models call them"
    return UnsupportedError(
        f"{kind.__name__} of transformers {version} does not call registered implementations of"
        f" attention; {how}{newer if int(version.split('.')[0]) < NEWEST_MAJOR else ''}"
    )


def in_one_dtype(module: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors of which one is float32, as transformers' flash_attention_2 does.

    A layer may have float32 tensors because of autocast, whose rotary embeddings are float32, or
    because its norms are float32. They get the dtype of autocast, or that of the layer's weights.
    """
    if all(t.dtype != torch.float32 for t in tensors):
        return tensors
    dtype = _dtype_of(module, tensors[0].device.type)
    return tuple(t.to(dtype) for t in tensors) if dtype in CAST_TO else tensors


def _dtype_of(module: nn.Module, device_type: str) -> torch.dtype | None:
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    config: Any = getattr(module, "config", None)
    for mark, name in (("_pre_quantization_dtype",) * 2, ("_is_quantized", "dtype")):
        if hasattr(config, mark):  # of transformers 4, and 5
            dtype: torch.dtype = getattr(config, name)
            return dtype
    if not isinstance(module, nn.Module):
        return None
    linear = next((m for m in module.modules() if isinstance(m, nn.Linear)), None)
    weights = module.parameters() if linear is None else iter((linear.weight,))
    return next((weight.dtype for weight in weights), None)
