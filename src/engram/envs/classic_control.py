"""Gymnasium's Cart Pole and Mountain Car in JAX, with the noise of the paper's Figure 4."""

from dataclasses import dataclass
from math import pi, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import erfinv
from jaxtyping import Array, Bool, Float, Int, Key

from engram.types import EnvStep


class Noise(NamedTuple):
    """Strength of each noise; numbers, so that runs with different noise share one program."""

    gaussian: float | Float[Array, ""] = 0.0
    """standard deviation of the Gaussian noise added to rewards"""
    bernoulli: float | Float[Array, ""] = 0.0
    """probability that a reward changes its sign"""
    transition: float | Float[Array, ""] = 0.0
    """probability that the agent receives its last observation again"""


NO_NOISE = Noise()


class State(NamedTuple):
    """State of one environment."""

    physics: Float[Array, "D"]
    """true state of the system"""
    observation: Float[Array, "D"]
    """last observation that the agent received"""
    episode_step: Int[Array, ""]


@dataclass(frozen=True)
class CartPole:
    """Keep a pole upright on a cart by pushing left or right (CartPole-v1, Euler integration)."""

    max_episode_steps: int = 200

    def reset(self, params: Noise, key: Key[Array, ""]) -> tuple[State, Float[Array, "4"]]:
        return _start_episode(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def step(
        self, params: Noise, state: State, action: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[State, EnvStep]:
        gravity, pole_mass, total_mass, half_length, dt = 9.8, 0.1, 1.1, 0.5, 0.02
        x, x_dot, theta, theta_dot = state.physics
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        push = (force + pole_mass * half_length * theta_dot**2 * sin) / total_mass
        inertia = half_length * (4 / 3 - pole_mass * cos**2 / total_mass)
        theta_acc = (gravity * sin - cos * push) / inertia
        x_acc = push - pole_mass * half_length * theta_acc * cos / total_mass
        x, theta = x + dt * x_dot, theta + dt * theta_dot
        physics = jnp.stack([x, x_dot + dt * x_acc, theta, theta_dot + dt * theta_acc])
        terminated = (jnp.abs(x) > 2.4) | (jnp.abs(theta) > 12 * 2 * pi / 360)
        return _add_noise(params, state, physics, 1.0, terminated, self.max_episode_steps, key)


@dataclass(frozen=True)
class MountainCar:
    """Swing a weak car up a hill by pushing left, not at all, or right (MountainCar-v0)."""

    max_episode_steps: int = 200

    def reset(self, params: Noise, key: Key[Array, ""]) -> tuple[State, Float[Array, "2"]]:
        position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
        return _start_episode(jnp.stack([position, jnp.float32(0)]))

    def step(
        self, params: Noise, state: State, action: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[State, EnvStep]:
        position, velocity = state.physics
        push = jnp.asarray(action, jnp.float32) - 1
        velocity = velocity + push * 0.001 - jnp.cos(3 * position) * 0.0025
        velocity = jnp.clip(velocity, -0.07, 0.07)
        position = jnp.clip(position + velocity, -1.2, 0.6)
        hits_left_wall = (position <= -1.2) & (velocity < 0)
        velocity = jnp.where(hits_left_wall, 0.0, velocity)
        physics = jnp.stack([position, velocity])
        terminated = (position >= 0.5) & (velocity >= 0)
        return _add_noise(params, state, physics, -1.0, terminated, self.max_episode_steps, key)


def _start_episode(physics: Float[Array, "D"]) -> tuple[State, Float[Array, "D"]]:
    return State(physics, physics, jnp.int32(0)), physics


def _add_noise(
    params: Noise,
    state: State,
    physics: Float[Array, "D"],
    reward: float,
    terminated: Bool[Array, ""],
    max_episode_steps: int,
    key: Key[Array, ""],
) -> tuple[State, EnvStep]:
    """The next state and the result of a step, with noise on reward and observation."""
    # One draw for all three, since splitting the key costs as much again. The numbers lie in
    # (-1, 1), open below as `erfinv` needs; one is below 2p - 1 with probability p.
    lowest = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    gaussian, flip, repeat = jax.random.uniform(key, (3,), minval=lowest, maxval=1.0)
    noisy_reward = jnp.where(flip < 2 * params.bernoulli - 1, -reward, reward)
    noisy_reward = noisy_reward + params.gaussian * sqrt(2) * erfinv(gaussian)
    is_repeated = repeat < 2 * params.transition - 1
    observation = jnp.where(is_repeated, state.observation, physics)
    episode_step = state.episode_step + 1
    # As in Gymnasium's TimeLimit, the last step may be terminated and truncated at once.
    truncated = episode_step >= max_episode_steps
    return (
        State(physics, observation, episode_step),
        EnvStep(observation, noisy_reward, jnp.float32(reward), terminated, truncated),
    )
