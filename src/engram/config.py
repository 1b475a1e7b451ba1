"""Options of agents: the type of each has its range, so a wrong value is named at once."""

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from engram.errors import EngramError, nearest_names


@dataclass(frozen=True)
class Range:
    """The values that an option may take."""

    low: float
    high: float = math.inf
    excludes_low: bool = False

    def __contains__(self, value: Any) -> bool:
        is_above = self.low < value if self.excludes_low else self.low <= value
        return is_above and value <= self.high and not math.isinf(value)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"between {self.low:g} and {self.high:g}"
        return f"{'greater than' if self.excludes_low else 'at least'} {self.low:g}"


Count = Annotated[int, Range(1)]
WholeNumber = Annotated[int, Range(0)]
Probability = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, excludes_low=True)]
Seconds = Annotated[float, Range(0)]


def check(name: str, value: Any, kind: Any) -> None:
    """Raise one sentence if `value` is not of `kind`: a type, a Literal, one of these or None, or
    one of the ranges above."""
    kind, ranges, is_optional = split_type(kind)
    if value is None and is_optional:
        return
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise EngramError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}.")
        return
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if kind is bool and not isinstance(value, bool):
        raise EngramError(f"{name} must be True or False, not {value!r}.")
    if kind is int and not (is_number and isinstance(value, Integral)):
        raise EngramError(f"{name} must be a whole number, not {value!r}.")
    if kind is float and not is_number:
        raise EngramError(f"{name} must be a number, not {value!r}.")
    for allowed in ranges:
        if value not in allowed:
            wanted = "a finite number" if value in (math.inf, -math.inf) else allowed
            raise EngramError(f"{name} must be {wanted}, but is {value:g}.")


def check_all(options: Any) -> None:
    """Check every field of a dataclass of options; NumPy's numbers become Python's."""
    kinds = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        check(field.name, value, kinds[field.name])
        if isinstance(value, Real) and not isinstance(value, int | float):
            python_value = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(options, field.name, python_value)


def convert(text: str, kind: Any) -> Any:
    """The value of `kind` that `text` spells, or `text` itself if it spells none.

    A whole number may be spelled 100000, 100_000 or 1e5.
    """
    kind, _, is_optional = split_type(kind)
    if is_optional and text == "None":
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    readers: dict[Any, tuple[Callable[[str], float], ...]] = {
        int: (int, read_whole),
        float: (float,),
    }
    for read in readers.get(kind, ()):
        with suppress(ValueError, OverflowError):
            return read(text)
    return text


def read_whole(text: str) -> int:
    """A whole number that is spelled as a float, such as 1e5."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)


def split_type(kind: Any) -> tuple[Any, list[Range], bool]:
    """A type without its ranges and None, the ranges, and whether None is allowed."""
    is_optional = False
    if get_origin(kind) in (Union, types.UnionType):
        is_optional = type(None) in get_args(kind)
        kind = next(part for part in get_args(kind) if part is not type(None))
    ranges = []
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        ranges = [note for note in notes if isinstance(note, Range)]
    return kind, ranges, is_optional


def replace(options: Any, **changes: Any) -> Any:
    """The options with some of them changed; an unknown name is an EngramError."""
    known = [field.name for field in dataclasses.fields(options)]
    for name in changes:
        if name not in known:
            kind = type(options).__name__
            raise EngramError(f"{kind} has no option {name!r}.{nearest_names(name, known)}")
    return dataclasses.replace(options, **changes)


def field_docs(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, in it or in a class that it derives from."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for line, below in pairwise(definition.body):
            match line, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[name] = " ".join(text.split())
    return {field.name: docs.get(field.name, "") for field in dataclasses.fields(kind)}
