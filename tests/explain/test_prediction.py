"""Predictions: what parses, what one text means, and what becomes of it."""

import pytest

from decodegap.explain.prediction import (
    BadPrediction,
    outcome_of,
    parse_prediction,
    parse_share,
    registered_hash,
)


@pytest.mark.parametrize(
    "text, canonical, low, high",
    [
        ("ratio > 1.2", "ratio > 1.2", 1.2, None),
        ("  RATIO>1.20 ", "ratio > 1.2", 1.2, None),
        ("ratio < .9", "ratio < 0.9", None, 0.9),
        ("ratio > 2", "ratio > 2", 2.0, None),
        ("no difference within 5 %", "no difference within 5 %", 1 / 1.05, 1.05),
        ("No difference within ±2.5%", "no difference within 2.5 %", 1 / 1.025, 1.025),
    ],
)
def test_what_is_said_is_read_and_spelled_one_way(text, canonical, low, high):
    prediction = parse_prediction(text)
    assert prediction.text == canonical
    assert prediction.low == pytest.approx(low) if low else prediction.low is None
    assert prediction.high == pytest.approx(high) if high else prediction.high is None
    assert parse_prediction(prediction.text) == prediction


@pytest.mark.parametrize(
    "text",
    [
        *("", "ratio", "ratio > ", "ratio = 1.2", "ratio >= 1.2", "ratio > 1.2.3", "ratio > -1"),
        *("faster", "no difference", "no difference within 5", "ratio > 1.2 or so", "ratio > 0"),
        *("no difference within 0 %", "no difference within 0.00001 %", "ratio < 0.00009"),
        *("ratio > 1000001", "ratio > " + "9" * 400),
    ],
)
def test_what_does_not_parse_is_refused_with_the_three_forms_or_the_reason(text):
    with pytest.raises(BadPrediction, match=r"ratio > 1\.2|between 0\.0001"):
        parse_prediction(text)


@pytest.mark.parametrize("figure", ["0.0001", "1000000", "123456.789012345", "0.000123456789012"])
@pytest.mark.parametrize("form", ["ratio > {}", "ratio < {}", "no difference within {} %"])
def test_what_is_spelled_canonically_reads_back(form, figure):
    once = parse_prediction(form.format(figure))
    assert parse_prediction(once.text) == once


@pytest.mark.parametrize(
    "text, low, high, outcome",
    [
        ("ratio > 1.2", 1.21, 1.3, "confirmed"),
        ("ratio > 1.2", 1.1, 1.2, "refuted"),
        ("ratio > 1.2", 1.19, 1.3, "undecided"),
        ("ratio > 1.2", 1.2, 1.3, "undecided"),
        ("ratio < 0.9", 0.7, 0.8, "confirmed"),
        ("ratio < 0.9", 0.95, 1.0, "refuted"),
        ("ratio < 0.9", 0.85, 0.95, "undecided"),
        ("no difference within 5 %", 0.98, 1.04, "confirmed"),
        ("no difference within 5 %", 1.06, 1.2, "refuted"),
        ("no difference within 5 %", 0.8, 0.9, "refuted"),
        ("no difference within 5 %", 0.94, 1.01, "undecided"),
        ("no difference within 5 %", 0.9, 1.2, "undecided"),
    ],
)
def test_the_interval_decides(text, low, high, outcome):
    assert outcome_of(parse_prediction(text), low, high) == outcome


def test_a_hash_is_of_the_claim_and_of_what_it_is_about():
    claim, same = parse_prediction("ratio > 1.2"), parse_prediction("ratio>1.20")
    other = parse_prediction("ratio > 1.3")
    assert registered_hash(claim, "a ÷ b") == registered_hash(same, "a ÷ b")
    assert registered_hash(claim, "a ÷ b") != registered_hash(other, "a ÷ b")
    assert registered_hash(claim, "a ÷ b") != registered_hash(claim, "b ÷ a")
    assert len(registered_hash(claim, "a ÷ b")) == 64


@pytest.mark.parametrize(
    "text, share", [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("±1%", 0.01)]
)
def test_a_share_may_be_a_percentage(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "5", "0", "0%", "100%", "-1%", "five", "5%%", "nan"])
def test_a_share_outside_its_range_is_refused(text):
    with pytest.raises(BadPrediction, match="5%"):
        parse_share(text)
