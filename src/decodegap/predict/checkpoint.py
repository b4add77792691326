"""What a checkpoint folder holds, held against what the model needs. Reads headers only."""

import re
from collections.abc import Iterable
from pathlib import Path

from decodegap.errors import BadCheckpoint, Unavailable
from decodegap.predict.model import ModelShape
from decodegap.predict.tensors import parameter_tensors


def check_checkpoint(folder: Path, shape: ModelShape) -> None:
    """Prove that every tensor of the model is there, whole and of its shape, and that its layers
    have no others.

    Raises:
        BadCheckpoint: no safetensors, a damaged one, a missing tensor, another shape, or a tensor
            of a layer that the config has no place for.
    """
    found = tensor_shapes(folder)
    if shape.num_experts:
        return  # experts are stored fused or apart; the loader says what it misses
    wanted = {tensor.name: tensor.shape for tensor in parameter_tensors(shape)}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise BadCheckpoint(
            f"{folder} lacks {len(missing)} of {len(wanted)} tensors, among them {missing[0]}; "
            "download the checkpoint again"
        )
    for name, size in wanted.items():
        if found[name] != size:
            raise BadCheckpoint(
                f"{folder}: {name} is {list(found[name])}, its config.json means {list(size)}; "
                "config and weights are of different models"
            )
    refuse_strays(found, shape, folder)


_LAYER_TENSOR = re.compile(r"model\.layers\.(\d+)\.(?!.*rotary_emb\.inv_freq$)")


def refuse_strays(names: Iterable[str], shape: ModelShape, where: object) -> None:
    """What lies beside the layers (a second head, a vision tower, layers behind the last) changes
    no token. A bias or a norm inside one does, and a model loaded without it says something else.

    Raises:
        BadCheckpoint: a tensor of one of the model's layers that its config has no place for.
    """
    wanted = {tensor.name for tensor in parameter_tensors(shape)}
    for name in sorted(set(names) - wanted):
        layer = _LAYER_TENSOR.match(name)
        if layer is not None and int(layer[1]) < shape.num_layers:
            raise BadCheckpoint(
                f"{where} has {name}, for which its config.json has no place; config and weights "
                "are of different models"
            )


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the folder's safetensors files, by name.

    Raises:
        BadCheckpoint: no such files, or one that is cut short.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadCheckpoint(
            f"{folder} holds no *.safetensors; download the weights or use `--weights synthetic`"
        )
    return {name: size for path in files for name, size in _shapes(path)}


def _shapes(path: Path) -> Iterable[tuple[str, tuple[int, ...]]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise Unavailable(
            "reading a checkpoint needs safetensors: pip install 'decodegap[measure]'"
        ) from None
    try:
        with safe_open(path, framework="numpy") as file:
            return [(name, tuple(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(
            f"{path} is damaged or cut short ({error}); download it again"
        ) from None
