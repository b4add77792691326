"""The engine's weights: from a checkpoint folder, from another model's state, or made up.

q, k, v and gate, up are stacked into one matrix each, so that one kernel streams both. The stacked
matrix is allocated once and each source is copied into its rows, so loading needs the model's size
and one source tensor more, never two models. `from_state` shares every tensor it does not stack
(head, embedding, o, down: 44 % of Qwen2.5-7B) with its giver, and stacks the rest.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from decodegap.engine.program import Program, WeightSpec
from decodegap.errors import BadCheckpoint, DoesNotFit, first_line
from decodegap.predict.checkpoint import refuse_strays

Weights = dict[str, torch.Tensor]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SYNTHETIC_SIGMA = 0.02


def weight_bytes(program: Program, dtype: torch.dtype) -> int:
    """Bytes of all weights the engine holds; a tied head is held once."""
    return sum(torch.Size(spec.shape).numel() for spec in program.weights) * dtype.itemsize


def new_bytes(
    program: Program, state: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes that `state_weights` will allocate: of what it stacks, and of what it must convert."""
    own = torch.empty(0, dtype=dtype, device=device)

    def is_shared(spec: WeightSpec) -> bool:
        given = state.get(spec.sources[0].name)
        if given is None or len(spec.sources) > 1:
            return False
        return given.dtype == own.dtype and given.device == own.device and given.is_contiguous()

    new = (spec for spec in program.weights if not is_shared(spec))
    return sum(torch.Size(spec.shape).numel() for spec in new) * dtype.itemsize


def check_fits(num_bytes: int, device: torch.device) -> None:
    """Refuse what the device's free memory cannot hold, before anything is allocated.

    Raises:
        DoesNotFit: more is needed than is free.
    """
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0]
    if num_bytes > free:
        raise DoesNotFit(
            f"weights and cache need {num_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB of "
            f"{device} is free; lower max_context or take a smaller model"
        )


def synthetic_weights(
    program: Program, dtype: torch.dtype, device: torch.device, seed: int
) -> Weights:
    """Seeded normal weights (σ 0.02), norms around one, filled on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    weights = {}
    for spec in program.weights:
        tensor = torch.empty(spec.shape, dtype=dtype, device=device)
        center = 1.0 if spec.sources[0].kind == "norm" else 0.0
        weights[spec.name] = tensor.normal_(center, SYNTHETIC_SIGMA, generator=generator)
    return weights


def state_weights(
    program: Program, state: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Weights:
    """From a transformers model's `state_dict()`, sharing memory where nothing is stacked.

    Raises:
        BadCheckpoint: a tensor is missing, of another shape, or has no place in the model.
    """

    def read(name: str) -> torch.Tensor:
        if name not in state:
            raise BadCheckpoint(f"the state dict has no {name!r}; is it of {program.shape.name}?")
        return state[name].detach()

    refuse_strays(state, program.shape, "the state dict")
    return _assemble(program, read, dtype, device)


def checkpoint_weights(
    program: Program, folder: Path, dtype: torch.dtype, device: torch.device
) -> Weights:
    """From a folder of safetensors files, one or sharded.

    Raises:
        BadCheckpoint: a file or tensor is missing, damaged, of another shape, or has no place in
            the model.
    """
    with _Checkpoint(folder) as checkpoint:
        if program.shape.tied_head:
            _refuse_head_of_its_own(checkpoint, folder)
        refuse_strays(checkpoint.names, program.shape, folder)
        return _assemble(program, checkpoint.read, dtype, device)


def _refuse_head_of_its_own(checkpoint: "_Checkpoint", folder: Path) -> None:
    """Some files hold the tied head a second time; one that differs is another model's."""
    head, table = "lm_head.weight", "model.embed_tokens.weight"
    if checkpoint.has(head) and not torch.equal(checkpoint.read(head), checkpoint.read(table)):
        raise BadCheckpoint(
            f"{folder} holds a {head} that is not the embedding, and its config.json says "
            "tie_word_embeddings; set that to false"
        )


def _assemble(
    program: Program,
    read: Callable[[str], torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    return {spec.name: _stack(spec, read, dtype, device) for spec in program.weights}


def _stack(
    spec: WeightSpec,
    read: Callable[[str], torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    if len(spec.sources) == 1:
        source = spec.sources[0]
        tensor = _checked(source.name, source.shape, read(source.name))
        return tensor.to(device=device, dtype=dtype).contiguous()
    stacked = torch.empty(spec.shape, dtype=dtype, device=device)
    row = 0
    for source in spec.sources:
        stacked[row : row + source.shape[0]].copy_(
            _checked(source.name, source.shape, read(source.name))
        )
        row += source.shape[0]
    return stacked


_PLAIN_TYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def _checked(name: str, shape: tuple[int, ...], tensor: torch.Tensor) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise BadCheckpoint(
            f"{name} is {tuple(tensor.shape)}, the config says {shape}; "
            "weights and config.json are not of the same model"
        )
    if tensor.dtype not in _PLAIN_TYPES:
        raise BadCheckpoint(
            f"{name} is stored as {tensor.dtype}: quantised weights are not read; take the "
            "checkpoint they were made from"
        )
    return tensor


class _Checkpoint:
    """Open safetensors files of one folder, each opened when its first tensor is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _index(folder)
        self._open: dict[str, Any] = {}

    def __enter__(self) -> "_Checkpoint":
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU.

        Raises:
            BadCheckpoint: it is not there, or its file is damaged.
        """
        file_name = self._file_of.get(name)
        if file_name is None:
            raise BadCheckpoint(f"{self._folder} has no tensor {name!r}; download it again, whole")
        handle = self._open.get(file_name)
        if handle is None:
            handle = self._open[file_name] = _open_file(self._folder / file_name)
        from safetensors import SafetensorError

        try:
            return handle.get_tensor(name)
        except (SafetensorError, OSError) as error:  # an index may name what its shard has not
            raise BadCheckpoint(
                f"{self._folder / file_name} gives no {name!r} ({first_line(error)}); download it "
                "again"
            ) from None

    @property
    def names(self) -> Iterable[str]:
        return self._file_of.keys()

    def has(self, name: str) -> bool:
        return name in self._file_of


def _index(folder: Path) -> dict[str, str]:
    """File name of each tensor. A whole file goes before shards, as in transformers."""
    single = folder / "model.safetensors"
    if single.is_file():
        return dict.fromkeys(_open_file(single).keys(), single.name)
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        raise BadCheckpoint(
            f"{folder} has no model.safetensors nor an index of shards; download the checkpoint "
            "in safetensors form"
        )
    return _read_index(index)


def _read_index(index: Path) -> dict[str, str]:
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(
            f"cannot read {index}: {type(error).__name__}; download it again"
        ) from None
    if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
        raise BadCheckpoint(f"{index}: its weight_map is no table of file names; download it again")
    for file_name in sorted(set(table.values())):
        if not (index.parent / file_name).is_file():
            raise BadCheckpoint(f"shard {index.parent / file_name} is missing; download it again")
    return table


def _open_file(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} is damaged ({first_line(error)}); download it again") from None
