"""Options of agents: ranges that are part of the type, so that a wrong value is named before anything runs."""

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from engram.errors import EngramError, nearest_names


@dataclass(frozen=True)
class Range:
    """The values that an option may take."""

    low: float
    high: float = math.inf
    above: bool = False
    """whether `low` itself is excluded"""

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high and not math.isinf(value)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"between {self.low:g} and {self.high:g}"
        return f"{'greater than' if self.above else 'at least'} {self.low:g}"


Count = Annotated[int, Range(1)]
Probability = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0.001, 0.999)]
"""a probability that is neither 0 nor 1"""
Positive = Annotated[float, Range(0, above=True)]


def check(name: str, value: Any, kind: Any) -> None:
    """Raises one sentence if `value` is not of `kind` (a type, a Literal, a union with None, or one of the ranges above)."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise EngramError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}.")
        return
    kind, *ranges = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and not isinstance(value, bool):
        raise EngramError(f"{name} must be True or False, not {value!r}.")
    if kind is int and not (is_number and isinstance(value, int)):
        raise EngramError(f"{name} must be a whole number, not {value!r}.")
    if kind is float and not is_number:
        raise EngramError(f"{name} must be a number, not {value!r}.")
    for allowed in ranges:
        if value not in allowed:
            wanted = "a finite number" if value in (math.inf, -math.inf) else allowed
            raise EngramError(f"{name} must be {wanted}, but is {value:g}.")


def check_all(options: Any) -> None:
    """Checks every field of a dataclass of options."""
    kinds = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        check(field.name, getattr(options, field.name), kinds[field.name])


def replace(options: Any, **changes: Any) -> Any:
    """The options with some of them changed; an unknown name is an EngramError."""
    known = [field.name for field in dataclasses.fields(options)]
    for name in changes:
        if name not in known:
            raise EngramError(f"{type(options).__name__} has no option {name!r}.{nearest_names(name, known)}")
    return dataclasses.replace(options, **changes)


def meanings(kind: type) -> dict[str, str]:
    """What each option means: the string under its field, here or in a class this one derives from."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, below in pairwise(body.body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(kind)}
