"""A transformers model on the device: from a checkpoint, or from seeded synthetic weights."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
import transformers
from safetensors import SafetensorError
from transformers.initialization import no_init_weights

from decodegap.errors import BadCheckpoint, BadConfig, first_line
from decodegap.predict.hf_config import from_hf
from decodegap.predict.model import WITHOUT_COST
from decodegap.record import Trial

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

_SYNTHETIC_STD = 0.02


def load_model(trial: Trial) -> Any:
    """The trial's model in eval mode on its device.

    Raises:
        BadConfig: transformers would build another shape than the one counted.
        BadCheckpoint: weights are missing, damaged or of another shape.
    """
    config = build_config(trial)
    if trial.weights == "checkpoint":
        model = _from_checkpoint(trial, config)
    else:
        model = synthetic_model(config, DTYPES[trial.format], trial.device, trial.seed)
    return model.eval().requires_grad_(False)


def build_config(trial: Trial) -> Any:
    """transformers' config of the trial's model, proven to mean the shape that is counted."""
    settings = {key: value for key, value in trial.config.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(trial.shape.architecture, **settings)
    if not trial.shape.attention_windows and hasattr(config, "sliding_window"):
        config.sliding_window = None  # some config classes have a window unless told otherwise
    built = msgspec.to_builtins(from_hf(config.to_dict(), trial.shape.name))
    for key, counted in msgspec.to_builtins(trial.shape).items():
        if key not in WITHOUT_COST and built[key] != counted:
            raise BadConfig(
                f"{trial.shape.name}: transformers reads `{key}` as {built[key]!r}, the byte count "
                f"as {counted!r}; state it in the config.json"
            )
    return config


def synthetic_model(config: Any, dtype: torch.dtype, device: str, seed: int) -> Any:
    """A model with seeded weights: matrices normal(0, 0.02), norms about one, filled in place.

    The same seed gives the same weights on one kind of device, for every runtime.
    """
    with no_init_weights(), torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=dtype, attn_implementation=attention_of_model(config)
        )
    model.tie_weights()
    generator = torch.Generator(device=device).manual_seed(seed)
    shifted_norms = "gemma" in config.model_type  # those multiply by 1 + weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parameter.dim() == 1 and "norm" in name
            mean = 1.0 if is_norm and not shifted_norms else 0.0
            parameter.normal_(mean, _SYNTHETIC_STD, generator=generator)
    return model


def _from_checkpoint(trial: Trial, config: Any) -> Any:
    assert trial.folder is not None
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            trial.folder,
            config=config,
            dtype=DTYPES[trial.format],
            attn_implementation=attention_of_model(config),
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = first_line(error)
        raise BadCheckpoint(f"cannot load {trial.folder}: {reason}") from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise BadCheckpoint(
            f"{trial.folder} lacks {len(missing)} tensors, among them {missing[0]}; "
            "download the checkpoint again"
        )
    return model.to(trial.device)


def attention_of_model(config: Any) -> str:
    """transformers' name of the attention that is run: SDPA, as the reference study's, but for
    models that cap their scores, which SDPA cannot do."""
    return "sdpa" if getattr(config, "attn_logit_softcapping", None) is None else "eager"


@contextmanager
def attention_by(model: Any, name: str) -> Iterator[None]:
    """Forwards inside take transformers' attention `name`; those after it what they took before.
    The verdict judges with the same model, and is to run its own attention."""
    config = model.config
    own = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = own


def notes_on(model: Any) -> tuple[str, ...]:
    """What ran otherwise than a reader would expect."""
    if model.config._attn_implementation == "sdpa":
        return ()
    return ("attention ran eager, not SDPA: the model caps its scores",)


def cache_argument(model: Any) -> str:
    """The name `forward` gives its KV cache: it changed between transformers 5.17 and 5.24."""
    names = inspect.signature(model.forward).parameters
    return "past_key_values" if "past_key_values" in names else "cache"


def held_bytes(model: Any, cache: Any) -> dict[str, int]:
    """Sizes of the tensors really held: parameters (shared ones once) and the KV cache."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    tensors = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    return {
        "parameters": parameters,
        "kv_cache": sum(t.numel() * t.element_size() for t in tensors),
    }
