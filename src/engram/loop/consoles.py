"""Atari: R runs of E consoles each, whose frames ALE's threads compute while the device learns."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from engram.loop.host import Host
from engram.tasks.atari import threads


class Consoles(Host):
    """Games on ALE's vector environments, one for each run. A game's seed depends on the run's seed and the game's number alone, so a
    checkpoint's games are brought back by their actions, all at once."""

    machines: Sequence[Any] = ()

    def _make(self) -> None:
        self.machines = [self._arcade(r).machine(self.spec.envs, threads(len(self.seeds))) for r in range(len(self.seeds))]
        self.lives = np.zeros((len(self.seeds), self.spec.envs), np.int64)

    def _arcade(self, r: int) -> Any:
        arcade = self.tasks[r].arcade
        assert arcade is not None
        return arcade

    def _begin(self) -> None:
        for r in range(len(self.seeds)):
            self.timestep.observation[r] = self._reset_games(r, np.ones(self.spec.envs, bool))

    def _reset_games(self, r: int, which: np.ndarray) -> np.ndarray:
        """Begins the next games of some of a run's consoles; gives what all of them show."""
        seeds = np.array([self._seed((r, e)) % 2**31 for e in np.flatnonzero(which).tolist()])
        options = None if which.all() else {"reset_mask": which}
        observation, info = self._call(r, "reset", lambda: self.machines[r].reset(seed=seeds, options=options))
        self.lives[r] = info["lives"]
        return observation

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
        now.observation[r], now.reward[r], now.terminated[r] = observation, np.clip(reward, -1, 1), over | lost
        self.score[r] += reward
        for e, action in enumerate(actions.tolist()):
            self.taken[r, e].append(action)
        if over.any():
            returns[over] = self.score[r, over]
            for e in np.flatnonzero(over).tolist():
                self._next((r, e))
            now.observation[r] = self._reset_games(r, over)

    def _return(self) -> None:
        """All games of a run end at the same moment: each begins so much later as it is shorter than the longest."""
        for r, machine in enumerate(self.machines):
            taken = [self.taken[r, e] for e in range(self.spec.envs)]
            longest = max(map(len, taken))
            observation = self._reset_games(r, np.ones(self.spec.envs, bool))
            for t in range(longest + 1):
                beginning = np.array([longest - len(actions) == t for actions in taken])
                if beginning.any() and t:
                    observation = self._reset_games(r, beginning)
                if t < longest:
                    at = [t - longest + len(actions) for actions in taken]
                    actions = np.array([actions[i] if i >= 0 else 0 for i, actions in zip(at, taken, strict=True)], np.int32)
                    observation, _, _, _, info = machine.step(actions)
                    self.lives[r] = info["lives"]
            for e in range(self.spec.envs):
                if not np.array_equal(observation[e], self.timestep.observation[r, e]):
                    raise self._broken(r, "it does not come back to where it was; was the checkpoint made with another version of ale-py?")

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
