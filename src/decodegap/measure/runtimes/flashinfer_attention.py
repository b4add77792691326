"""`flashinfer`: transformers, eager, with flashinfer's decode kernel as the attention of a step.

The cache is allocated once with the positions first, flashinfer's layout `NHD`, so that what is
filled of it is one contiguous piece: a step writes one position and attention reads what is filled.
Nothing is copied as by `hf-eager`, and nothing empty is read as by `hf-static`. The prompt goes
through SDPA.

flashinfer builds a kernel when it is first called, with nvcc, and keeps it in the home folder. That
call is made while loading: the time is in `prepare_seconds` and in no step.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from decodegap.errors import Unavailable, first_line
from decodegap.measure.runtimes.hf_eager import HfEager
from decodegap.measure.runtimes.hf_model import attention_by
from decodegap.measure.runtimes.hf_static import num_positions
from decodegap.measure.runtimes.registry import how_to_install, parse_runtime
from decodegap.record import Trial

# q [heads, head_dim], k and v [positions, kv_heads, head_dim], sm_scale=: [heads, head_dim].
Decode = Callable[..., torch.Tensor]

# The head sizes flashinfer is tested at. It compiles for others, but adds a score up over
# head_dim / 8 lanes by halving, which is wrong where that is no power of two.
_HEAD_DIMS = (64, 128, 256)
_BUILDING = "its kernels are built with nvcc and ninja"
_REMEDIES = {
    "off": f"if it is the number of heads, take tensor_cores=on; {_BUILDING}",
    "on": f"{_BUILDING}; take hf-eager",
}


class FilledPart(DynamicLayer):
    """One layer's cache at batch 1. `keys` and `values` are [positions, kv_heads, head_dim], all
    that is allocated; `cumulative_length`, transformers' name for it, is how much is filled."""

    def __init__(self, num_positions: int) -> None:
        super().__init__()
        self._num_positions = num_positions
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            states.new_empty(self._num_positions, states.shape[1], states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states [1, kv_heads, n, head_dim]; views of all that is filled, in that layout."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.cumulative_length
        end = self.cumulative_length = start + key_states.shape[2]
        assert end <= self._num_positions, "more steps than the cache was made for"
        self.keys[start:end] = key_states[0].transpose(0, 1)
        self.values[start:end] = value_states[0].transpose(0, 1)
        return self.keys[:end].transpose(0, 1)[None], self.values[:end].transpose(0, 1)[None]

    def get_seq_length(self) -> int:
        return self.cumulative_length


def attend(
    decode: Decode,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers, as `_pass_queries_through` of the interventions. It
    is given no mask: transformers makes none for a name that is unknown to its
    `AttentionMaskInterface`. One token needs none, and SDPA is causal without."""
    if query.shape[2] > 1:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    attended = decode(
        query[0, :, 0], key[0].transpose(0, 1), value[0].transpose(0, 1), sm_scale=scaling
    )
    return attended[None, None], None


def load(model: Any, trial: Trial) -> HfEager:
    """Raises Unavailable where the package does not load or has no kernel for the model."""
    choice = parse_runtime(trial.runtime).option("tensor_cores")
    decode = _decode_kernel(choice)
    _check_model(model, trial)
    _try_kernel(decode, model, trial, _REMEDIES[choice])
    # A name with `flash` in it transformers would take for FlashAttention.
    name = f"decodegap_infer_tensor_cores_{choice}"
    transformers.AttentionInterface.register(name, partial(attend, decode))
    layers = [FilledPart(num_positions(trial)) for _ in range(trial.shape.num_layers)]
    cache = transformers.Cache(layers=layers)
    return HfEager(model, partial(attention_by, model, name), cache)


def _decode_kernel(choice: str) -> Decode:
    try:
        flashinfer = import_module("flashinfer")
    except (ImportError, OSError, RuntimeError) as error:  # it writes to the home folder
        raise Unavailable(
            f"flashinfer is installed and does not load ({first_line(error)}): "
            f"{how_to_install(['flashinfer'])}"
        ) from None
    kernel: Decode = flashinfer.single_decode_with_kv_cache
    return partial(kernel, kv_layout="NHD", use_tensor_cores=choice == "on")


def _check_model(model: Any, trial: Trial) -> None:
    """Refuse what the kernel or SDPA would compute wrongly without a word."""
    shape = trial.shape
    if model.config._attn_implementation != "sdpa":
        raise Unavailable(
            f"{shape.name} caps its scores, which SDPA, the attention of the prompt, cannot; "
            "take hf-eager"
        )
    windows = [window for window in shape.attention_windows if window is not None]
    if windows and min(windows) < num_positions(trial):
        raise Unavailable(
            f"flashinfer is given the whole cache, and {shape.name} has a sliding window of "
            f"{min(windows)} at context {trial.context}; take hf-eager"
        )
    if shape.head_dim not in _HEAD_DIMS:
        known = ", ".join(str(head_dim) for head_dim in _HEAD_DIMS)
        raise Unavailable(
            f"{shape.name} has heads of {shape.head_dim}, flashinfer those of {known}; "
            "take hf-eager"
        )


def _try_kernel(decode: Decode, model: Any, trial: Trial, remedy: str) -> None:
    """Build the kernel and run it on one position. How many heads may share a KV head differs
    between versions, and between its two kernels; only the call tells."""
    shape = trial.shape
    states = partial(torch.zeros, dtype=model.dtype, device=model.device)
    query = states(shape.num_heads, shape.head_dim)
    key = states(1, shape.num_kv_heads, shape.head_dim)
    try:
        decode(query, key, key)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError) as error:
        raise Unavailable(
            f"flashinfer does not run {shape.num_heads} heads over {shape.num_kv_heads} KV heads "
            f"of {shape.head_dim} here ({first_line(error)}); {remedy}"
        ) from None
