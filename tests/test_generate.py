"""Text as it forms: stop strings, clocks, prompts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodegap import generate
from decodegap.errors import BadCheckpoint, BadConfig, UnknownModel
from decodegap.predict.catalogue import catalogue_devices, catalogue_shape


def stopped(pieces: list[str], stop: list[str]) -> str:
    return "".join(generate.until_stop(pieces, stop))


def test_text_without_a_stop_string_passes_whole() -> None:
    assert stopped(["a ", "robot ", "arm"], []) == "a robot arm"


def test_a_stop_string_across_pieces_ends_the_text_before_it() -> None:
    assert stopped(["one EN", "D two"], ["END"]) == "one "


def test_an_empty_stop_string_is_refused() -> None:
    plain = {"max_new_tokens": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    with pytest.raises(BadConfig, match="empty --stop"):
        generate.Options(**plain, stop=("END", ""))


def test_the_earliest_of_several_stop_strings_counts() -> None:
    assert stopped(["a;b.c"], [".", ";"]) == "a"


def test_a_beginning_that_turns_out_not_to_be_a_stop_string_is_shown() -> None:
    assert stopped(["see EN", "tropy"], ["END"]) == "see ENtropy"


def test_nothing_that_may_become_a_stop_string_is_shown_early() -> None:
    shown = list(generate.until_stop(iter(["ab", "cST", "OP rest"]), ["STOP"]))
    assert "".join(shown) == "abc"
    assert not any("S" in text for text in shown)


@given(st.lists(st.text("ab.", max_size=4)), st.text("ab.", min_size=1, max_size=3))
def test_cutting_pieces_equals_cutting_the_whole_text(pieces: list[str], stop: str) -> None:
    whole = "".join(pieces)
    assert stopped(pieces, [stop]) == whole.partition(stop)[0]


class _FakeTokenizer:
    chat_template = None
    eos_token_id = None


def test_chat_needs_a_template() -> None:
    with pytest.raises(UnknownModel, match="no chat template"):
        generate.encode_prompt(_FakeTokenizer(), "hello", chat=True)


def test_a_tokenizer_without_an_end_stops_at_nothing(tmp_path: Path) -> None:
    assert generate.stop_tokens(_FakeTokenizer(), tmp_path) == frozenset()


@pytest.mark.parametrize("listed, ends", [("[2, 30]", {2, 30}), ("5", {5}), ("null", set())])
def test_every_end_of_text_a_checkpoint_names_ends_the_answer(
    tmp_path: Path, listed: str, ends: set[int]
) -> None:
    class WithEnd(_FakeTokenizer):
        eos_token_id = 7

    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {listed}}}')
    assert generate.stop_tokens(WithEnd(), tmp_path) == ends | {7}
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(BadCheckpoint, match="cannot read"):
        generate.stop_tokens(WithEnd(), tmp_path)


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadConfig, match="not UTF-8"):
        generate.encode_prompt(_FakeTokenizer(), "caf\udce9", chat=False)


def test_a_chat_template_that_refuses_is_told() -> None:
    from jinja2 import TemplateError

    class Refusing(_FakeTokenizer):
        chat_template = "x"

        def apply_chat_template(self, *arguments: object, **options: object) -> str:
            raise TemplateError("only pairs of turns")

    with pytest.raises(BadCheckpoint, match=r"only pairs of turns.*leave --chat out"):
        generate.encode_prompt(Refusing(), "hello", chat=True)


@pytest.mark.parametrize(
    "position, num_tokens, is_told", [(10, 6, True), (9, 6, False), (10, 8, False)]
)
def test_an_answer_cut_by_the_cache_says_so(position: int, num_tokens: int, is_told: bool) -> None:
    class At:
        class program:  # noqa: N801
            max_context = 10

    engine = At()
    engine.position = position  # type: ignore[attr-defined]
    speed = generate.Speed(num_prompt_tokens=5, first_token=0.1, steps=(0.1,) * (num_tokens - 1))
    options = generate.Options(max_new_tokens=8, temperature=0.0, top_k=0, top_p=1.0, seed=0)
    words = generate.full_cache_words(speed, engine, options)
    assert (words is not None) == is_told
    assert words is None or "--max-context" in words


def test_speed_words_give_the_ratio_to_the_exact_floor() -> None:
    shape, device = catalogue_shape("qwen2.5-7b"), catalogue_devices()["h200"]
    speed = generate.Speed(num_prompt_tokens=2048, first_token=0.1, steps=(0.004,) * 9)
    words = generate.speed_words(speed, shape, device)
    # 14.26 GB over 4.8 TB/s is 2.97 ms, of 4 ms.
    assert "250.0 tokens/s" in words
    assert "R_floor 0.743" in words


def test_an_answer_of_one_token_has_no_speed() -> None:
    shape, device = catalogue_shape("qwen2.5-7b"), catalogue_devices()["h200"]
    speed = generate.Speed(num_prompt_tokens=5, first_token=0.1, steps=())
    assert "too short an answer" in generate.speed_words(speed, shape, device)


def test_ctrl_c_ends_the_answer_and_keeps_its_account() -> None:
    class Interrupted:
        def generate(self, ids: list[int], **options: object) -> Iterator[int]:
            raise KeyboardInterrupt
            yield 0

    shown: list[str] = []
    options = generate.Options(max_new_tokens=4, temperature=0.0, top_k=0, top_p=1.0, seed=0)
    speed = generate.stream_answer(Interrupted(), _FakeTokenizer(), [1, 2], options, shown.append)
    assert speed.num_prompt_tokens == 2
    assert shown == ["\n[interrupted]"]
