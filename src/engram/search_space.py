"""What a study searches: a range or a list of values for each of an agent's options."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from engram.config import Range, check, convert, split_type
from engram.errors import EngramError, nearest_names
from engram.types import Agent

FACTORS = {
    "learning_rate": 10,
    "epsilon_decay": 5,
    "target_update_interval": 5,
    "num_neighbours": 3,
    "batch_size": 2,
    "hidden_size": 2,
    "key_size": 2,
    "num_steps": 2,
}
"""by default these are searched from the agent's value divided by a factor to it times the factor,
sizes among three values"""
SIZES = ("batch_size", "hidden_size", "key_size", "num_steps")
CHOICES: dict[str, tuple[float, ...]] = {
    "n_step": (1, 3, 5, 10),
    "gamma": (0.95, 0.98, 0.99, 0.995),
    "chunk": (1, 5, 10, 20),
    "update_epochs": (4, 10, 20),
    "clip_coef": (0.1, 0.2, 0.3),
    "gae_lambda": (0.9, 0.95, 0.98),
    "ent_coef": (0.0, 0.001, 0.01, 0.03),
}
"""by default these are searched among such values and the agent's own"""


@dataclass(frozen=True)
class Interval:
    """All numbers between two, whole ones if both are."""

    low: float
    high: float
    log: bool = False
    """whether the logarithm is drawn evenly"""

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{_spell(self.low)}..{_spell(self.high)}{':log' * self.log}"


@dataclass(frozen=True)
class Values:
    """Some values."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(_spell, self.values))


SearchSpace = dict[str, Interval | Values]


def read_space(
    agent: Agent, words: str | Sequence[str] = (), fixed: Collection[str] = ()
) -> SearchSpace:
    """The options that words like `n_step=1,3`, `gamma=0.9..0.99` or `n_step` name; without words
    the default space but for what is `fixed`."""
    kinds = get_type_hints(type(agent), include_extras=True)
    for name in fixed:
        if name not in vars(agent):
            kind = type(agent).__name__
            raise EngramError(f"{kind} has no option {name!r}.{nearest_names(name, vars(agent))}")
    if not words:
        return _default_space(agent, kinds, fixed)
    space: SearchSpace = {}
    for word in words.split() if isinstance(words, str) else words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in vars(agent):
            kind = type(agent).__name__
            raise EngramError(f"{kind} has no option {name!r}.{nearest_names(name, vars(agent))}")
        if name in fixed:
            raise EngramError(f"{name} is given a value and searched too: leave one of them out.")
        if name in space:
            raise EngramError(f"The space names {name} twice: leave one of them out.")
        if equals:
            space[name] = _read(name, text, kinds[name])
        else:
            space[name] = _default(name, getattr(agent, name), kinds[name])
    return space


def _default_space(agent: Agent, kinds: dict[str, Any], fixed: Collection[str]) -> SearchSpace:
    names = [name for name in vars(agent) if name in {*FACTORS, *CHOICES} and name not in fixed]
    if not names:
        raise EngramError(
            f"{type(agent).__name__} has no option that is searched by default: name some, as "
            "NAME=LOW..HIGH, or choose another agent."
        )
    return {name: _default(name, getattr(agent, name), kinds[name]) for name in names}


def _default(name: str, value: Any, kind: Any) -> Interval | Values:
    """What is searched of an option that is only named: by its name, or by its type."""
    kind, ranges, _ = split_type(kind)
    if name in CHOICES and kind in (int, float):
        allowed = {x for x in CHOICES[name] if all(x in range_ for range_ in ranges)}
        return Values(tuple(sorted(allowed | {value}, key=_order)))
    if name in FACTORS and isinstance(value, int | float) and value > 0:
        bounds = [_clip(x, kind, ranges) for x in (value / FACTORS[name], value * FACTORS[name])]
        if name in SIZES:
            return Values(tuple(dict.fromkeys([bounds[0], value, bounds[1]])))
        return Interval(bounds[0], bounds[1], log=True)
    if kind is bool:
        return Values((False, True))
    if get_origin(kind) is Literal:
        return Values(tuple(sorted(get_args(kind), key=_order)))
    if kind is float and ranges and math.isfinite(ranges[0].high):
        return Interval(float(ranges[0].low), float(ranges[0].high))
    raise EngramError(
        f"{name} has no range of its own: give it one, such as {name}=LOW..HIGH, or values, such "
        f"as {name}={_spell(value)},..."
    )


def _read(name: str, text: str, kind: Any) -> Interval | Values:
    """The range LOW..HIGH or LOW..HIGH:log, or the values A,B,..., each checked."""
    low, dots, rest = text.partition("..")
    if not dots:
        values = {_read_value(name, x, kind) for x in text.split(",")}
        return Values(tuple(sorted(values, key=_order)))
    if split_type(kind)[0] not in (int, float):
        raise EngramError(f"{name} is no number, so it has no range: list values, as {name}=A,B.")
    high, colon, scale = rest.partition(":")
    if colon and scale != "log":
        raise EngramError(f"{name}={text} ends in {scale!r}: write :log, or leave it out.")
    interval = Interval(_read_value(name, low, kind), _read_value(name, high, kind), bool(colon))
    if None in (interval.low, interval.high) or interval.low >= interval.high:
        raise EngramError(f"{name}={text} is no range: write a smaller number before the dots.")
    if interval.log and interval.low <= 0:
        raise EngramError(f"{name}={text} has no logarithm: begin above 0, or leave :log out.")
    return interval


def _read_value(name: str, text: str, kind: Any) -> Any:
    value = convert(text, kind)
    check(f"{name} of the space", value, kind)
    return value


def _clip(x: float, kind: type, ranges: Sequence[Range]) -> float:
    """The nearest number that the option may have, with three digits."""
    x = float(f"{x:.3g}")
    for allowed in ranges:
        x = min(max(x, allowed.low), allowed.high)
    return float(x) if kind is float else max(1, int(x))


def _order(value: Any) -> tuple[bool, float, str]:
    """Sorts numbers, then words and None, whatever order they were given in."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0, str(value)


def _spell(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
