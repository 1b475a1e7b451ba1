"""Observation and action spaces as agents see them: one array per observation, actions from 0.

Nested and discrete observations are flattened to a vector, as `gymnasium.spaces.flatten` does. The
wrapper of an environment in training and `Policy.act` share one function for it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from engram.encoders import is_image
from engram.errors import EngramError
from engram.types import ObsLeaf, Spec

Path = tuple[str | int, ...]
AnyWrapper = TypeVar("AnyWrapper", bound=gym.Wrapper)
REMEDY = "give the observation that reset() or step() returns"


class ObservationError(EngramError):
    """An observation that its environment's observation space does not contain."""


def wrap_spaces(env: gym.Env) -> gym.Env:
    """Flattens observations and numbers actions from 0 where the spaces of `env` need it."""
    space = getattr(env, "observation_space", None)
    if space is not None and not isinstance(space, spaces.Box) and flatten_error(space) is None:
        env = FlattenObservation(env)
    actions = getattr(env, "action_space", None)
    if isinstance(actions, spaces.Discrete) and actions.start != 0:
        env = OffsetAction(env)
    if isinstance(actions, CombinedSpace) and num_combinations(actions) <= MAX_COMBINATIONS:
        env = CombineActions(env)
    return env


class FlattenObservation(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """Flattens observations with the function that `Policy.act` uses.

    Only with this wrapper does a policy take nested observations: if an environment's author has
    flattened them with Gymnasium's wrapper of this name, the policy takes flat ones as well.
    """

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.obs_leaves = obs_leaves(env.observation_space)
        self.observation_space = spaces.flatten_space(env.observation_space)

    def observation(self, observation: Any) -> np.ndarray:
        flat = flatten_observation(self.obs_leaves, observation)
        return flat.astype(self.observation_space.dtype, copy=False)


class OffsetAction(gym.ActionWrapper, gym.utils.RecordConstructorArgs):
    """Numbers the actions of `Discrete(n, start)` from 0."""

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        actions = env.action_space
        assert isinstance(actions, spaces.Discrete)
        self.action_offset = int(actions.start)
        self.action_space = spaces.Discrete(actions.n)

    def action(self, action: Any) -> Any:
        return action + self.action_offset


class CombineActions(gym.ActionWrapper, gym.utils.RecordConstructorArgs):
    """Numbers the combinations of a `MultiDiscrete` or `MultiBinary` action space from 0."""

    def __init__(self, env: gym.Env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        actions = env.action_space
        assert isinstance(actions, CombinedSpace)
        self.action_nvec, self.action_start = combined_choices(actions)
        self.action_space = spaces.Discrete(num_combinations(actions))
        self.action_shape: tuple[int, ...] = actions.shape
        self._dtype = actions.dtype

    def action(self, action: Any) -> np.ndarray:
        choices = split_action(self.action_nvec, self.action_start, action)
        return choices.reshape(self.action_shape).astype(self._dtype)


CombinedSpace = spaces.MultiDiscrete | spaces.MultiBinary
MAX_COMBINATIONS = 4_096
"""actions at most that combinations are numbered as"""


def combined_choices(space: CombinedSpace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of choices whose combinations are actions, and their smallest numbers."""
    if isinstance(space, spaces.MultiBinary):
        count = math.prod(space.shape)
        return (2,) * count, (0,) * count
    start = np.broadcast_to(space.start, space.nvec.shape)
    return tuple(map(int, space.nvec.ravel())), tuple(map(int, start.ravel()))


def num_combinations(space: CombinedSpace) -> int:
    return math.prod(combined_choices(space)[0])


def split_action(nvec: Sequence[int], start: Sequence[int], action: int | np.ndarray) -> np.ndarray:
    """The choices of a numbered combination, along a last axis; the last one varies fastest."""
    return np.stack(np.unravel_index(action, nvec), axis=-1) + np.array(start)


class SelectObservation(gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """Keeps some parts of a dictionary; a single one becomes the observation itself."""

    def __init__(self, env: gym.Env, names: Sequence[str]):
        gym.utils.RecordConstructorArgs.__init__(self, names=names)
        gym.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not isinstance(space, spaces.Dict):
            raise EngramError(
                f"Parts to observe are those of a dictionary, but observations are "
                f"{type(space).__name__}: leave observe out."
            )
        if unknown := [name for name in names if name not in space.spaces]:
            raise EngramError(
                f"Observations have no part {unknown[0]!r}: choose of {', '.join(space.spaces)}."
            )
        self.obs_path = (names[0],) if len(names) == 1 else ()
        kept = {name: space[name] for name in names}
        self.observation_space = space[names[0]] if self.obs_path else spaces.Dict(kept)

    def observation(self, observation: Any) -> Any:
        if self.obs_path:
            return select_part(self.obs_path, observation)
        return {name: observation[name] for name in self.observation_space.spaces}  # pyright: ignore


def select_part(path: tuple[str, ...], observation: Any) -> Any:
    """The part of an observation that is observed; what is no dictionary is that part already."""
    return _get_leaf(observation, path) if isinstance(observation, Mapping) else observation


def find_wrapper(env: gym.Env, kind: type[AnyWrapper]) -> AnyWrapper | None:
    """The outermost wrapper of a class around `env`, if there is one."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, kind):
            return env
        env = env.env
    return None


def flatten_error(space: spaces.Space) -> str | None:
    """Why observations of a space cannot be flattened to a vector of numbers, if they cannot."""
    for path, leaf in _iter_leaves(space):
        if error := _leaf_error(leaf):
            place = f" at {_index(path)}" if path else ""
            return f"its observation_space is a {type(space).__name__} that contains{place} {error}"
    return None


def obs_leaves(space: spaces.Space) -> tuple[ObsLeaf, ...]:
    """The leaves of a space that can be flattened, in the order of `gymnasium.spaces.flatten`."""
    return tuple(_obs_leaf(path, leaf) for path, leaf in _iter_leaves(space))


def flatten_observation(leaves: Sequence[ObsLeaf], observation: Any) -> np.ndarray:
    """An observation as a vector, or a batch from a vector environment as one vector per row.

    Without leaves, the observation is an array already and keeps its shape.
    """
    if not leaves:
        return _as_array(observation)
    parts = [_flatten_leaf(leaf, observation) for leaf in leaves]
    if len({part.shape[:-1] for part in parts}) > 1:
        raise ObservationError("All parts of an observation must have the same batch size.")
    return np.concatenate(parts, axis=-1)


def _iter_leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Paths and spaces of the leaves; an empty Dict or Tuple is a leaf, which is an error."""
    match space:
        case spaces.Dict() if space.spaces and all(isinstance(k, str | int) for k in space.spaces):
            children = space.spaces.items()
        case spaces.Tuple() if space.spaces:
            children = enumerate(space.spaces)
        case _:
            yield path, space
            return
    for key, child in children:
        yield from _iter_leaves(child, (*path, key))


def _leaf_error(space: spaces.Space) -> str | None:
    kind = f"a {type(space).__name__}"
    match space:
        case spaces.Box() if space.dtype == np.uint8 and is_image(Spec(space.shape, 1, "uint8")):
            return (
                "an image, which cannot be flattened: choose one part with observe "
                "(--observe NAME), or leave the image out with "
                "gymnasium.wrappers.TransformObservation"
            )
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return None
        case spaces.Dict() | spaces.Tuple():
            return f"{kind} that is empty or has keys other than str and int: change it"
        case _:
            return (
                f"{kind}, which is no array of numbers: choose other parts with observe "
                "(--observe NAME), or encode it with gymnasium.wrappers.TransformObservation"
            )


def _obs_leaf(path: Path, space: spaces.Space) -> ObsLeaf:
    match space:
        case spaces.Discrete(n=n, start=start):
            return ObsLeaf(path, (), (int(n),), (int(start),))
        case spaces.MultiDiscrete(nvec=nvec, start=start):
            starts = tuple(map(int, np.ravel(start)))
            return ObsLeaf(path, space.shape, tuple(map(int, nvec.ravel())), starts)
        case _:
            assert space.shape is not None
            return ObsLeaf(path, space.shape)


def _flatten_leaf(leaf: ObsLeaf, observation: Any) -> np.ndarray:
    """The numbers of one leaf along the last axis, after the batch axis if there is one."""
    array = _as_array(_get_leaf(observation, leaf.path), leaf.path)
    batch_shape = array.shape[: array.ndim - len(leaf.shape)]
    if (*batch_shape, *leaf.shape) != array.shape:
        raise shape_error(leaf.shape, array.shape, leaf.path)
    flat = array.reshape(*batch_shape, math.prod(leaf.shape))
    return _one_hot(leaf, flat) if leaf.nvec else flat


def shape_error(
    shape: tuple[int, ...], actual: tuple[int, ...], path: Path = ()
) -> ObservationError:
    """The error for an observation, or its leaf at `path`, that has another shape."""
    batch = str(("n", *shape)).replace("'", "")
    return _error(path, f"must have shape {shape}, or {batch} for a batch, not {actual}")


def _get_leaf(observation: Any, path: Path) -> Any:
    """Follows a path; a list is never followed, since it may be meant as a batch."""
    key: Any
    for key in path:
        is_item = isinstance(observation, tuple) and key in range(len(observation))
        is_entry = isinstance(observation, Mapping) and key in observation
        if not is_item and not is_entry:
            raise _error(path, f"is missing: {REMEDY}, of an environment or a vector environment")
        observation = observation[key]
    return observation


def _as_array(observation: Any, path: Path = ()) -> np.ndarray:
    with suppress(ValueError):  # raised for ragged lists
        array = np.asarray(observation)
        if array.dtype.kind in "biuf":
            return array
    raise _error(path, f"must consist of numbers: {REMEDY}")


def _one_hot(leaf: ObsLeaf, values: np.ndarray) -> np.ndarray:
    """Values of discrete variables along the last axis, one-hot and concatenated."""
    start, nvec, offsets = _one_hot_layout(leaf)
    is_integer = values.dtype.kind in "biu"
    index = values.astype(int) - start if is_integer else np.array(-1)
    if ((index < 0) | (index >= nvec)).any():
        ranges = [f"{a} to {a + n - 1}" for a, n in zip(leaf.start, leaf.nvec, strict=True)]
        given = " ".join(str(values).split())
        raise _error(
            leaf.path, f"must consist of whole numbers from {' and '.join(ranges)}, not {given}"
        )
    # The smallest dtype, so that the concatenation with other leaves has their dtype.
    flat = np.zeros((values.size // len(nvec), nvec.sum()), np.int8)
    flat[np.arange(len(flat))[:, None], (index + offsets).reshape(-1, len(nvec))] = 1
    return flat.reshape(*values.shape[:-1], flat.shape[1])


@cache
def _one_hot_layout(leaf: ObsLeaf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smallest values, numbers of values, and where each variable's one-hot code begins."""
    return np.array(leaf.start), np.array(leaf.nvec), np.cumsum([0, *leaf.nvec[:-1]])


def _error(path: Path, cause: str) -> ObservationError:
    return ObservationError(f"An observation{_index(path)} {cause}.")


def _index(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)
