"""One environment in JAX, which begins its next episode in the step that ends one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped, UInt8

from engram.types import JaxEnv, JaxFrameEnv, Spec, TimeStep


class AutoresetStep(NamedTuple):
    """What a step returns beside the state."""

    timestep: TimeStep
    """without the axis E"""
    true_reward: Float[Array, ""]


class Autoreset:
    """An environment whose observations come with its steps."""

    def __init__(self, env: JaxEnv):
        self.env = env

    def reset(self, params: PyTree, key: Key[Array, ""]) -> tuple[PyTree, Float[Array, "..."]]:
        return self.env.reset(params, key)

    def step(
        self,
        params: PyTree,
        state: PyTree,
        action: Int[Array, ""],
        key: Key[Array, ""],
        reset_key: Key[Array, ""],
    ) -> tuple[PyTree, AutoresetStep]:
        """A step; if the episode ends, the state and observation are the next one's first."""
        state, result = self.env.step(params, state, action, key)
        done = result.terminated | result.truncated
        first_state, first_observation = self.env.reset(params, reset_key)
        timestep = TimeStep(
            observation=jnp.where(done, first_observation, result.observation),
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
            final_observation=result.observation,
        )
        state = _select(done, first_state, state)
        return state, AutoresetStep(timestep, result.true_reward)


class FrameState(NamedTuple):
    """An environment's state and its last frames, newest last; black before the first."""

    env: PyTree
    frames: UInt8[Array, "C *P"]


class FrameStackAutoreset:
    """An environment whose observations are its last frames; it draws one per step."""

    def __init__(self, env: JaxFrameEnv, frame_stack: int):
        self.env = env
        self.frame_stack = frame_stack

    def reset(self, params: PyTree, key: Key[Array, ""]) -> tuple[FrameState, Shaped[Array, "..."]]:
        state, _ = self.env.reset(params, key)
        frame = self.env.draw(params, state)
        frames = jnp.zeros((self.frame_stack, *frame.shape), frame.dtype).at[-1].set(frame)
        return FrameState(state, frames), frames

    def step(
        self,
        params: PyTree,
        state: FrameState,
        action: Int[Array, ""],
        key: Key[Array, ""],
        reset_key: Key[Array, ""],
    ) -> tuple[FrameState, AutoresetStep]:
        """A step; the frames of an episode that ends are followed by those of the next."""
        env_state, result = self.env.step(params, state.env, action, key)
        done = result.terminated | result.truncated
        env_state = _select(done, self.env.reset(params, reset_key)[0], env_state)
        frame = self.env.draw(params, env_state)
        earlier = jnp.where(done, 0, state.frames[1:])
        frames = jnp.concatenate([earlier, frame[None]])
        timestep = TimeStep(
            observation=frames,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
            final_observation=jnp.zeros(0, frames.dtype),
        )
        return FrameState(env_state, frames), AutoresetStep(timestep, result.true_reward)


def autoreset(env: JaxEnv, spec: Spec) -> Autoreset | FrameStackAutoreset:
    """The environment with observations as its spec has them."""
    if not spec.frame_stack:
        return Autoreset(env)
    assert isinstance(env, JaxFrameEnv)
    return FrameStackAutoreset(env, spec.frame_stack)


def _select(done: Bool[Array, ""], first: PyTree, state: PyTree) -> PyTree:
    return jax.tree.map(lambda new, old: jnp.where(done, new, old), first, state)
