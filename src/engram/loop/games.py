"""Trained agents play whole Atari games, many at once: for validation and for tests."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.loop.consoles import at_once
from engram.loop.packing import Arrays, InPlace, Packing
from engram.tasks import Task
from engram.tasks.atari import Arcade, threads
from engram.types import Agent, Spec

TOGETHER = 10
"""consoles of a run"""


def scores(
    agent: Agent, spec: Spec, states: PyTree, tasks: Sequence[Task], seeds: Sequence[int], episodes: int
) -> Float[np.ndarray, "R episodes"]:
    """The scores of games that are played once."""
    judge = Judge(agent, spec, tasks, min(episodes, TOGETHER))
    found = judge.scores(states, seeds, episodes)
    judge.close()
    return found


class Judge:
    """The consoles of R runs, to play whole games on again and again: ALE takes a tenth of a second to make one."""

    def __init__(self, agent: Agent, spec: Spec, tasks: Sequence[Task], consoles: int):
        self.agent, self.arcades, self.count = agent, [_arcade(task) for task in tasks], -(-consoles // 2)
        self.spec = replace(spec, envs=self.count)
        busy = 2 * threads(2 * len(tasks))  # since some of the machines are done much sooner
        self.machines = [[arcade.machine(self.count, busy) for arcade in self.arcades] for _ in range(2)]
        self.epsilon = jnp.array([arcade.protocol.epsilon for arcade in self.arcades])
        self.allowed = jnp.array([arcade.actions() for arcade in self.arcades], jnp.int32)
        self.choose = InPlace(self._choose)

    def scores(self, states: PyTree, seeds: Sequence[int], episodes: int) -> Float[np.ndarray, "R episodes"]:
        """The unclipped scores of whole games, played by R trained agents (leaves of `states` have a leading axis R), greedily but for
        the epsilon of each task's protocol. Half of the consoles play while the device chooses for the others."""
        keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
        states = self._fitted(states, keys)
        self.packing, halves = Packing((states, keys, jnp.int32(0))), []
        for half, machines in enumerate(self.machines):
            own = jax.vmap(jax.random.fold_in, (0, None))(keys, 7 + half)
            begun = self.packing.pack((jax.tree.map(jnp.copy, states), own, jnp.int32(0)))  # copied, since it is changed in place
            halves.append(Half(self, machines, begun, seeds, episodes, half))
        while playing := [half for half in halves if half.is_playing()]:
            for half in playing:
                half.step()
        return halves[0].scores + halves[1].scores

    def check(self, states: PyTree) -> None:
        """Raises before a training what playing would raise after it; of `states` shapes suffice."""
        self._after(states, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), len(self.arcades))))

    def _choose(self, arrays: Arrays, observation: Array, first: Array) -> tuple[Arrays, Arrays]:
        """The actions of all runs."""
        states, keys, step = self.packing.unpack(arrays)
        states, actions = self._play(states, keys, step, observation, first)
        return self.packing.pack((states, keys, step + 1)), (actions,)

    def _play(self, states: PyTree, keys: Key[Array, "R"], step: Int[Array, ""], observation: Array, first: Array) -> tuple[PyTree, Array]:
        def one(state, observation, first, epsilon, allowed, key):
            return self.agent.play(state, replace(self.spec, allowed=allowed), observation, first, jax.random.fold_in(key, step), epsilon)

        return jax.vmap(one)(states, observation, first, self.epsilon, self.allowed, keys)

    def _fitted(self, states: PyTree, keys: Key[Array, "R"]) -> PyTree:
        """The same agents with room for the trajectories of this judge's consoles instead of those of their training."""
        after = self._after(states, keys)
        return jax.tree.map(lambda x, then: x if x.shape == then.shape else jnp.zeros(then.shape, then.dtype), states, after)

    def _after(self, states: PyTree, keys: PyTree) -> PyTree:
        """The shapes of agents that have played."""
        shape = len(self.arcades), self.count
        seen = jax.ShapeDtypeStruct((*shape, *self.spec.shape), self.spec.dtype)
        return jax.eval_shape(self._play, states, keys, jnp.int32(0), seen, jax.ShapeDtypeStruct(shape, bool))[0]

    def close(self) -> None:
        for machine in (machine for half in self.machines for machine in half):
            machine.close()


class Half:
    """Every second game, from the first on. Each console plays a fixed share: to count the games that are over first would favour short
    ones."""

    def __init__(self, judge: Judge, machines: Sequence, arrays: Arrays, seeds: Sequence[int], episodes: int, half: int):
        self.judge, self.machines, self.arrays, self.seeds, self.episodes = judge, machines, arrays, seeds, episodes
        shape = len(machines), judge.count
        self.scores = np.zeros((len(machines), episodes))
        self.number: Int[np.ndarray, "R E"] = np.tile(half + 2 * np.arange(judge.count), (len(machines), 1))
        """of the game that each console plays; at last past the end"""
        self.observation, self.lives = np.zeros((*shape, *judge.spec.shape), np.uint8), np.zeros(shape, int)
        self.first = np.ones(shape, bool)
        self.sent: list[int] = []
        if self.is_playing():
            at_once(self._begin, range(len(machines)))

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
        if not self.sent:
            return
        self.arrays, (actions,) = self.judge.choose(self.arrays, self.observation, self.first)
        chosen = np.asarray(actions)
        for r in self.sent:
            self.machines[r].send(chosen[r])

    def _take(self, r: int) -> None:
        self.observation[r], reward, terminated, truncated, info = self.machines[r].recv()
        number = self.number[r]
        playing, over = number < self.episodes, terminated | truncated
        self.scores[r, number[playing]] += reward[playing]
        life_ends = self.judge.arcades[r].protocol.life_ends
        self.first[r] = over | ((info["lives"] < self.lives[r]) & life_ends)  # a trajectory ends where it does in training
        number[over] += 2 * self.judge.count
        self.lives[r] = info["lives"]


def judging_seed(seed: int, number: int) -> int:
    """Of an episode played by a trained agent: the second of the numbers drawn, since training begins its episodes by the first."""
    return int(np.random.SeedSequence([seed, number, 1]).generate_state(2)[1])


def _arcade(task: Task) -> Arcade:
    assert task.arcade is not None
    return task.arcade
