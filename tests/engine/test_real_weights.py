"""The reference executor on real weights, against transformers."""

import pytest
import torch

from decodegap.engine import Engine
from real_checkpoint import real_checkpoint

pytestmark = pytest.mark.slow

NUM_TOKENS = 64
PROMPT = "The three laws of robotics are"


@pytest.fixture(scope="module")
def folder():
    return real_checkpoint()


@pytest.fixture(scope="module")
def reference(folder):
    """transformers' greedy tokens after the prompt, and its logits after each of them."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.inference_mode():
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
        )
        logits = model(text).logits[0]
    return ids[0].tolist(), text[0, ids.shape[1] :].tolist(), logits


def test_the_same_greedy_text(folder, reference):
    prompt, tokens, _ = reference
    engine = Engine.from_pretrained(folder, max_context=128, device="cpu", dtype="fp32")
    assert list(engine.generate(prompt, max_new_tokens=NUM_TOKENS)) == tokens


def test_the_same_logits_after_every_token(folder, reference):
    """Within 1e-4 of the largest logit, over 64 steps of a real model of 30 layers."""
    prompt, tokens, logits = reference
    engine = Engine.from_pretrained(folder, max_context=128, device="cpu", dtype="fp32")
    engine.prefill(prompt)
    for index, token in enumerate(tokens):
        expected = logits[len(prompt) - 1 + index]
        assert (engine.logits - expected).abs().max() < 1e-4 * expected.abs().max()
        assert int(engine.token) == token
        engine.step()


def test_in_bf16_the_text_starts_as_in_fp32(folder, reference):
    """Rounding turns near ties later on; it must not turn the first tokens of a sure sentence."""
    prompt, tokens, _ = reference
    engine = Engine.from_pretrained(folder, max_context=128, device="cpu", dtype="bf16")
    assert list(engine.generate(prompt, max_new_tokens=8)) == tokens[:8]
