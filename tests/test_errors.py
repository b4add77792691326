"""What is taken over from other libraries' errors."""

from decodegap.errors import first_line


def test_only_the_first_line_is_taken():
    assert first_line(ValueError("\n no such file\nlong advice\n")) == "no such file"


def test_an_error_that_says_nothing_is_named_by_its_class():
    assert first_line(ConnectionError()) == "ConnectionError"
