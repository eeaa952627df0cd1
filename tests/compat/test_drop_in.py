# SPDX-License-Identifier: Apache-2.0
"""install: whose modules are found then, and that the world is what it was after uninstall."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from flash_attention.compat import (
    bert_padding,
    flash_attn,
    flash_attn_3,
    flash_attn_passes,
    install,
    rotary_layers,
    uninstall,
)
from flash_attention.compat.__main__ import main
from flash_attention.errors import UnsupportedError

MODULES = {
    "flash_attn": flash_attn,
    "flash_attn.flash_attn_interface": flash_attn,
    "flash_attn.bert_padding": bert_padding,
    "flash_attn.layers.rotary": rotary_layers,
    "flash_attn_interface": flash_attn_3,
}
OTHER_NAMES = {
    "flash_attn.flash_attn_interface": {
        f"{prefix}_flash_attn{varlen}_{way}": getattr(
            flash_attn_passes, f"flash_attn{varlen}_{way}"
        )
        for prefix in ("", "_wrapped")
        for varlen in ("", "_varlen")
        for way in ("forward", "backward")
    },
    "flash_attn.layers.rotary": {"apply_rotary_emb_func": rotary_layers.apply_rotary_emb},
    "flash_attn.ops.triton.rotary": {"apply_rotary": rotary_layers.apply_rotary},
}


@pytest.fixture
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_others_have_our_functions(name: str) -> None:
    module, ours = import_module(name), MODULES[name]
    assert {*module.__all__} >= {*ours.__all__}
    assert all(getattr(module, public) is getattr(ours, public) for public in ours.__all__)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.name == name


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_that_only_others_have(name: str) -> None:
    module = import_module(name)
    for public, function in OTHER_NAMES[name].items():
        assert getattr(module, public) is function


@pytest.mark.usefixtures("installed")
def test_versions_say_whose_they_are() -> None:
    for name, module, version in (
        ("flash_attn", "flash_attn", "2.8.3+flash.attention"),
        ("flash-attn", "flash_attn", "2.8.3+flash.attention"),
        ("Flash.Attn_3", "flash_attn_interface", "3.0.0+flash.attention"),
    ):
        assert importlib.metadata.version(name) == version
        assert import_module(module).__version__ == version
    found = importlib.metadata.packages_distributions()
    assert found["flash_attn"] == ["flash-attn"]
    assert found["flash_attn_interface"] == found["flash_attn_3"] == ["flash-attn-3"]
    assert importlib.metadata.version("torch")
    assert "computed by flash_attention" in str(importlib.metadata.metadata("flash-attn"))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("flash_attn.losses.cross_entropy", "flash-attn"),
        ("flash_attn.ops.rms_norm", "flash-attn"),
        ("flash_attn.cute", "flash-attn-4"),
        ("flash_attn_3._C", "flash-attn-3"),
    ],
)
def test_what_is_not_here_is_said_to_be_elsewhere(name: str, package: str) -> None:
    missing = ".".join(name.split(".")[:2]) if "losses" in name else name
    message = f"{missing} is in the package {package}, and .* install {package}, and call .*replace"
    with pytest.raises(ModuleNotFoundError, match=message) as error:
        import_module(name)
    assert error.value.name == missing
    assert importlib.util.find_spec(missing) is None  # how programs look whether it is there


@pytest.mark.usefixtures("installed")
def test_what_a_module_lacks_is_not_found() -> None:
    message = r"cannot import name 'flash_attn_triton' from 'flash_attn' \(.*compat/drop_in.py\)"
    with pytest.raises(ImportError, match=message):
        exec("from flash_attn import flash_attn_triton")
    assert not hasattr(import_module("flash_attn"), "flash_attn_triton")
    with pytest.raises(ModuleNotFoundError, match="No module named 'flash_attn_4'"):
        import_module("flash_attn_4")


def test_nothing_is_left_behind() -> None:
    before, finders = dict(sys.modules), list(sys.meta_path)
    install()
    install()
    assert len(sys.meta_path) == len(finders) + 2
    uninstall()
    uninstall()
    assert sys.meta_path == finders
    assert {name for name in sys.modules if "flash_attn" in name} == {
        name for name in before if "flash_attn" in name
    }
    assert importlib.util.find_spec("flash_attn") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package of the name."""
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    (package / "layers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return package


@pytest.mark.parametrize("imported", [False, True])
def test_a_real_package_is_replaced_on_demand_only(real: Path, imported: bool) -> None:
    if imported:
        import_module("flash_attn.layers")
    message = rf"flash_attn is installed, at {real}/__init__\.py; .*replace=True"
    with pytest.raises(UnsupportedError, match=message):
        install()
    assert import_module("flash_attn").__version__ == "real"
    modules = {name: sys.modules[name] for name in sys.modules if name.startswith("flash_attn")}
    install(replace=True)
    assert import_module("flash_attn").__version__ == "2.8.3+flash.attention"
    assert importlib.metadata.version("flash_attn") == "2.8.3+flash.attention"
    uninstall()
    for name, module in modules.items():
        if name.split(".")[0] == "flash_attn":
            assert sys.modules.pop(name) is module


LOSS = """
from flash_attn import flash_attn_func
from flash_attn.layers.rotary import apply_rotary_emb
WHOSE = flash_attn_func.__module__, apply_rotary_emb.__module__
"""


def test_other_modules_of_a_real_package_stay(real: Path) -> None:
    (real / "losses").mkdir()
    (real / "losses" / "cross_entropy.py").write_text(LOSS)
    (real / "bert_padding.py").write_text("WHOSE = 'real'")
    install(replace=True)
    theirs = import_module("flash_attn.losses.cross_entropy")
    assert theirs.__file__ == str(real / "losses" / "cross_entropy.py")
    assert (flash_attn.__name__, rotary_layers.__name__) == theirs.WHOSE
    assert not hasattr(import_module("flash_attn.bert_padding"), "WHOSE")
    uninstall()
    assert not [name for name in sys.modules if name.startswith("flash_attn.")]
    assert import_module("flash_attn.bert_padding").WHOSE == "real"
    for name in ("flash_attn.bert_padding", "flash_attn"):
        del sys.modules[name]


SCRIPT = """
import sys
import helper
from transformers import LlamaConfig, LlamaForCausalLM
import torch
from flash_attn import flash_attn_func
sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM._from_config(
    LlamaConfig(**sizes, vocab_size=99), attn_implementation="flash_attention_2"
)
with torch.no_grad():
    print(sys.argv[1:], helper.NAME, model(torch.arange(9)[None]).logits.shape, __name__)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-m", "flash_attention.compat", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_script_for_flash_attn_runs_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "helper.py").write_text("NAME = 'beside'\n")
    (scripts / "model.py").write_text(SCRIPT)
    ran = run(tmp_path, "scripts/model.py", "--size", "3")
    assert ran.returncode == 0, ran.stderr
    last = ran.stdout.splitlines()[-1]
    assert last == "['--size', '3'] beside torch.Size([1, 9, 99]) __main__"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: python -m flash_attention.compat"),
        (["--replace"], "usage: python -m flash_attention.compat"),
        (["nothing.py"], "nothing.py is no file; pass a script"),
    ],
    ids=str,
)
def test_a_script_is_needed(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert str(ended.value).startswith(message)


def test_a_script_does_not_replace_a_real_package_unasked(real: Path) -> None:
    with pytest.raises(SystemExit, match=r"flash_attn is installed.*pass --replace"):
        main([str(real / "layers.py")])
