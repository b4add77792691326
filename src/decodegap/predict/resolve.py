"""From what a person typed to a `ModelShape`: a catalogue name, a Hugging Face id, a checkpoint
folder or a config.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from decodegap.errors import (
    BadCheckpoint,
    BadConfig,
    Unavailable,
    UnknownModel,
    first_line,
    nearest,
)
from decodegap.predict.catalogue import catalogue_models, catalogue_shape
from decodegap.predict.hf_config import from_hf
from decodegap.predict.model import ModelShape

_FILES = ["*.json", "*.jinja", "*.model", "*.safetensors"]


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved model. `folder` holds its checkpoint if there is one on this disk;
    `default_weights` is what the way it was named asks for."""

    shape: ModelShape
    config: dict[str, Any]
    default_weights: Literal["synthetic", "checkpoint"]
    folder: Path | None = None
    hf_id: str | None = None

    @property
    def quantisation(self) -> str | None:
        """How its config says the weights are quantised, in its words; None where it does not."""
        stated = self.config.get("quantization_config")
        if not stated:
            return None
        if not isinstance(stated, dict):
            return str(stated)
        method, bits = stated.get("quant_method"), stated.get("bits")
        if bits is None:
            bits = next((n for n in (4, 8) if stated.get(f"load_in_{n}bit") is True), None)
        words = [str(method or "by an unnamed method")]
        return ", ".join(words if bits is None else [*words, f"{bits} bits"])


def resolve_model(name: str) -> ModelSource:
    """Find a model.

    Raises:
        UnknownModel: nothing of that name, with the nearest catalogue names.
        BadConfig: its config.json cannot be read or counted.
        Unavailable: a Hugging Face id that is not in the local cache and cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_file(path / "config.json", folder=path)
    if path.is_file():
        return _from_file(path, folder=None)
    for short, model in catalogue_models().items():
        if name.lower() in {short, model.hf_id.lower()}:
            return ModelSource(
                shape=catalogue_shape(short),
                config=model.config,
                default_weights="synthetic" if name.lower() == short else "checkpoint",
                hf_id=model.hf_id,
            )
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    raise UnknownModel(
        f"unknown model {name!r}: {nearest(name, catalogue_models())} "
        "(or give a Hugging Face id, a checkpoint folder or a config.json)"
    )


def _from_file(path: Path, folder: Path | None) -> ModelSource:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except FileNotFoundError:
        raise BadConfig(f"{path.parent} has no config.json; is it a checkpoint folder?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read {path}: {error}") from None
    config = parse_config(text, str(path))
    name = (folder or path).resolve().name
    return ModelSource(
        shape=from_hf(config, name),
        config=config,
        default_weights="synthetic" if folder is None else "checkpoint",
        folder=folder,
    )


def parse_config(text: str, where: str) -> dict[str, Any]:
    """A config.json's table.

    Raises:
        BadConfig: not JSON, or not a table.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{where} is not JSON ({error}); take the model's config.json") from None
    if not isinstance(config, dict):
        raise BadConfig(f"{where} holds a {type(config).__name__}, not a table of settings")
    return config


def checkpoint_folder(source: ModelSource) -> Path:
    """The folder of a model's weights, config and tokenizer: its own, or what its Hugging Face id
    leads to, from the local cache or the network.

    Raises:
        UnknownModel: a bare config, which has no weights.
        BadCheckpoint: its weights are quantised.
        Unavailable: neither in the cache nor to be had.
    """
    if source.quantisation is not None:
        raise BadCheckpoint(
            f"{source.shape.name} is quantised ({source.quantisation}) and such weights are not "
            "read; take the checkpoint it was made from, or its catalogue name or config.json for "
            "its shape"
        )
    if source.folder is not None:
        return source.folder
    if source.hf_id is None:
        raise UnknownModel(
            f"{source.shape.name} is a config without weights; give its checkpoint folder, "
            "or measure it with `--weights synthetic`"
        )
    from huggingface_hub import snapshot_download

    return _fetched(source.hf_id, lambda name: snapshot_download(name, allow_patterns=_FILES))


def _from_hub(hf_id: str) -> ModelSource:
    from huggingface_hub import hf_hub_download

    path = _fetched(hf_id, lambda name: hf_hub_download(name, "config.json"))
    config = _from_file(path, folder=None).config
    return ModelSource(
        shape=from_hf(config, hf_id), config=config, default_weights="checkpoint", hf_id=hf_id
    )


def _fetched(hf_id: str, fetch: Callable[[str], str]) -> Path:
    """What `fetch` brings, or one line on why it could not."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(fetch(hf_id))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = first_line(error).rstrip(".")
        raise Unavailable(
            f"cannot fetch {hf_id} from Hugging Face ({reason}); give a checkpoint folder, "
            "or a catalogue name with `--weights synthetic`"
        ) from None
