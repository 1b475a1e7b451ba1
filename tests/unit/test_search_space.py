"""What a study searches: words are checked, and defaults surround the agent's own options."""

import pytest

from engram.agents import AGENTS, PPO, make
from engram.agents.presets import PRESETS
from engram.config import replace
from engram.errors import EngramError
from engram.search_space import Interval, Values, read_space

DQN = make("dqn")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("learning_rate=1e-5..1e-2:log", Interval(1e-5, 1e-2, log=True)),
        ("learning-rate=1e-5..1e-2", Interval(1e-5, 1e-2)),
        ("batch_size=16..1e2", Interval(16, 100)),
        ("n_step=1,3,5,3", Values((1, 3, 5))),
        ("loss=huber,mse", Values(("huber", "mse"))),
        ("truncation_is_terminal=None,true", Values((True, None))),
        ("double_q", Values((False, True))),
        ("head", Values(("dueling", "q", "quantile"))),
        ("epsilon_end", Interval(0, 1)),
        ("learning_rate", Interval(5e-5, 5e-3, log=True)),
        ("hidden_size", Values((72, 144, 288))),
        ("gamma", Values((0.95, 0.98, 0.99, 0.995))),
    ],
)
def test_a_word_is_a_range_or_values_and_spells_itself(word, expected):
    name = word.partition("=")[0].replace("-", "_")
    assert read_space(DQN, [word]) == {name: expected}
    assert read_space(DQN, [f"{name}={expected}"]) == {name: expected}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("learning_rat=1..2", "DQN has no option 'learning_rat'. Did you mean learning_rate"),
        ("name=a,b", "DQN has no option 'name'"),
        ("n_step=0,1", "n_step of the space must be at least 1, but is 0."),
        ("n_step=1..2.5", "must be a whole number, not '2.5'"),
        ("n_step=", "must be a whole number, not ''"),
        ("gamma=0.9..1.1", "must be between 0 and 1, but is 1.1"),
        ("gamma=0..1:log", "has no logarithm: begin above 0"),
        ("gamma=0.1..1:exp", "ends in 'exp': write :log"),
        ("gamma=0.9..0.9", "is no range: write a smaller number before the dots"),
        ("loss=mse..huber", "loss is no number, so it has no range"),
        ("loss=mae,mse", "loss of the space must be one of mse, huber, not 'mae'"),
        ("truncation_is_terminal=true..false", "is no number, so it has no range"),
        ("buffer_size", "buffer_size has no range of its own"),
        ("n_step n_step=1,2", "The space names n_step twice"),
        ("double_q", "double_q is given a value and searched too"),
    ],
)
def test_a_wrong_word_is_refused_in_one_sentence(words, sentence):
    with pytest.raises(EngramError) as caught:
        read_space(DQN, words.split(), fixed={"double_q"})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "preset"),
    [(name, p) for p in PRESETS for name in PRESETS[p].options if name != "random"]
    + [(name, "paper") for name in AGENTS if name != "random"],
)
def test_the_default_space_is_allowed_and_has_the_own_options(name, preset):
    agent = make(name, preset)
    space = read_space(agent)
    assert "gamma" in space
    assert all(getattr(agent, option) in x for option, x in space.items())
    for option, x in space.items():
        for value in (x.low, x.high) if isinstance(x, Interval) else x.values:
            assert getattr(replace(agent, **{option: value}), option) == value


@pytest.mark.parametrize("words", [["epsilon_end", "learning_rate"], ["gamma=0..1"]])
def test_an_interval_of_real_numbers_has_real_bounds(words):
    for interval in read_space(make("dqn", learning_rate=1.0), words).values():
        assert (type(interval.low), type(interval.high)) == (float, float)


def test_an_option_that_is_given_is_not_searched_by_default():
    assert read_space(PPO()).keys() - read_space(PPO(), fixed={"gamma", "hidden_size"}).keys() == {
        "gamma",
        "hidden_size",
    }


def test_an_agent_without_options_is_refused():
    with pytest.raises(EngramError, match="Random has no option that is searched by default"):
        read_space(make("random"))
