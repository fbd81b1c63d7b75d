"""Falling back: what is logged and counted, and what the tests are to see."""

import logging

import pytest

import skfleet._fall_back
from skfleet._fall_back import STRICT_VARIABLE, fall_back, fall_backs


def answer(error):
    with fall_back("the plain way is taken"):
        if error is not None:
            raise error
        return "quick"
    return "plain"


def test_answer_of_the_block_or_what_follows_it():
    assert answer(None) == "quick"
    assert answer(ValueError("refused")) == "plain"


def test_is_counted_and_logged_with_the_error(caplog):
    before = fall_backs["the plain way is taken"]
    with caplog.at_level(logging.DEBUG, "skfleet"):
        answer(ValueError("refused"))
    assert fall_backs["the plain way is taken"] == before + 1
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == "the plain way is taken"
    assert "refused" in str(record.exc_info[1])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interruptions_end_it(error):
    with pytest.raises(error):
        answer(error())


@pytest.mark.parametrize("is_strict", [True, False])
def test_errors_of_wrong_code_of_the_package_are_seen_by_tests_alone(monkeypatch, is_strict):
    if not is_strict:
        monkeypatch.delenv(STRICT_VARIABLE)
    code = "def call():\n    return undefined\n"
    scope = {}
    exec(compile(code, skfleet._fall_back.__file__, "exec"), scope)

    def run():
        with fall_back("the plain way is taken"):
            return scope["call"]()
        return "plain"

    if is_strict:
        with pytest.raises(NameError, match="undefined"):
            run()
    else:
        assert run() == "plain"


@pytest.mark.parametrize("error", [NameError, AttributeError, AssertionError])
def test_errors_of_code_of_users_are_never_raised(error):
    assert answer(error("of a user's function")) == "plain"
