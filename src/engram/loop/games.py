"""Trained agents play whole Atari games, many at once: for validation and for tests."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from engram.loop.consoles import at_once
from engram.tasks import Task
from engram.tasks.atari import Arcade, threads
from engram.types import Agent, Spec

TOGETHER = 20
"""consoles of a run"""


def scores(
    agent: Agent, spec: Spec, states: PyTree, tasks: Sequence[Task], seeds: Sequence[int], episodes: int
) -> Float[np.ndarray, "R episodes"]:
    """The unclipped scores of whole games, played by R trained agents (leaves of `states` have a leading axis R), greedily but for the
    epsilon of each task's protocol. Half of the consoles play while the device chooses for the others."""
    halves = [Half(agent, spec, states, tasks, seeds, episodes, first) for first in (0, 1)]
    while playing := [half for half in halves if half.is_playing()]:
        for half in playing:
            half.step()
    for machine in (machine for half in halves for machine in half.machines):
        machine.close()
    return halves[0].scores + halves[1].scores


class Half:
    """Every second game, from the first on. Each console plays a fixed share: to count the games that are over first would favour short
    ones."""

    def __init__(self, agent: Agent, spec: Spec, states: PyTree, tasks: Sequence[Task], seeds: Sequence[int], episodes: int, first: int):
        self.states, self.seeds, self.episodes = states, seeds, episodes
        self.arcades = [_arcade(task) for task in tasks]
        runs, self.count = len(tasks), min(-(-episodes // 2), TOGETHER // 2)
        self.machines = [arcade.machine(self.count, 4 * threads(2 * runs)) for arcade in self.arcades]  # of which some are over sooner
        self.epsilon = jnp.array([arcade.protocol.epsilon for arcade in self.arcades])
        self.allowed = jnp.array([arcade.actions() for arcade in self.arcades], jnp.int32)
        self.keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 7 + first))(jnp.array(seeds, jnp.uint32))
        self.choose = _choose(agent, replace(spec, envs=self.count))
        self.scores = np.zeros((runs, episodes))
        self.number = np.tile(first + 2 * np.arange(self.count), (runs, 1))  # of the game that each console plays; at last past the end
        self.observation, self.lives = np.zeros((runs, self.count, *spec.shape), np.uint8), np.zeros((runs, self.count), int)
        at_once(self._begin, range(runs))
        self.first, self.steps = np.ones((runs, self.count), bool), 0
        self.sent: list[int] = []

    def _begin(self, r: int) -> None:
        """By seeds; the games that follow on a console go on with its own random numbers, since ALE takes long to seed one."""
        numbers = [judging_seed(self.seeds[r], number) % 2**31 for number in self.number[r].tolist()]
        self.observation[r], info = self.machines[r].reset(seed=np.array(numbers))
        self.lives[r] = info["lives"]

    def is_playing(self) -> bool:
        return bool((self.number < self.episodes).any())

    def step(self) -> None:
        """Takes what the consoles answer to the last actions, and sends the next; runs that have played all leave the processors to the
        others."""
        for r in self.sent:
            self._take(r)
        self.sent = np.flatnonzero((self.number < self.episodes).any(axis=1)).tolist()
        told = self.observation, self.first, self.epsilon, self.allowed, self.keys, self.steps
        self.states, actions = self.choose(self.states, *told)
        chosen = np.asarray(actions)
        for r in self.sent:
            self.machines[r].send(chosen[r])
        self.steps += 1

    def _take(self, r: int) -> None:
        self.observation[r], reward, terminated, truncated, info = self.machines[r].recv()
        number = self.number[r]
        playing, over = number < self.episodes, terminated | truncated
        self.scores[r, number[playing]] += reward[playing]
        life_ends = self.arcades[r].protocol.life_ends
        self.first[r] = over | ((info["lives"] < self.lives[r]) & life_ends)  # a trajectory ends where it does in training
        if over.any():
            number[over] += 2 * self.count
            self.observation[r], info = self.machines[r].reset(options={"reset_mask": over})
        self.lives[r] = info["lives"]


@cache
def _choose(agent: Agent, spec: Spec):
    """The actions of all runs, compiled once."""

    def one(state, observation, first, epsilon, allowed, key, step):
        greedy_key, lot_key, any_key = jax.random.split(jax.random.fold_in(key, step), 3)
        state, greedy = agent.play(state, replace(spec, allowed=allowed), observation, first, greedy_key)
        any_action = jax.random.randint(any_key, greedy.shape, 0, allowed)
        return state, jnp.where(jax.random.uniform(lot_key, greedy.shape) < epsilon, any_action, greedy).astype(jnp.int32)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, 0, 0, None)))


def judging_seed(seed: int, number: int) -> int:
    """Of an episode played by a trained agent: the second of the numbers drawn, since training begins its episodes by the first."""
    return int(np.random.SeedSequence([seed, number, 1]).generate_state(2)[1])


def _arcade(task: Task) -> Arcade:
    assert task.arcade is not None
    return task.arcade
