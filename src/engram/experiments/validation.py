"""What goes on beside a training on Atari: validation and, where time is short, giving up runs for the sake of the others."""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from engram.experiments import pace
from engram.experiments.running import Beside
from engram.loop import games
from engram.policy import without_learning
from engram.tasks import Task
from engram.types import Agent, Spec


class Best(Beside):
    """Of each run the policy that did best in validation; a few whole games, several times in a training."""

    def __init__(
        self,
        agent: Agent,
        spec: Spec,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        validations: int,
        deadline: pace.Deadline | None = None,
    ):
        self.agent, self.spec, self.tasks, self.seeds, self.count = agent, spec, list(tasks), list(seeds), validations
        self.deadline = deadline
        self.every = max(1, spec.iterations // validations)
        self.scores = np.full(len(seeds), -np.inf)
        self.states: PyTree = ()
        self.past = np.zeros((0, len(seeds)))
        self.compiling, self.judging = np.zeros(1), np.zeros(1)  # seconds; arrays, since they are saved with the rest
        self.began = time.monotonic()

    def prepare(self, driver: Any) -> None:
        shapes = without_learning(self.agent, driver.template()[0].agent)
        self.judge.check(shapes)
        self.states = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        self.past = np.full((self.count + 1, len(self.seeds)), np.nan)

    @cached_property
    def judge(self) -> games.Judge:
        return games.Judge(self.agent, self.spec, self.tasks, games.TOGETHER)

    def mark(self, driver: Any) -> None:
        if self.began:  # up to the first point of the curve it compiles
            self.compiling += time.monotonic() - self.began
            self.began = 0.0
        now = min(driver.iteration // self.every, self.count)
        if now <= 0 or not np.isnan(self.past[now, 0]):
            return
        began = time.monotonic()
        states = without_learning(self.agent, driver.carry.agent)
        found = self.judge.scores(states, [seed + 10_000 for seed in self.seeds], pace.VALIDATION_GAMES)
        self.past[now] = found.mean(axis=1)
        better = found.mean(axis=1) > self.scores
        self.scores = np.where(better, found.mean(axis=1), self.scores)
        self.states = jax.tree.map(lambda new, old: np.where(_as_wide_as(old, better), np.asarray(new), old), states, self.states)
        self.judging += time.monotonic() - began
        told = ", ".join(f"{task.name.partition(':')[2]} {score:,.1f}" for task, score in zip(self.tasks, self.past[now], strict=True))
        print(f"validation {now} of {self.count}: {told}", flush=True)

    def gives_up(self, driver: Any) -> bool:
        if self.deadline is None:
            return False
        games = int(np.isnan(self.past[1:, 0]).sum()) * pace.VALIDATION_GAMES + pace.TEST_GAMES
        return self.deadline.is_missed(driver.iteration, len(self.seeds), games, float(self.judging[0]))

    def keep(self, runs: Sequence[int]) -> None:
        lost, at = [task.name.partition(":")[2] for r, task in enumerate(self.tasks) if r not in runs], np.array(runs)
        print(f"given up, since not all would be done in time: {', '.join(lost)}", flush=True)
        self.tasks, self.seeds = [self.tasks[r] for r in runs], [self.seeds[r] for r in runs]
        self.scores, self.past, self.states = self.scores[at], self.past[:, at], jax.tree.map(lambda x: x[at], self.states)
        if "judge" in self.__dict__:
            self.judge.close()
            del self.judge

    def tree(self) -> PyTree:
        return self.states, self.scores, self.past, self.compiling, self.judging

    def restore(self, tree: PyTree) -> None:
        self.states, self.scores, self.past, self.compiling, self.judging = tree


def _as_wide_as(array: np.ndarray, which: np.ndarray) -> np.ndarray:
    """A choice of runs, to be broadcast over an array that has them in front."""
    return which.reshape(-1, *[1] * (array.ndim - 1))
