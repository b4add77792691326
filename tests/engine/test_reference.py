"""The reference executor against transformers' own implementations, in fp32."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engine_families import FAMILIES, shape_of, transformers_model  # noqa: E402

from decodegap.engine import Engine  # noqa: E402

# Both are fp32; they differ in the order of sums alone.
LOGIT_TOLERANCE = 2e-5
PROMPT = [3, 77, 130, 0, 12, 12, 54]
NUM_STEPS = 16


def _engine(family: str) -> Engine:
    return Engine.from_state(
        shape_of(family), transformers_model(family).state_dict(), device="cpu", dtype="fp32"
    )


@torch.inference_mode()
def _hf_logits(family: str, ids: list[int]) -> torch.Tensor:
    return transformers_model(family)(torch.tensor([ids])).logits[0, -1]


def _difference(engine: Engine, family: str, ids: list[int]) -> float:
    expected = _hf_logits(family, ids)
    return float((engine.logits - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_steps_match_transformers(family: str) -> None:
    engine = _engine(family)
    engine.prefill(PROMPT)
    ids = list(PROMPT)
    assert _difference(engine, family, ids) < LOGIT_TOLERANCE
    for _ in range(NUM_STEPS):
        expected = int(_hf_logits(family, ids).argmax())
        assert int(engine.token) == expected
        ids.append(expected)
        engine.step()
        assert _difference(engine, family, ids) < LOGIT_TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_from_an_empty_cache_equal_prefill(family: str) -> None:
    stepped, prefilled = _engine(family), _engine(family)
    for position, token in enumerate(PROMPT):
        stepped.place(token=token, position=position)
        stepped.step()
    prefilled.prefill(PROMPT)
    assert int(stepped.token) == int(prefilled.token)
    assert stepped.position == prefilled.position == len(PROMPT)
    torch.testing.assert_close(stepped.logits, prefilled.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        stepped.buffers["keys"], prefilled.buffers["keys"], rtol=1e-4, atol=1e-5
    )


def test_cache_can_be_filled_to_its_last_position() -> None:
    shape = shape_of("llama2")
    engine = Engine.from_state(
        shape,
        transformers_model("llama2").state_dict(),
        max_context=9,
        device="cpu",
        dtype="fp32",
    )
    engine.prefill(PROMPT)
    tokens = list(engine.generate(PROMPT, max_new_tokens=50))
    assert engine.position == 9
    assert len(tokens) == 3
    ids = PROMPT + tokens[:-1]
    assert _difference(engine, "llama2", ids) < LOGIT_TOLERANCE
