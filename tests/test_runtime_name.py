"""A runtime's text, apart and together again."""

import pytest

from decodegap.measure.runtimes.registry import RUNTIMES, parse_runtime
from decodegap.runtime_name import RuntimeName, split_runtime


@pytest.mark.parametrize(
    "text, name, options",
    [
        ("hf-eager", "hf-eager", {}),
        ("hf-eager?sdpa=flash", "hf-eager", {"sdpa": "flash"}),
        ("later?a=1&b=x=y", "later", {"a": "1", "b": "x=y"}),
    ],
)
def test_a_text_is_a_name_and_its_options(text, name, options):
    found = split_runtime(text)
    assert (found.name, found.options) == (name, options)
    assert found.text == text


def test_options_have_one_order():
    assert RuntimeName("later", {"b": "2", "a": "1"}).text == "later?a=1&b=2"


def test_it_is_the_registry_s_spelling():
    asked = [
        f"{entry.name}?{option}={value}"
        for entry in RUNTIMES.values()
        for option, values in entry.options.items()
        for value in values
    ]
    assert asked
    for text in asked:
        spec = parse_runtime(text)
        found = split_runtime(spec.text)
        assert (found.name, found.options, found.text) == (spec.entry.name, spec.options, spec.text)
