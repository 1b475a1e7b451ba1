"""The maze in JAX: a compiled program steps many."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt8

from engram.envs.maze import config as constants
from engram.envs.maze.config import MazeConfig
from engram.envs.maze.image_features import maze_features
from engram.envs.maze.layout import MOVES, OPPOSITE
from engram.types import EnvStep


class MazeParams(NamedTuple):
    """Numbers that may differ between runs of one program."""

    dropout_rate: float | Float[Array, ""] = 0.0


class MazeState(NamedTuple):
    """State of one maze."""

    layout: Bool[Array, "n n 4"] | None
    """of this episode's maze; None if all episodes have the same"""
    position: Int[Array, "2"]
    trap: Int[Array, "2"] | None
    episode_step: Int[Array, ""]


@dataclass(frozen=True)
class JaxMaze:
    """Find the way from one corner of a maze to the other; as `engram/Maze-v0`."""

    config: MazeConfig
    """without its dropout rate, which is one of the parameters"""

    def reset(self, params: MazeParams, key: Key[Array, ""]) -> tuple[MazeState, Array]:
        layout_key, trap_key, noise_key = jax.random.split(key, 3)
        size = self.config.size
        state = MazeState(
            layout=self._draw_layout(layout_key) if self.config.is_dynamic else None,
            position=jnp.zeros(2, jnp.int32),
            trap=draw_trap(trap_key, size) if self.config.trap else None,
            episode_step=jnp.zeros((), jnp.int32),
        )
        return state, self._observe(params, state, noise_key)

    def step(
        self, params: MazeParams, state: MazeState, action: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[MazeState, EnvStep]:
        config = self.config
        x, y = state.position
        is_open = self._layout_of(state)[x, y, action]
        position = jnp.where(is_open, state.position + jnp.asarray(MOVES)[action], state.position)
        is_goal = jnp.all(position == config.size - 1)
        reward = jnp.where(is_goal, constants.GOAL_REWARD, jnp.float32(config.step_reward))
        if state.trap is not None:
            is_trap = jnp.all(position == state.trap)
            reward = jnp.where(is_trap, constants.TRAP_REWARD, reward)
        reward = jnp.where(is_open, reward, constants.WALL_REWARD)
        episode_step = state.episode_step + 1
        state = state._replace(position=position, episode_step=episode_step)
        observation = self._observe(params, state, key)
        truncated = episode_step >= constants.MAX_EPISODE_STEPS
        return state, EnvStep(observation, reward, reward, is_goal & is_open, truncated)

    def _observe(self, params: MazeParams, state: MazeState, key: Key[Array, ""]) -> Array:
        if self.config.observation == "image":
            return self._image(state)
        parts = [state.position.astype(jnp.float32)]
        if state.trap is not None:
            parts.append(state.trap.astype(jnp.float32))
        if self.config.observation == "features":
            x, y = state.position
            features = jnp.asarray(self._features)[x, y]
            keep = 1 - params.dropout_rate
            mask = jax.random.uniform(key, features.shape) < keep
            parts.append(jnp.where(mask, features / keep, 0.0))
        return jnp.concatenate(parts)

    def _layout_of(self, state: MazeState) -> Bool[Array, "n n 4"]:
        return jnp.asarray(self.config.layout) if state.layout is None else state.layout

    def _draw_layout(self, key: Key[Array, ""]) -> Bool[Array, "n n 4"]:
        search_key, loops_key = jax.random.split(key)
        size = self.config.size
        uniforms = jax.random.uniform(search_key, (2 * size**2, 4))
        loops = jax.random.uniform(loops_key, (size, size, 4))
        return random_layout(uniforms, loops, self.config.loop_rate)

    def _image(self, state: MazeState) -> UInt8[Array, "P P 3"]:
        layout, size = self._layout_of(state), self.config.size
        blocks = jnp.full((2 * size + 1, 2 * size + 1), constants.WALL)
        blocks = blocks.at[1::2, 1::2].set(constants.FREE)
        is_open = jnp.array([constants.WALL, constants.FREE])
        blocks = blocks.at[1::2, 2:-1:2].set(is_open[layout[:, :-1, 1].astype(jnp.int32)])
        blocks = blocks.at[2:-1:2, 1::2].set(is_open[layout[:-1, :, 2].astype(jnp.int32)])
        blocks = blocks.at[-2, -2].set(constants.GOAL)
        if state.trap is not None:
            blocks = blocks.at[tuple(2 * state.trap + 1)].set(constants.TRAP)
        blocks = blocks.at[tuple(2 * state.position + 1)].set(constants.AGENT)
        pixels = self.config.pixel_blocks
        return jnp.asarray(constants.PALETTE)[blocks[pixels[None, :], pixels[:, None]]]

    @cached_property
    def _features(self) -> Float[np.ndarray, "n n F"]:
        return maze_features(self.config)


def draw_trap(key: Key[Array, ""], size: int) -> Int[Array, "2"]:
    """A random cell that is neither start nor goal."""
    cell = jax.random.randint(key, (), 1, size**2 - 1)
    return jnp.stack([cell // size, cell % size])


def random_layout(
    uniforms: Float[Array, "2*n*n 4"], loops: Float[Array, "n n 4"], loop_rate: float
) -> Bool[Array, "n n 4"]:
    """As `layout.random_layout`, number for number."""
    size = loops.shape[0]
    cells = jnp.arange(size**2)
    x, y = jnp.stack([cells // size, cells % size])[:, :, None] + jnp.asarray(MOVES).T[:, None]
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    neighbours = jnp.where(inside, x * size + y, 0)

    def visit(i, search):
        layout, visited, stack, depth = search
        cell = stack[depth]
        is_new = inside[cell] & ~visited[neighbours[cell]]
        direction = jnp.argmax(jnp.where(is_new, uniforms[i], -1.0))
        moves = jnp.any(is_new)
        target = neighbours[cell, direction]
        layout = layout.at[cell, direction].max(moves)
        layout = layout.at[target, jnp.asarray(OPPOSITE)[direction]].max(moves)
        visited = visited.at[target].max(moves)
        depth = jnp.where(moves, depth + 1, jnp.maximum(depth - 1, 0))
        stack = stack.at[depth].set(jnp.where(moves, target, stack[depth]))
        return layout, visited, stack, depth

    layout = jnp.zeros((size**2, 4), bool)
    visited = jnp.zeros(size**2, bool).at[0].set(True)
    stack = jnp.zeros(size**2, jnp.int32)
    search = (layout, visited, stack, jnp.int32(0))
    layout = lax.fori_loop(0, 2 * size**2, visit, search)[0].reshape(size, size, 4)
    if not loop_rate:
        return layout
    opened = loops < loop_rate
    south, east = opened[:, :-1, 1], opened[:-1, :, 2]
    layout = layout.at[:, :-1, 1].max(south).at[:, 1:, 0].max(south)
    return layout.at[:-1, :, 2].max(east).at[1:, :, 3].max(east)
