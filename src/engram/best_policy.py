"""Selects the best policy of each Atari run by periodic evaluation (the paper: "best models")."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from engram import vec_evaluator
from engram.errors import EngramError
from engram.training_loop import Hook, Progress, Training
from engram.vec_evaluator import VecEvaluator

SEED_OFFSET = 10_000
"""added to a run's seed for its evaluations, so that a test by the seed plays other episodes"""


class BestPolicy(Hook):
    """Keeps the policy of each run that had the best mean return in evaluations during training."""

    def __init__(
        self,
        evaluations: int = 5,
        episodes: int = 10,
        say: Callable[[str], Any] = lambda text: None,
    ):
        self.evaluations = evaluations
        """how often in a training, at equal distances"""
        self.episodes = episodes
        """whole games of each evaluation"""
        self.say = say

    def on_start(self, run: Training) -> None:
        if any(task.atari is None for task in run.tasks):
            raise EngramError("BestPolicy evaluates Atari games only: leave it out.")
        self.interval = max(1, run.spec.num_iterations // self.evaluations)
        shapes = run.agent.policy_state(run.runner.template()[0].agent)
        self.evaluator = VecEvaluator(run.agent, run.spec, run.tasks, vec_evaluator.NUM_EVAL_ENVS)
        self.evaluator.check(shapes)
        self.policy_states = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        self.best_returns = np.full(len(run.seeds), -np.inf)
        self.history = np.full((self.evaluations, len(run.seeds)), np.nan)
        """mean returns of each evaluation and run"""
        self.seconds = np.zeros(())
        """time spent on evaluations"""

    def on_log(self, run: Training, progress: Progress) -> None:
        number = min(run.runner.iteration // self.interval, self.evaluations)
        if number == 0 or not np.isnan(self.history[number - 1, 0]):
            return
        began = time.monotonic()
        states = run.agent.policy_state(run.runner.run_state.agent)
        seeds = [seed + SEED_OFFSET for seed in run.seeds]
        returns = self.evaluator.evaluate(states, seeds, self.episodes).mean(axis=1)
        self.history[number - 1] = returns
        self._keep_better(states, returns)
        self.seconds += time.monotonic() - began
        games = [task.name.partition(":")[2] for task in run.tasks]
        pairs = ", ".join(f"{game} {x:,.1f}" for game, x in zip(games, returns, strict=True))
        self.say(f"evaluation {number} of {self.evaluations}: {pairs}")

    def _keep_better(self, states: PyTree, returns: Float[np.ndarray, "R"]) -> None:
        is_better = returns > self.best_returns
        self.best_returns = np.where(is_better, returns, self.best_returns)
        self.policy_states = jax.tree.map(
            lambda new, old: np.where(_broadcast(is_better, old), np.asarray(new), old),
            states,
            self.policy_states,
        )

    def on_end(self, run: Training) -> None:
        self.evaluator.close()

    def test(self, run: Training, episodes: int) -> Float[np.ndarray, "R episodes"]:
        """The returns of whole games, played by the best policy of each run."""
        return vec_evaluator.evaluate_atari(
            run.agent, run.spec, self.policy_states, run.tasks, list(run.seeds), episodes
        )

    def state(self) -> PyTree:
        return self.policy_states, self.best_returns, self.history, self.seconds

    def restore(self, state: PyTree) -> None:
        self.policy_states, self.best_returns, self.history, self.seconds = state


def _broadcast(per_run: np.ndarray, array: np.ndarray) -> np.ndarray:
    """One value per run, in a shape that fits an array whose first axis is the run."""
    return per_run.reshape(-1, *[1] * (array.ndim - 1))
