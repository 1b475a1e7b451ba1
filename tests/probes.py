"""Tiny tasks whose values are known, environments with a script, and an agent that keeps a diary."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from engram.networks import Recurrent
from engram.tasks import Task
from engram.types import Outcome, Spec, TimeStep

# Which probe a run is given; numbers and not code, so that one program trains them all.
ONE_STATE, TWO_STATES, SEEN_REWARD, CHOSEN_REWARD, TWO_ARMS = range(5)


class Kind(NamedTuple):
    kind: float


class Place(NamedTuple):
    t: jax.Array
    mark: jax.Array


@dataclass(frozen=True)
class Probe:
    """One state of reward 1; two states, the second of reward 1; a reward of +1 or -1 that is seen before; one that is chosen;
    and two arms, of which the second brings 1, but three steps later. All see their time and a mark."""

    def reset(self, params, key):
        mark = jnp.where(params.kind == SEEN_REWARD, jnp.where(jax.random.bernoulli(key), 1.0, -1.0), jnp.float32(0))
        return Place(jnp.int32(0), mark), jnp.stack([jnp.float32(0), mark])

    def step(self, params, place, action, key):
        kind = params.kind.astype(jnp.int32)
        sign = jnp.where(action == 1, 1.0, -1.0)
        mark = jnp.where((kind == TWO_ARMS) & (place.t == 0), sign, place.mark)
        over = place.t + 1 >= jnp.array([1, 2, 1, 1, 3])[kind]
        reward = jnp.stack([1.0, over * 1.0, place.mark, sign, jnp.where(over & (mark > 0), 1.0, 0.0)])[kind]
        seen = jnp.stack([(place.t + 1).astype(jnp.float32), mark])
        reward = reward.astype(jnp.float32)  # a weak type would compile every program twice
        return Place(place.t + 1, mark), Outcome(seen, reward, reward, over, jnp.array(False))


PROBES = [Task(f"probe-{kind}", "", lambda: None, dynamics=Probe(), params=Kind(float(kind))) for kind in range(5)]


def probe_spec(iterations, envs=1):
    return Spec((2,), 2, limit=3, envs=envs, iterations=iterations)


@dataclass(frozen=True)
class Cue:
    """A cue of +1 or -1 is seen in the first of three steps, with equal chances; then only the time. The last action brings 1 if it is
    the cue's, else -1. Without a memory nobody can tell at the last step which it was, so whatever is done there brings 0 on average."""

    def reset(self, params, key):
        cue = jnp.where(jax.random.bernoulli(key), jnp.float32(1), jnp.float32(-1))
        return Place(jnp.int32(0), cue), jnp.stack([jnp.float32(0), cue])

    def step(self, params, place, action, key):
        over = place.t == 2
        reward = jnp.where(over, jnp.where(action == 1, place.mark, -place.mark), jnp.float32(0))
        seen = jnp.stack([(place.t + 1).astype(jnp.float32), jnp.float32(0)])
        return Place(place.t + 1, place.mark), Outcome(seen, reward, reward, over, jnp.array(False))


CUE = Task("cue", "", lambda: None, dynamics=Cue(), params=Kind(0.0))


def recalls(agent, state, spec):
    """The greedy returns of an agent in an episode of each cue, -1 and then +1."""
    cues = jnp.array([-1.0, 1.0])
    for t in range(3):
        seen = jnp.stack([jnp.full(2, float(t)), cues * (t == 0)], axis=-1)
        state, action = agent.play(state, spec, seen, jnp.full(2, t == 0), jax.random.key(0))
    return jnp.where(action == 1, cues, -cues)


@dataclass(frozen=True)
class Walk:
    """Steps to the left and to the right, seen and paid by the place one comes to. It ends three places away, and is cut after six
    steps. Nothing in it is drawn, so it is the same in JAX and in Gymnasium."""

    def reset(self, params, key):
        return Place(jnp.int32(0), jnp.float32(0)), jnp.zeros(2, jnp.float32)

    def step(self, params, place, action, key):
        t, mark = place.t + 1, place.mark + jnp.where(action == 1, jnp.float32(1), jnp.float32(-1))
        over = jnp.abs(mark) >= 3
        seen = jnp.stack([mark, t.astype(jnp.float32) / 4])
        return Place(t, mark), Outcome(seen, mark / 2, mark / 2, over, ~over & (t >= 6))


class Walking(gym.Env):
    """The same in Gymnasium."""

    observation_space = gym.spaces.Box(-math.inf, math.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.mark = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.mark += 1 if action == 1 else -1
        over = abs(self.mark) >= 3
        return np.array([self.mark, self.t / 4], np.float32), self.mark / 2, over, not over and self.t >= 6, {}


WALK = Task("walk", "", Walking, dynamics=Walk(), params=Kind(0.0))


def episodes(*lived):
    """What one environment answers in episodes of a mark, rewards, and whether they are cut; it shows its time and the mark. Behind the
    last, another of mark 0 that lasts as long as it is looked at."""

    def told(seen, reward=0.0, end=False, cut=False, final=None):
        seen, final = (np.array([x], np.float32) for x in (seen, seen if final is None else final))
        return TimeStep(seen, np.array([reward], np.float32), np.array([end]), np.array([cut]), final)

    marks = [mark for mark, _, _ in lived] + [0.0]
    yield told((0, marks[0]))
    for number, (mark, rewards, is_cut) in enumerate(lived):
        for t, reward in enumerate(rewards, start=1):
            over, final = t == len(rewards), (t, mark)
            yield told((0, marks[number + 1]) if over else final, reward, over and not is_cut, over and is_cut, final)
    t = 0
    while True:
        t += 1
        yield told((t, 0.0))


def actor(agent, spec):
    """Its `act`, compiled, with a key for each step."""
    return jax.jit(lambda state, told, step: agent.act(state, spec, told, step, jax.random.fold_in(jax.random.key(9), step)))


def act_through(act, state, timesteps, number):
    """What an agent knows, did and said in each step, when it only acts and does not learn."""
    states, actions, metrics = [], [], []
    for step, timestep in zip(range(number), timesteps, strict=False):
        state, action, said = act(state, timestep, jnp.int32(step))
        states.append(state)
        actions.append(int(action[0]))
        metrics.append({name: float(x) for name, x in said.items()})
    return states, actions, metrics


def constant(network, outputs):
    """A network that gives `outputs` whatever it sees."""
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape), network)
    last = (lambda net: net.head.bias) if isinstance(network, Recurrent) else (lambda net: net.layers[-1].bias)
    return eqx.tree_at(last, blank, jnp.array(outputs, jnp.float32))


class Tape(gym.Env):
    """An environment with a script: the reward of step t is `rewards[t]`; after the last it ends, or is cut. It shows its time
    and a number drawn at reset. `breaks` maps the steps ever made to what happens instead."""

    def __init__(self, rewards=(1.0, 2.0, 3.0), cut=False, breaks=None, forgetful=False):
        self.observation_space = gym.spaces.Box(-math.inf, math.inf, (2,))
        self.action_space = gym.spaces.Discrete(2)
        self.rewards, self.cut, self.breaks, self.forgetful = rewards, cut, breaks or {}, forgetful
        self.made, self.seeds = 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        self.drawn = np.random.default_rng().normal() if self.forgetful else self.np_random.normal()
        return self.seen(), {}

    def seen(self):
        return np.array([self.t, self.drawn], np.float32)

    def step(self, action):
        self.made += 1
        reward = self.rewards[self.t]
        self.t += 1
        over = self.t == len(self.rewards)
        if self.made in self.breaks:
            answer = self.breaks[self.made]
            if isinstance(answer, Exception):
                raise answer
            return answer(self, reward, over)
        return self.seen(), reward, over and not self.cut, over and self.cut, {}


@dataclass(frozen=True)
class Diary:
    """An agent that always does the same, and writes down all it is told."""

    action: int = 0

    def init(self, key, spec):
        shape = (spec.iterations, spec.envs)
        return {
            "observation": jnp.zeros((*shape, *spec.shape)),
            "reward": jnp.zeros(shape),
            "terminated": jnp.zeros(shape, bool),
            "truncated": jnp.zeros(shape, bool),
            "final": jnp.zeros((*shape, *spec.shape)),
            "lot": jnp.zeros(spec.iterations),
        }

    def act(self, state, spec, timestep, step, key):
        told = timestep._asdict() | {"lot": jax.random.uniform(key)}
        state = {name: page.at[step].set(told[name]) for name, page in state.items()}
        return state, jnp.full(spec.envs, self.action), {"mean_reward": jnp.mean(timestep.reward)}

    def learn(self, state, spec, step, key):
        return state, {"step": step * 1.0}

    def play(self, state, spec, observation, first, key, epsilon=0.0):
        return state, jnp.full(observation.shape[0], self.action)


class Drift:
    """A vector of consoles with a game of our own: a bright bar drifts to the left or to the right for four steps, from somewhere in the
    middle. The action 0 or 1 that is its direction brings 1. One frame does not tell it, two do. ALE's vector environments are spoken to
    like this."""

    single_observation_space, single_action_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(2)
    STEPS = 4

    def __init__(self, count):
        self.rngs = [np.random.default_rng()] * count  # until a reset seeds them
        self.frames = np.zeros((count, 4, 84, 84), np.uint8)
        self.at, self.direction, self.age = np.zeros((3, count), int)

    def reset(self, seed, options=None):
        which = np.flatnonzero(np.ones(len(self.rngs), bool) if options is None else options["reset_mask"])
        for e, own in zip(which.tolist(), seed, strict=True):
            self.rngs[e] = np.random.default_rng(int(own))
            self.begin(e)
        return self.frames.copy(), {"lives": np.zeros(len(self.rngs), int)}

    def begin(self, e):
        self.at[e], self.direction[e], self.age[e] = self.rngs[e].integers(28, 56), self.rngs[e].integers(2), 0
        self.frames[e] = 0
        self.show(e)

    def show(self, e):
        self.frames[e] = np.roll(self.frames[e], -1, axis=0)
        self.frames[e, -1] = 0
        self.frames[e, -1, :, self.at[e] - 3 : self.at[e] + 3] = 255

    def send(self, actions):
        self.actions = np.array(actions)

    def recv(self):
        reward, over = (self.actions == self.direction).astype(float), self.age + 1 == self.STEPS
        for e in range(len(self.rngs)):
            if over[e]:
                self.begin(e)
            else:
                self.age[e] += 1
                self.at[e] += 16 * self.direction[e] - 8
                self.show(e)
        return self.frames.copy(), reward, over, np.zeros_like(over), {"lives": np.zeros(len(self.rngs), int)}

    def close(self):
        pass
