"""`hf-fa2`: `hf-eager` with the attention of the flash-attn package.

The same forward over the same growing cache. transformers hands the package keys and values as they
lie in the cache, and no mask: the kernel is told `causal` and the window. transformers 5.17 also
asks the device in every layer whether the positions are those of one sequence, and waits for the
answer; 5.24 does not ask for a single token.
"""

from functools import partial
from importlib import import_module
from typing import Any

import torch
import transformers

from decodegap.errors import Unavailable, first_line
from decodegap.measure.runtimes.hf_eager import HfEager
from decodegap.measure.runtimes.hf_model import attention_by
from decodegap.measure.runtimes.registry import how_to_install
from decodegap.record import Trial

_ATTENTION = "flash_attention_2"
_REMEDY = how_to_install(["flash_attn"])


def load(model: Any, trial: Trial) -> HfEager:
    """Raises Unavailable where the package, transformers or the model does not allow it."""
    package = _import_package()
    _check_model(model, trial)
    _check_dispatch(model)
    _try_kernel(package.flash_attn_func, model, trial)
    return HfEager(model, partial(attention_by, model, _ATTENTION))


def _import_package() -> Any:
    """The package, which is compiled and so imports only under the torch it was built against.

    transformers is asked as well: what it does not take for FlashAttention 2 it replaces by a
    kernel from the network, where it can.
    """
    try:
        package = import_module("flash_attn")
    except ImportError as error:
        raise Unavailable(
            f"flash-attn is installed and does not load ({first_line(error)}); build it against "
            f"this torch: {_REMEDY}"
        ) from None
    if not transformers.utils.is_flash_attn_2_available():
        raise Unavailable(
            "what is installed as flash_attn is not what transformers takes for FlashAttention 2; "
            f"install 2.3.3 or newer: {_REMEDY}"
        )
    return package


def _check_model(model: Any, trial: Trial) -> None:
    """A capped model's own attention is eager, and every record of it says that this ran."""
    if model.config._attn_implementation != "sdpa":
        raise Unavailable(
            f"hf-fa2 does not run {trial.shape.name}, which caps its scores; take hf-eager"
        )


def _check_dispatch(model: Any) -> None:
    """Let transformers look whether it would, and put back what it sets while looking."""
    with attention_by(model, model.config._attn_implementation):
        try:
            model.set_attn_implementation(_ATTENTION)
        except (ImportError, ValueError) as error:
            raise Unavailable(
                f"transformers refuses FlashAttention 2: {first_line(error)}"
            ) from None
        taken = model.config._attn_implementation
    if taken != _ATTENTION:
        raise Unavailable(f"transformers takes {taken} in place of FlashAttention 2; use hf-eager")


def _try_kernel(attend: Any, model: Any, trial: Trial) -> None:
    """Run it once on one position: whether it takes these heads and this GPU only it knows."""
    shape = trial.shape
    states = partial(torch.zeros, dtype=model.dtype, device=model.device)
    query = states(1, 1, shape.num_heads, shape.head_dim)
    key = states(1, 1, shape.num_kv_heads, shape.head_dim)
    try:
        attend(query, key, key, causal=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise Unavailable(
            f"flash-attn does not run {shape.name} on this GPU ({first_line(error)}); take hf-eager"
        ) from None
