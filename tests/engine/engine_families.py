"""Tiny random models of every family the engine decodes, with awkward sizes on purpose."""

from functools import cache
from typing import Any

import torch

from decodegap.predict.hf_config import from_hf
from decodegap.predict.model import ModelShape

_COMMON = {
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "vocab_size": 131,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}

# Sizes leave every kernel a remainder: 72 and 104 columns, 131 tokens.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama2": {
        "model_type": "llama",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
    "llama3": {
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_linear": {
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "mistral": {
        "model_type": "mistral",
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "sliding_window": None,
    },
    "qwen2": {
        "model_type": "qwen2",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "hidden_size": 448,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen3": {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "smollm2": {
        "model_type": "llama",
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 192,
        "tie_word_embeddings": True,
    },
}

FAMILIES = tuple(CONFIGS)


def config_of(family: str) -> dict[str, Any]:
    return {**_COMMON, **CONFIGS[family]}


def shape_of(family: str) -> ModelShape:
    return from_hf(config_of(family), family)


@cache
def transformers_model(family: str) -> Any:
    """The family's own implementation in fp32 with seeded weights, biases and norms included."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**config_of(family))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name else 0.0
            parameter.normal_(center, 0.08, generator=generator)
    return model
