"""A tiny config of every architecture whose bytes are counted, and of the variants that differ."""

from typing import Any

from builders import tiny

_GEMMA = {"head_dim": 24, "tie_word_embeddings": None, "hidden_act": "gelu_pytorch_tanh"}

_QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "head_dim": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": tiny(),
    "llama-tied": tiny(tie_word_embeddings=True),
    "llama-head-dim": tiny(head_dim=24),
    "llama-biases": tiny(attention_bias=True, mlp_bias=True),
    "llama-kv-heads-of-old": tiny(num_key_value_heads=None),
    "mistral": tiny(model_type="mistral") | {"sliding_window": None},
    "mistral-window": tiny(model_type="mistral", sliding_window=12),
    "qwen2": tiny(model_type="qwen2"),
    "qwen2-window": tiny(
        model_type="qwen2",
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=12,
        max_window_layers=1,
    ),
    "qwen2-layer-types": tiny(
        model_type="qwen2",
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": tiny(model_type="qwen3", head_dim=24),
    "qwen3-biased": tiny(model_type="qwen3", head_dim=24, attention_bias=True),
    "smollm3": tiny(
        model_type="smollm3", num_hidden_layers=5, tie_word_embeddings=None, pad_token_id=0
    ),
    "smollm3-window": tiny(
        model_type="smollm3",
        num_hidden_layers=5,
        tie_word_embeddings=None,
        pad_token_id=0,
        use_sliding_window=True,
        sliding_window=12,
    ),
    "phi3": tiny(model_type="phi3", pad_token_id=0),
    "phi3-window": tiny(model_type="phi3", pad_token_id=0, sliding_window=12),
    "olmo2": tiny(model_type="olmo2"),
    "gemma": tiny(model_type="gemma", **_GEMMA),
    "gemma2": tiny(model_type="gemma2", sliding_window=12, query_pre_attn_scalar=24, **_GEMMA),
    "gemma3_text": tiny(
        model_type="gemma3_text",
        num_hidden_layers=7,
        sliding_window=12,
        query_pre_attn_scalar=24,
        **_GEMMA,
    ),
    "mixtral": tiny(
        model_type="mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen3_moe": tiny(**_QWEN3_MOE),
    "qwen3_moe-window": tiny(
        use_sliding_window=True, sliding_window=12, max_window_layers=1, **_QWEN3_MOE
    ),
}


def build(name: str, device: str = "meta") -> Any:
    """The transformers model of a tiny config, with random weights unless on `meta`."""
    import torch
    import transformers

    settings = dict(FAMILY_CONFIGS[name])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
