"""The room in JAX: MiniWorld's PickupObjects as pure functions.

The rules are read off MiniWorld 2.1.0. All objects and the agent are circles on the floor. A step
that would make the agent touch a wall or an object is not taken.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from engram.envs.pickup import config as constants
from engram.envs.pickup.config import PickupConfig
from engram.envs.pickup.ray_caster import render
from engram.envs.pickup.shapes import Objects, directions
from engram.types import EnvStep


class PickupState(NamedTuple):
    """State of one room."""

    position: Float[Array, "2"]
    """of the agent, x and z"""
    heading: Float[Array, ""]
    """of the agent, counterclockwise as seen from above; 0 looks along x"""
    kind: Int[Array, "K"]
    color: Int[Array, "K"]
    places: Float[Array, "K 2"]
    """of the objects, x and z"""
    directions: Float[Array, "K"]
    present: Bool[Array, "K"]
    """whether an object lies in the room"""
    in_hand: Bool[Array, "K"]
    """whether the agent picked it up in the last step; it is seen once more"""
    episode_step: Int[Array, ""]


@dataclass(frozen=True)
class JaxPickup:
    """Pick up all objects in a room, as seen by the agent; as MiniWorld-PickupObjects-v0."""

    config: PickupConfig

    def reset(self, params: tuple[()], key: Key[Array, ""]) -> tuple[PickupState, Array]:
        size, count = self.config.size, self.config.num_objs
        kind_key, color_key, place_key, direction_key = jax.random.split(key, 4)
        kind = jax.random.randint(kind_key, (count,), 0, len(constants.RADII))
        radii = jnp.append(jnp.asarray(constants.RADII)[kind], constants.AGENT_RADIUS)
        tries = (self.config.num_tries, 2)
        places = jnp.zeros((0, 2))
        # The agent is the last that is placed.
        for i in range(count + 1):
            uniforms = jax.random.uniform(jax.random.fold_in(place_key, i), tries)
            candidates = radii[i] + uniforms * (size - 2 * radii[i])
            distance = jnp.linalg.norm(candidates[:, None] - places[None], axis=-1)
            is_free = jnp.all(distance >= (radii[:i] + radii[i])[None], axis=-1)
            places = jnp.concatenate([places, candidates[jnp.argmax(is_free)][None]])
        angles = jax.random.uniform(direction_key, (count + 1,), minval=-math.pi, maxval=math.pi)
        state = PickupState(
            position=places[-1],
            heading=angles[-1],
            kind=kind,
            color=jax.random.randint(color_key, (count,), 0, len(constants.COLORS)),
            places=places[:-1],
            directions=angles[:-1],
            present=jnp.ones(count, bool),
            in_hand=jnp.zeros(count, bool),
            episode_step=jnp.zeros((), jnp.int32),
        )
        return state, jnp.zeros(0, jnp.uint8)

    def step(
        self,
        params: tuple[()],
        state: PickupState,
        action: Int[Array, ""],
        key: Key[Array, ""] | None = None,
    ) -> tuple[PickupState, EnvStep]:
        turn = _direction(action, constants.TURN_LEFT, constants.TURN_RIGHT)
        heading = state.heading + turn * (2 * math.pi / constants.TURNS_PER_CIRCLE)
        forward = directions(state.heading)[0]
        walk = _direction(action, constants.FORWARD, constants.BACK)
        target = state.position + walk * constants.FORWARD_STEP * forward
        touches_wall, touched = self._touched(state, target, constants.AGENT_RADIUS)
        is_free = ~touches_wall & ~jnp.any(touched)
        position = jnp.where(is_free, target, state.position)

        hand = state.position + constants.PICKUP_DISTANCE * forward
        touches_wall, touched = self._touched(state, hand, constants.PICKUP_RADIUS)
        is_first = touched & (jnp.cumsum(touched) == 1)
        in_hand = is_first & ~touches_wall & (action == constants.PICKUP)
        present = state.present & ~in_hand
        reward = jnp.any(in_hand).astype(jnp.float32)
        episode_step = state.episode_step + 1
        state = state._replace(
            position=position,
            heading=heading,
            present=present,
            in_hand=in_hand,
            episode_step=episode_step,
        )
        truncated = episode_step >= constants.MAX_EPISODE_STEPS
        no_frame = jnp.zeros(0, jnp.uint8)
        return state, EnvStep(no_frame, reward, reward, ~jnp.any(present), truncated)

    def draw(
        self,
        params: tuple[()],
        state: PickupState,
        shape: tuple[int, int] = constants.FRAME_SHAPE[:2],
    ) -> UInt8[Array, "H W 3"]:
        """What the agent sees; an object that it has just picked up is before it."""
        return render(state.position, state.heading, seen(state), self.config.size, shape)

    def _touched(
        self, state: PickupState, place: Float[Array, "2"], radius: float
    ) -> tuple[Bool[Array, ""], Bool[Array, "K"]]:
        """Whether a circle touches the walls, and which objects."""
        touches_wall = jnp.any((place < radius) | (place > self.config.size - radius))
        distance = jnp.linalg.norm(state.places - place[None], axis=-1)
        radii = jnp.asarray(constants.RADII)[state.kind]
        return touches_wall, state.present & (distance < radius + radii)


def _direction(action: Int[Array, ""], positive: int, negative: int) -> Float[Array, ""]:
    """1 or -1 for two opposite actions, else 0."""
    return jnp.float32(action == positive) - jnp.float32(action == negative)


def seen(state: PickupState) -> Objects:
    """What is in the room, and where, as the agent sees it."""
    radii, heights = (jnp.asarray(x)[state.kind] for x in (constants.RADII, constants.HEIGHTS))
    reach = constants.CARRY_FACTOR * (constants.CARRY_DISTANCE + radii)
    carried = state.position + reach[:, None] * directions(state.heading)[0]
    lift = jnp.maximum(constants.EYE_HEIGHT - heights - constants.CARRY_CLEARANCE, 0)
    return Objects(
        kind=state.kind,
        color=state.color,
        position=jnp.where(state.in_hand[:, None], carried, state.places),
        height=jnp.where(state.in_hand, lift, 0.0),
        direction=jnp.where(state.in_hand, state.heading, state.directions),
        visible=state.present | state.in_hand,
    )
