"""Trained agents play whole Atari games, many at once: for validation and for tests."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from engram.tasks import Task
from engram.tasks.atari import Arcade
from engram.types import Agent, Spec

TOGETHER = 25
"""consoles of a run"""


def scores(
    agent: Agent, spec: Spec, states: PyTree, tasks: Sequence[Task], seeds: Sequence[int], episodes: int
) -> Float[np.ndarray, "R episodes"]:
    """The unclipped scores of whole games, played by R trained agents (leaves of `states` have a leading axis R), greedily but for the
    epsilon of each task's protocol. Each console plays a fixed share: to count the games that are over first would favour short ones."""
    arcades = [_arcade(task) for task in tasks]
    runs, count = len(arcades), min(episodes, TOGETHER)
    machines = [arcade.machine(count) for arcade in arcades]
    epsilon = jnp.array([arcade.protocol.epsilon for arcade in arcades])
    allowed = jnp.array([arcade.actions() for arcade in arcades], jnp.int32)
    keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
    found = np.zeros((runs, episodes))
    number = np.tile(np.arange(count), (runs, 1))  # of the game that each console plays; past the last when it is done
    begun = [m.reset(seed=_seeds(seed, own)) for m, seed, own in zip(machines, seeds, number, strict=True)]
    observation, lives = np.stack([shown for shown, _ in begun]), np.stack([info["lives"] for _, info in begun])
    first, step = np.ones((runs, count), bool), 0
    choose = _choose(agent, replace(spec, envs=count))
    while (number < episodes).any():
        states, actions = choose(states, observation, first, epsilon, allowed, keys, step)
        chosen, still = np.asarray(actions), np.flatnonzero((number < episodes).any(axis=1)).tolist()
        for r in still:  # runs that have played all leave the processors to the others
            machines[r].send(chosen[r])
        for r in still:
            machine = machines[r]
            observation[r], reward, terminated, truncated, info = machine.recv()
            playing = number[r] < episodes
            found[r, number[r][playing]] += reward[playing]
            over = terminated | truncated
            first[r] = over | ((info["lives"] < lives[r]) & arcades[r].protocol.life_ends)  # a trajectory ends where it does in training
            if over.any():
                number[r, over] += count
                observation[r], info = machine.reset(seed=_seeds(seeds[r], number[r, over]), options={"reset_mask": over})
            lives[r] = info["lives"]
        step += 1
    for machine in machines:
        machine.close()
    return found


@cache
def _choose(agent: Agent, spec: Spec):
    """The actions of all runs, compiled once."""

    def one(state, observation, first, epsilon, allowed, key, step):
        greedy_key, lot_key, any_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 7), step), 3)
        state, greedy = agent.play(state, replace(spec, allowed=allowed), observation, first, greedy_key)
        any_action = jax.random.randint(any_key, greedy.shape, 0, allowed)
        return state, jnp.where(jax.random.uniform(lot_key, greedy.shape) < epsilon, any_action, greedy).astype(jnp.int32)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, 0, 0, None)))


def judging_seed(seed: int, number: int) -> int:
    """Of an episode played by a trained agent: the second of the numbers drawn, since training begins its episodes by the first."""
    return int(np.random.SeedSequence([seed, number, 1]).generate_state(2)[1])


def _seeds(seed: int, numbers: np.ndarray) -> np.ndarray:
    return np.array([judging_seed(seed, number) % 2**31 for number in numbers.tolist()])


def _arcade(task: Task) -> Arcade:
    assert task.arcade is not None
    return task.arcade
