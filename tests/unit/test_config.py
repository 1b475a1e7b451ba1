"""Types of options: which values they take, and how a text spells them."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from engram.agents import DQN
from engram.config import (
    Count,
    Positive,
    Probability,
    check,
    check_all,
    convert,
    field_docs,
    replace,
)
from engram.errors import EngramError


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, Count),
        (0.0, Probability),
        (1, Probability),
        (1e-9, Positive),
        (None, Count | None),
        (True, bool),
        ("a", Literal["a", "b"]),
        ("text", str),
    ],
)
def test_values_within_their_range_pass(value, kind):
    check("option", value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (0, Count, "option must be at least 1, but is 0."),
        (1.0, Count, "option must be a whole number, not 1.0."),
        (True, Count, "option must be a whole number, not True."),
        (None, Count, "option must be a whole number, not None."),
        (1.1, Probability, "option must be between 0 and 1, but is 1.1."),
        (0, Positive, "option must be greater than 0, but is 0."),
        (math.inf, Positive, "option must be a finite number, but is inf."),
        (math.nan, Positive, "option must be greater than 0, but is nan."),
        ("x", float, "option must be a number, not 'x'."),
        (1, bool, "option must be True or False, not 1."),
        ("c", Literal["a", "b"], "option must be one of a, b, not 'c'."),
    ],
)
def test_a_value_outside_its_range_is_named_with_the_range(value, kind, sentence):
    with pytest.raises(EngramError) as error:
        check("option", value, kind)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("100_000", Count, 100_000),
        ("1e5", Count, 100_000),
        ("1.5e3", int, 1_500),
        ("9007199254740993", int, 9007199254740993),
        ("-3", int, -3),
        ("1.5", int, "1.5"),
        ("inf", int, "inf"),
        ("nan", int, "nan"),
        ("some", int, "some"),
        ("1e-3", Positive, 0.001),
        ("x", float, "x"),
        ("true", bool, True),
        ("False", bool | None, False),
        ("None", bool | None, None),
        ("None", Count | None, None),
        ("yes", bool, "yes"),
        ("1", str, "1"),
        ("huber", Literal["mse", "huber"], "huber"),
    ],
)
def test_a_text_is_converted_or_left_for_the_check(text, kind, value):
    result = convert(text, kind)
    assert result == value
    assert type(result) is type(value)


@dataclass(frozen=True)
class Base:
    gamma: Probability = 0.9
    """discount of the
    future"""
    silent: int = 0


@dataclass(frozen=True)
class Derived(Base):
    size: Count = 1
    """how large"""


def test_field_docs_are_those_of_the_class_and_its_bases():
    assert field_docs(Derived) == {
        "gamma": "discount of the future",
        "silent": "",
        "size": "how large",
    }


def test_check_all_and_replace_name_the_option():
    with pytest.raises(EngramError, match="size must be at least 1"):
        check_all(Derived(size=0))
    with pytest.raises(EngramError, match="Derived has no option 'gama'"):
        replace(Derived(), gama=1)
    assert replace(Derived(), size=3) == Derived(size=3)


def test_numbers_of_numpy_become_numbers_of_python():
    agent = DQN(batch_size=np.int64(8), learning_rate=np.float32(0.5))
    assert (type(agent.batch_size), type(agent.learning_rate)) == (int, float)
    assert agent == DQN(batch_size=8, learning_rate=0.5)
    with pytest.raises(EngramError, match="batch_size must be a whole number"):
        DQN(batch_size=np.float32(8))
