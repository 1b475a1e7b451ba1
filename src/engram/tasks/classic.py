"""Cart Pole and Mountain Car in JAX, step for step those of Gymnasium, with the noise of the paper's Figure 4 inside."""

from dataclasses import dataclass
from math import pi, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import erfinv
from jaxtyping import Array, Bool, Float, Int, Key

from engram.types import Outcome


class Noise(NamedTuple):
    """How a run is disturbed; numbers and not code, so that runs with different noise share one program."""

    gaussian: float | Float[Array, ""] = 0.0
    """standard deviation of what is added to the reward"""
    bernoulli: float | Float[Array, ""] = 0.0
    """probability that the reward changes its sign"""
    transition: float | Float[Array, ""] = 0.0
    """probability that the last observed observation is seen again"""


class State(NamedTuple):
    """Where one environment is, and what its agent believes."""

    physics: Float[Array, "D"]
    seen: Float[Array, "D"]
    """the last observation given to the agent"""
    t: Int[Array, ""]
    """steps of this episode"""


@dataclass(frozen=True)
class CartPole:
    """Keep a pole upright on a cart by pushing left or right (Gymnasium's CartPole-v1, Euler integration)."""

    limit: int = 200

    def reset(self, params: Noise, key: Key[Array, ""]) -> tuple[State, Float[Array, "4"]]:
        return _begin(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def step(self, params: Noise, state: State, action: Int[Array, ""], key: Key[Array, ""]) -> tuple[State, Outcome]:
        gravity, pole, total, length, tau = 9.8, 0.1, 1.1, 0.5, 0.02  # `length` is half of the pole's
        x, x_dot, theta, theta_dot = state.physics
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        push = (force + pole * length * theta_dot**2 * sin) / total
        theta_acc = (gravity * sin - cos * push) / (length * (4 / 3 - pole * cos**2 / total))
        x_acc = push - pole * length * theta_acc * cos / total
        x, theta = x + tau * x_dot, theta + tau * theta_dot
        physics = jnp.stack([x, x_dot + tau * x_acc, theta, theta_dot + tau * theta_acc])
        fallen = (jnp.abs(x) > 2.4) | (jnp.abs(theta) > 12 * 2 * pi / 360)
        return _answer(params, state, physics, 1.0, fallen, self.limit, key)


@dataclass(frozen=True)
class MountainCar:
    """Swing a weak car up a hill by pushing left, not at all, or right (Gymnasium's MountainCar-v0)."""

    limit: int = 200

    def reset(self, params: Noise, key: Key[Array, ""]) -> tuple[State, Float[Array, "2"]]:
        return _begin(jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.float32(0)]))

    def step(self, params: Noise, state: State, action: Int[Array, ""], key: Key[Array, ""]) -> tuple[State, Outcome]:
        position, velocity = state.physics
        push = jnp.asarray(action, jnp.float32) - 1
        velocity = jnp.clip(velocity + push * 0.001 - jnp.cos(3 * position) * 0.0025, -0.07, 0.07)
        position = jnp.clip(position + velocity, -1.2, 0.6)
        velocity = jnp.where((position <= -1.2) & (velocity < 0), 0.0, velocity)  # the wall on the left stops the car
        arrived = (position >= 0.5) & (velocity >= 0)
        return _answer(params, state, jnp.stack([position, velocity]), -1.0, arrived, self.limit, key)


def _begin(physics: Float[Array, "D"]) -> tuple[State, Float[Array, "D"]]:
    return State(physics, physics, jnp.int32(0)), physics


def _answer(
    params: Noise,
    state: State,
    physics: Float[Array, "D"],
    reward: float,
    terminated: Bool[Array, ""],
    limit: int,
    key: Key[Array, ""],
) -> tuple[State, Outcome]:
    """What the agent is told of a step, after the noise."""
    # One draw for all three: splitting the key would cost as much again. It lies in (-1, 1), open below as `erfinv` needs,
    # and a probability p is the part of it below 2p - 1.
    blur, flip, repeat = jax.random.uniform(key, (3,), minval=jnp.nextafter(jnp.float32(-1), jnp.float32(0)), maxval=1.0)
    noisy = jnp.where(flip < 2 * params.bernoulli - 1, -reward, reward) + params.gaussian * sqrt(2) * erfinv(blur)
    seen = jnp.where(repeat < 2 * params.transition - 1, state.seen, physics)
    t = state.t + 1
    # As Gymnasium's TimeLimit has it, an episode that ends at its last step is cut there too.
    return State(physics, seen, t), Outcome(seen, noisy, jnp.float32(reward), terminated, t >= limit)
