"""Evaluation of trained agents on whole Atari games, many of them in parallel."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.envs import Task
from engram.envs.atari import AtariGame, threads
from engram.runners import VmappedAgent
from engram.runners.atari import run_in_threads
from engram.runners.donation import Arrays, DonatedFunction, FlatPytree
from engram.types import Agent, Spec

NUM_EVAL_ENVS = 10
"""environments of a run that play in parallel"""


def evaluate_atari(
    agent: Agent,
    spec: Spec,
    states: PyTree,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    episodes: int,
) -> Float[np.ndarray, "R episodes"]:
    """Returns of whole Atari games, by a `VecEvaluator` that is used once."""
    evaluator = VecEvaluator(agent, spec, tasks, min(episodes, NUM_EVAL_ENVS))
    returns = evaluator.evaluate(states, seeds, episodes)
    evaluator.close()
    return returns


class VecEvaluator:
    """Plays whole Atari games with R trained agents, half of the environments at a time.

    One half steps while the device selects actions for the other. It can be used again, since ALE
    takes a tenth of a second to make an environment.
    """

    def __init__(self, agent: Agent, spec: Spec, tasks: Sequence[Task], num_envs: int):
        self.games = [_atari_game(task) for task in tasks]
        self.spec = replace(spec, num_envs=-(-num_envs // 2))
        # Twice the threads, since some runs end their games much sooner than others.
        num_threads = 2 * threads(2 * len(tasks))
        self.vec_envs = [
            [game.make_vec(self.spec.num_envs, num_threads) for game in self.games]
            for _ in range(2)
        ]
        num_actions = [game.num_actions() for game in self.games]
        self.agents = VmappedAgent(agent, self.spec, len(tasks), num_valid_actions=num_actions)
        self.epsilon = jnp.array([game.protocol.eval_epsilon for game in self.games])
        self.select_actions = DonatedFunction(self._select_actions)

    def evaluate(
        self, states: PyTree, seeds: Sequence[int], episodes: int
    ) -> Float[np.ndarray, "R episodes"]:
        """Unclipped returns of R agents, whose states have a leading axis R.

        Actions are greedy except for the epsilon of each game's protocol.
        """
        keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
        states = self._resize(states, keys)
        self.flat_state = FlatPytree((states, keys, jnp.int32(0)))
        halves = []
        for h, vec_envs in enumerate(self.vec_envs):
            half_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 7 + h)
            own_states = jax.tree.map(jnp.copy, states)  # since they are updated in place
            arrays = self.flat_state.flatten((own_states, half_keys, jnp.int32(0)))
            halves.append(_EvaluationHalf(self, vec_envs, arrays, seeds, episodes, h))
        while playing := [half for half in halves if half.is_playing()]:
            for half in playing:
                half.step()
        return halves[0].returns + halves[1].returns

    def check(self, states: PyTree) -> None:
        """Raises, before training, what `evaluate` would raise after it; shapes suffice."""
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), len(self.games)))
        self._state_shapes(states, keys)

    def close(self) -> None:
        for vec_envs in self.vec_envs:
            for vec_env in vec_envs:
                vec_env.close()

    def _select_actions(
        self, arrays: Arrays, observation: Array, episode_start: Array
    ) -> tuple[Arrays, Arrays]:
        states, keys, step = self.flat_state.unflatten(arrays)
        states, actions = self._act_greedy(states, keys, step, observation, episode_start)
        return self.flat_state.flatten((states, keys, step + 1)), (actions,)

    def _act_greedy(
        self,
        states: PyTree,
        keys: Key[Array, "R"],
        step: Int[Array, ""],
        observation: Array,
        episode_start: Array,
    ) -> tuple[PyTree, Array]:
        return self.agents.act_greedy(states, observation, episode_start, keys, step, self.epsilon)

    def _resize(self, states: PyTree, keys: Key[Array, "R"]) -> PyTree:
        """The agents with zeros where their state has an axis of environments."""
        shapes = self._state_shapes(states, keys)
        return jax.tree.map(
            lambda x, new: x if x.shape == new.shape else jnp.zeros(new.shape, new.dtype),
            states,
            shapes,
        )

    def _state_shapes(self, states: PyTree, keys: PyTree) -> PyTree:
        """Shapes of the agents' states after a step."""
        shape = len(self.games), self.spec.num_envs
        observation = jax.ShapeDtypeStruct((*shape, *self.spec.shape), self.spec.dtype)
        episode_start = jax.ShapeDtypeStruct(shape, bool)
        return jax.eval_shape(
            self._act_greedy, states, keys, jnp.int32(0), observation, episode_start
        )[0]


class _EvaluationHalf:
    """Every second game of an evaluation, in half of the environments.

    Each environment plays a fixed share of the games: to take the first that end would favour short
    ones.
    """

    def __init__(
        self,
        evaluator: VecEvaluator,
        vec_envs: Sequence[Any],
        arrays: Arrays,
        seeds: Sequence[int],
        episodes: int,
        half: int,
    ):
        self.evaluator = evaluator
        self.vec_envs = vec_envs
        self.arrays = arrays
        self.seeds = seeds
        self.episodes = episodes
        num_runs, num_envs = len(vec_envs), evaluator.spec.num_envs
        self.returns = np.zeros((num_runs, episodes))
        first_games = half + 2 * np.arange(num_envs)
        self.episode_index: Int[np.ndarray, "R E"] = np.tile(first_games, (num_runs, 1))
        """the game that each environment plays; `episodes` or more if it has played all"""
        self.observation = np.zeros((num_runs, num_envs, *evaluator.spec.shape), np.uint8)
        self.episode_start = np.ones((num_runs, num_envs), bool)
        self.lives = np.zeros((num_runs, num_envs), int)
        self.stepping_runs: list[int] = []
        if self.is_playing():
            run_in_threads(self._reset_run, range(num_runs))

    def is_playing(self) -> bool:
        return bool((self.episode_index < self.episodes).any())

    def step(self) -> None:
        """Receives the results of the last actions, and sends the next to runs that still play."""
        for run in self.stepping_runs:
            self._receive(run)
        is_playing = (self.episode_index < self.episodes).any(axis=1)
        self.stepping_runs = np.flatnonzero(is_playing).tolist()
        if not self.stepping_runs:
            return
        self.arrays, (device_actions,) = self.evaluator.select_actions(
            self.arrays, self.observation, self.episode_start
        )
        actions = np.asarray(device_actions)
        for run in self.stepping_runs:
            self.vec_envs[run].send(actions[run])

    def _reset_run(self, run: int) -> None:
        # Only first games have seeds of their own, since ALE takes long to seed a game.
        indices = self.episode_index[run].tolist()
        seeds = [evaluation_seed(self.seeds[run], index) % 2**31 for index in indices]
        self.observation[run], info = self.vec_envs[run].reset(seed=np.array(seeds))
        self.lives[run] = info["lives"]

    def _receive(self, run: int) -> None:
        result = self.vec_envs[run].recv()
        self.observation[run], reward, terminated, truncated, info = result
        index = self.episode_index[run]
        is_playing = index < self.episodes
        self.returns[run, index[is_playing]] += reward[is_playing]
        game_over = terminated | truncated
        life_lost = info["lives"] < self.lives[run]
        protocol = self.evaluator.games[run].protocol
        # A trajectory ends where it does in training.
        self.episode_start[run] = game_over | (life_lost & protocol.terminal_on_life_loss)
        self.lives[run] = info["lives"]
        index[game_over] += 2 * self.evaluator.spec.num_envs


def evaluation_seed(seed: int, episode_index: int) -> int:
    """The seed of an evaluation episode, which training never uses."""
    sequence = np.random.SeedSequence([seed, episode_index, 1])
    return int(sequence.generate_state(2)[1])  # training takes the first number


def _atari_game(task: Task) -> AtariGame:
    assert task.atari is not None
    return task.atari
