"""Atari: R runs of E consoles each, whose frames ALE's threads compute while the device learns."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from engram.loop.host import Host
from engram.loop.program import Carry
from engram.tasks.atari import threads
from engram.types import Agent

SEEDED = 60_000
"""steps of a console after which its next game begins by a seed. ALE loads the game anew for that, which takes as long as 100 to 200
steps, and all other consoles wait; but what was played since is what must be played again when a run is resumed."""


class Consoles(Host):
    """Games on ALE's vector environments, one for each run. A console's seed depends on the run's seed, the console and the game's number
    alone, and all that follows on it and on the actions: a checkpoint's games are brought back by the actions since they were seeded."""

    def __init__(self, agent: Agent, *args: Any, **kwargs: Any):
        super().__init__(agent, *args, **kwargs)
        self.largest_reward = 1.0 if getattr(agent, "clip_rewards", True) else np.inf
        self.machines: list[Any] = []
        self.seeded = np.zeros_like(self.episode)
        """the number of the game that a console was last seeded for"""

    def _make(self) -> None:
        self.machines = [  # one after another: ALE holds Python meanwhile
            self._arcade(r).machine(self.spec.envs, threads(len(self.seeds))) for r in range(len(self.seeds))
        ]
        self.lives = np.zeros((len(self.seeds), self.spec.envs), np.int64)

    def _arcade(self, r: int) -> Any:
        arcade = self.tasks[r].arcade
        assert arcade is not None
        return arcade

    def _begin(self) -> None:
        def begin(r: int) -> None:
            self.timestep.observation[r] = self._seed_games(r, np.ones(self.spec.envs, bool))

        at_once(begin, range(len(self.seeds)))

    def _seed_games(self, r: int, which: Bool[np.ndarray, "E"]) -> np.ndarray:
        """Begins games by seeds on some of a run's consoles; gives what all of them show."""
        seeds = np.array([self._seed((r, e), self.seeded[r, e]) % 2**31 for e in np.flatnonzero(which).tolist()])
        options = None if which.all() else {"reset_mask": which}
        observation, info = self._call(r, "reset", lambda: self.machines[r].reset(seed=seeds, options=options))
        self.lives[r] = info["lives"]
        return observation

    def _next(self, place: tuple[int, int]) -> None:
        taken = self.taken[place]
        super()._next(place)
        if len(taken) < SEEDED:
            self.taken[place] = taken
        else:
            self.seeded[place] = self.episode[place]

    def _send(self, actions: Int[np.ndarray, "R E"]) -> None:
        for r, machine in enumerate(self.machines):  # all are sent before any is waited for
            self._call(r, "send", partial(machine.send, actions[r]))

    def _step(self, actions: Int[np.ndarray, "R E"], returns: Float[np.ndarray, "R E"]) -> None:
        # In new arrays: the device may still be reading those of the last step. All is written anew but what never changes.
        last = self.timestep
        self.timestep = last._replace(**{name: np.empty_like(getattr(last, name)) for name in ("observation", "reward", "terminated")})
        for r, machine in enumerate(self.machines):
            self._take(r, actions[r], self._call(r, "recv", machine.recv), returns[r])

    def _take(self, r: int, actions: Int[np.ndarray, "E"], answer: Any, returns: Float[np.ndarray, "E"]) -> None:
        now, (observation, reward, terminated, truncated, info) = self.timestep, answer
        over = terminated | truncated
        lost = (info["lives"] < self.lives[r]) & self._arcade(r).protocol.life_ends
        self.lives[r] = info["lives"]
        now.observation[r], now.reward[r], now.terminated[r] = observation, self._clipped(reward), over | lost
        self.score[r] += reward
        for e, action in enumerate(actions.tolist()):
            self.taken[r, e].append(action)
        if over.any():
            returns[over] = self.score[r, over]
            for e in np.flatnonzero(over).tolist():
                self._next((r, e))
            is_due = np.array([not self.taken[r, e] for e in range(self.spec.envs)])
            if is_due.any():
                now.observation[r] = self._seed_games(r, is_due)

    def _clipped(self, reward: Float[np.ndarray, "E"]) -> Float[np.ndarray, "E"]:
        """As the agent is told it."""
        return np.clip(reward, -self.largest_reward, self.largest_reward)

    def save(self) -> tuple[PyTree, dict[str, Any]]:
        tree, notes = super().save()
        return tree, notes | {"seeded": self.seeded.tolist()}

    def restore(self, tree: PyTree, notes: dict[str, Any]) -> None:
        self.seeded = np.array(notes.get("seeded", tree[3]))  # older checkpoints have none: every game was seeded
        super().restore(tree, notes)

    def _return(self) -> None:
        left = Event()
        at_once(partial(self._play_again, left), range(len(self.seeds)), left)

    def _play_again(self, left: Event, r: int) -> None:
        """All consoles of a run arrive at the same moment: each sets out so much later as it has less to play again. Until it is left."""
        taken = [self.taken[r, e] for e in range(self.spec.envs)]
        lengths = np.array([len(actions) for actions in taken])
        longest = max(lengths)
        observation = self._seed_games(r, np.ones(self.spec.envs, bool))
        for t in range(longest + 1):
            at = t - longest + lengths
            if t and (at == 0).any():
                observation = self._seed_games(r, at == 0)
            if t == longest or left.is_set():
                break
            actions = np.array([actions[i] if i >= 0 else 0 for i, actions in zip(at.tolist(), taken, strict=True)], np.int32)
            observation, _, _, _, info = self._call(r, "step", partial(self.machines[r].step, actions))
            self.lives[r] = info["lives"]
        for e in range(self.spec.envs):
            if not np.array_equal(observation[e], self.timestep.observation[r, e]):
                raise self._broken(r, "it does not come back to where it was; was the checkpoint made with another version of ale-py?")

    def keep(self, runs: Sequence[int]) -> "Consoles":
        """A driver of some of the runs, which go on where they are; the others end here, and so does this driver."""
        program, at = self.program, np.array(runs)
        options = {name: np.asarray(values)[at].tolist() for name, values in program.options.items()}
        allowed = None if program.allowed is None else np.asarray(program.allowed)[at].tolist()
        kept = Consoles(program.agent, [self.tasks[r] for r in runs], [self.seeds[r] for r in runs], self.spec, options, allowed)
        kept.carry = jax.jit(partial(some, at))(self.carry)
        self.arrays, self.uploaded = (), (None, ())  # which may be most of the device's memory
        kept.timestep = jax.tree.map(lambda x: x[at], self.timestep)
        kept.iteration, kept.score, kept.episode = self.iteration, self.score[at], self.episode[at]
        kept.seeded, kept.lives = self.seeded[at], self.lives[at]
        kept.taken = {(i, e): self.taken[r, e] for i, r in enumerate(runs) for e in range(self.spec.envs)}
        kept.machines = [self.machines[r] for r in runs]
        for r in set(range(len(self.machines))) - set(runs):
            self.machines[r].close()
        with kept._compiling():
            pass
        return kept

    def close(self) -> None:
        for machine in self.machines:
            machine.close()


def some(runs: Int[np.ndarray, "r"], carry: Carry) -> Carry:
    """What some of the runs carry."""
    of_runs = carry._replace(since=None, step=None)
    return jax.tree.map(lambda x: x[runs], of_runs)._replace(since=carry.since, step=carry.step)


def at_once(work: Callable[[int], Any], runs: Iterable[int], left: Event | None = None) -> None:
    """The work of all runs in threads: ALE leaves Python to others meanwhile. `left` is set where one fails, or it is interrupted."""
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(work, runs))
        except BaseException:
            if left is not None:
                left.set()
            raise
