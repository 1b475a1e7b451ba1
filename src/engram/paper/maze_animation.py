"""An animation of MBEC finding its way: `python -m engram.paper.maze_animation maze.gif`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from engram.agents import make
from engram.agents.mbec import MBEC, State, model_input
from engram.envs import get_task
from engram.envs.maze.jax_env import JaxMaze
from engram.envs.maze.render import draw_picture
from engram.episodic import control
from engram.networks import LSTMState
from engram.runners.jax_env import JaxRunner
from engram.types import Spec

TASK = "maze5"
STEPS = 8_000
SHOWN = ((0, 50), (1_200, 40), (2_500, 30), (6_000, 30))
"""the animation shows so many steps from the first episode on that starts after a step"""
SEED = 3
MILLISECONDS = 90
PIXELS, COLOURS = 300, 128


def cell_values(
    agent: MBEC, state: State, spec: Spec, size: int, step: int
) -> Float[np.ndarray, "n n"]:
    """The memory's value of each cell, by the last trajectory that led there; NaN if none did."""
    positions = np.asarray(state.replay.obs[:step, 0]).astype(int)
    values = np.full((size, size), np.nan)
    rows = {tuple(position): row for row, position in enumerate(positions)}
    if not rows:
        return values
    at = np.array(list(rows.values()))
    assert state.replay.tau is not None
    tau = LSTMState(*(x[at, 0] for x in state.replay.tau))
    inputs = model_input(state, state.replay.obs[at, 0])
    planned = control.plan(state.episodic, inputs, tau, spec.num_actions)
    near = control.lookup(state.episodic, agent, planned.tau.h.reshape(-1, agent.trajectory_dim))
    q = control.read(state.episodic, agent, near).reshape(len(at), -1)
    for cell, value in zip(rows, np.asarray(jnp.max(q, axis=-1)), strict=True):
        values[cell] = value
    return values


def pictures(
    shown: Sequence[tuple[int, int]] = SHOWN,
) -> list[UInt8[np.ndarray, "H W 3"]]:
    """Trains one run and draws it at the steps that are shown."""
    agent = make("mbec", "engram", epsilon_decay=1_000.0)
    assert isinstance(agent, MBEC)
    task = get_task(TASK, STEPS)
    spec = task.spec(1, STEPS)
    runner = JaxRunner(agent, [task], [SEED], spec)
    runner.start()
    assert isinstance(task.jax_env, JaxMaze)
    config, drawn = task.jax_env.config, []
    for first, count in shown:
        while runner.iteration < first or (
            first and int(runner.env_state.state.episode_step[0, 0])
        ):
            runner.advance(max(1, first - runner.iteration))
        path = [position(runner)]
        for _ in range(count):
            episode = int(runner.env_state.episode_index[0, 0])
            state = jax.tree.map(lambda x: x[0], runner.run_state.agent)
            values = cell_values(agent, state, spec, config.size, runner.iteration)
            drawn.append(draw_picture(config.layout, path[-1], None, path, values))
            runner.advance(1)
            is_same = int(runner.env_state.episode_index[0, 0]) == episode
            path = [*path, position(runner)] if is_same else [position(runner)]
    return drawn


def position(runner: JaxRunner) -> tuple[int, int]:
    x, y = np.asarray(runner.env_state.state.position[0, 0])
    return int(x), int(y)


def write(path: Path) -> None:
    """Writes the animation as a GIF."""
    images = [Image.fromarray(picture) for picture in pictures()]
    small = [image.resize((PIXELS, PIXELS), Image.Resampling.LANCZOS) for image in images]
    # One palette for all pictures, made from eight of them.
    strip = Image.fromarray(
        np.concatenate([np.asarray(image) for image in small[:: len(small) // 8]])
    )
    palette = strip.quantize(COLOURS)
    first, *rest = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in small]
    first.save(path, save_all=True, append_images=rest, duration=MILLISECONDS, loop=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engram.paper.maze_animation", description=__doc__
    )
    parser.add_argument("file", type=Path, help="a .gif")
    write(parser.parse_args().file)


if __name__ == "__main__":
    main()
