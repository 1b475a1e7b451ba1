"""Atari: R runs of E games each, whose frames ALE's threads compute while the device learns."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from engram.envs.atari import AtariGame, threads
from engram.runners.gym_env import EnvId, GymRunner
from engram.types import Agent

STEPS_BETWEEN_SEEDS = 60_000
"""Steps of an environment after which its next game begins with a new seed.

For a seed ALE loads the game again, which takes as long as 100 to 200 steps while all environments
wait. But all steps since the last seed must be replayed when a run is resumed.
"""


class AtariRunner(GymRunner):
    """Trains R runs on ALE's vector environments, one per run.

    An environment's seed depends on the run's seed, its index and the game's index alone, and its
    games on the seed and the actions. So a checkpoint holds the actions since the last seed.
    """

    def __init__(self, agent: Agent, *args: Any, **kwargs: Any):
        super().__init__(agent, *args, **kwargs)
        self.max_reward = 1.0 if agent.clip_rewards else np.inf
        self.vec_envs: list[Any] = []
        self.lives = np.zeros(self.episode_index.shape, np.int64)
        self.seeded_index = np.zeros_like(self.episode_index)
        """for each environment, the index of the last game that began with a new seed"""

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        tree, notes = super().save()
        return tree, notes | {"seeded_index": self.seeded_index.tolist()}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.seeded_index = np.array(notes["seeded_index"])
        super().restore(tree, notes)

    def close(self) -> None:
        for vec_env in self.vec_envs:
            vec_env.close()

    def _game(self, run: int) -> AtariGame:
        game = self.tasks[run].atari
        assert game is not None
        return game

    def _make_envs(self) -> None:
        num_runs = len(self.seeds)
        # Not in threads, since ALE holds the interpreter's lock meanwhile.
        self.vec_envs = [
            self._game(run).make_vec(self.spec.num_envs, threads(num_runs))
            for run in range(num_runs)
        ]

    def _reset_all(self) -> None:
        run_in_threads(self._reset_run, range(len(self.seeds)))

    def _reset_run(self, run: int) -> None:
        every_env = np.ones(self.spec.num_envs, bool)
        self.timestep.observation[run] = self._reset_with_seeds(run, every_env)

    def _reset_with_seeds(self, run: int, mask: Bool[np.ndarray, "E"]) -> np.ndarray:
        """Begins games with new seeds where the mask says so; returns all observations."""
        envs = np.flatnonzero(mask).tolist()
        indices = [self.seeded_index[run, env] for env in envs]
        seeds = [
            self._reset_seed((run, env), index) % 2**31
            for env, index in zip(envs, indices, strict=True)
        ]
        reset = partial(
            self.vec_envs[run].reset,
            seed=np.array(seeds),
            options=None if mask.all() else {"reset_mask": mask},
        )
        observation, info = self._call(run, "reset", reset)
        self.lives[run] = info["lives"]
        return observation

    def _start_next_episode(self, env_id: EnvId) -> None:
        actions = self.episode_actions[env_id]
        super()._start_next_episode(env_id)
        if len(actions) < STEPS_BETWEEN_SEEDS:
            self.episode_actions[env_id] = actions
        else:
            self.seeded_index[env_id] = self.episode_index[env_id]

    def _send(self, actions: Int[np.ndarray, "R E"]) -> None:
        # All are sent before any is received, so that the games of all runs step in parallel.
        for run, vec_env in enumerate(self.vec_envs):
            self._call(run, "send", partial(vec_env.send, actions[run]))

    def _step(self, actions: Int[np.ndarray, "R E"], returns: Float[np.ndarray, "R E"]) -> None:
        # In new arrays: the device may still be reading those of the last step.
        self.timestep = self.timestep._replace(
            observation=np.empty_like(self.timestep.observation),
            reward=np.empty_like(self.timestep.reward),
            terminated=np.empty_like(self.timestep.terminated),
        )
        for run, vec_env in enumerate(self.vec_envs):
            result = self._call(run, "recv", vec_env.recv)
            self._receive(run, actions[run], result, returns[run])

    def _receive(
        self,
        run: int,
        actions: Int[np.ndarray, "E"],
        result: Any,
        returns: Float[np.ndarray, "E"],
    ) -> None:
        """Writes what a run's games returned into the timestep."""
        observation, reward, terminated, truncated, info = result
        game_over = terminated | truncated
        life_lost = info["lives"] < self.lives[run]
        is_terminal = game_over | (life_lost & self._game(run).protocol.terminal_on_life_loss)
        self.lives[run] = info["lives"]
        self.timestep.observation[run] = observation
        self.timestep.reward[run] = np.clip(reward, -self.max_reward, self.max_reward)
        self.timestep.terminated[run] = is_terminal
        self.episode_return[run] += reward
        for env, action in enumerate(actions.tolist()):
            self.episode_actions[run, env].append(action)
        if game_over.any():
            returns[game_over] = self.episode_return[run, game_over]
            for env in np.flatnonzero(game_over).tolist():
                self._start_next_episode((run, env))
            needs_seed = np.array(
                [not self.episode_actions[run, env] for env in range(self.spec.num_envs)]
            )
            if needs_seed.any():
                self.timestep.observation[run] = self._reset_with_seeds(run, needs_seed)

    def _restore_envs(self) -> None:
        cancelled = Event()
        replay = partial(self._replay_run, cancelled)
        run_in_threads(replay, range(len(self.seeds)), cancelled)

    def _replay_run(self, cancelled: Event, run: int) -> None:
        """Replays a run's games since their seeds; those with fewer actions begin later."""
        actions = [self.episode_actions[run, env] for env in range(self.spec.num_envs)]
        lengths = np.array([len(env_actions) for env_actions in actions])
        longest = max(lengths)
        observation = self._reset_with_seeds(run, np.ones(self.spec.num_envs, bool))
        for t in range(longest + 1):
            positions = t - longest + lengths
            if t and (positions == 0).any():
                observation = self._reset_with_seeds(run, positions == 0)
            if t == longest or cancelled.is_set():
                break
            step_actions = [
                env_actions[i] if i >= 0 else 0
                for i, env_actions in zip(positions.tolist(), actions, strict=True)
            ]
            step = partial(self.vec_envs[run].step, np.array(step_actions, np.int32))
            observation, _, _, _, info = self._call(run, "step", step)
            self.lives[run] = info["lives"]
        for env in range(self.spec.num_envs):
            if not np.array_equal(observation[env], self.timestep.observation[run, env]):
                raise self._environment_fault(
                    run,
                    "the replay of its actions does not lead back to its saved observation; "
                    "resume with the version of ale-py that wrote the checkpoint",
                )


def run_in_threads(
    work: Callable[[int], Any], runs: Iterable[int], cancelled: Event | None = None
) -> None:
    """Calls `work` for all runs in parallel threads, which helps since ALE releases the lock.

    `cancelled` is set if a call fails or the main thread is interrupted.
    """
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(work, runs))
        except BaseException:
            if cancelled is not None:
                cancelled.set()
            raise
