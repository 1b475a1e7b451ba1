"""Probe tasks with known values, scripted environments, and an agent that records its inputs."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from engram.envs import Task
from engram.networks import RecurrentNetwork
from engram.types import Agent, EnvStep, Spec, TimeStep

# Which probe a run has: a number and not code, so that one program trains them all.
ONE_STATE, TWO_STATES, OBSERVED_REWARD, ACTION_REWARD, DELAYED_REWARD = range(5)


class ProbeParams(NamedTuple):
    kind: float


class ProbeState(NamedTuple):
    t: jax.Array
    mark: jax.Array


@dataclass(frozen=True)
class Probe:
    """Five probe tasks; all observe the time and a mark.

    ONE_STATE has reward 1. TWO_STATES has reward 1 in its second state. OBSERVED_REWARD has a
    reward of 1 or -1 that the mark shows. ACTION_REWARD has reward 1 for action 1, else -1.
    DELAYED_REWARD has reward 1 at its third step if the first action was 1.
    """

    def reset(self, params, key):
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        mark = jnp.where(params.kind == OBSERVED_REWARD, sign, jnp.float32(0))
        return ProbeState(jnp.int32(0), mark), jnp.stack([jnp.float32(0), mark])

    def step(self, params, state, action, key):
        kind = params.kind.astype(jnp.int32)
        sign = jnp.where(action == 1, 1.0, -1.0)
        mark = jnp.where((kind == DELAYED_REWARD) & (state.t == 0), sign, state.mark)
        done = state.t + 1 >= jnp.array([1, 2, 1, 1, 3])[kind]
        delayed = jnp.where(done & (mark > 0), 1.0, 0.0)
        reward = jnp.stack([1.0, done * 1.0, state.mark, sign, delayed])[kind]
        reward = reward.astype(jnp.float32)  # a weak type would compile every program twice
        obs = jnp.stack([(state.t + 1).astype(jnp.float32), mark])
        return ProbeState(state.t + 1, mark), EnvStep(obs, reward, reward, done, jnp.array(False))


PROBES = [
    Task(f"probe-{kind}", "", lambda: None, jax_env=Probe(), env_params=ProbeParams(float(kind)))
    for kind in range(5)
]


def probe_spec(num_iterations, num_envs=1):
    return Spec((2,), 2, max_episode_steps=3, num_envs=num_envs, num_iterations=num_iterations)


@dataclass(frozen=True)
class CueEnv:
    """A cue of 1 or -1 is observed in the first of three steps, then only the time.

    The last action has reward 1 if it is the cue's, else -1. An agent without memory cannot know
    which, so its mean return is 0.
    """

    def reset(self, params, key):
        cue = jnp.where(jax.random.bernoulli(key), jnp.float32(1), jnp.float32(-1))
        return ProbeState(jnp.int32(0), cue), jnp.stack([jnp.float32(0), cue])

    def step(self, params, state, action, key):
        done = state.t == 2
        matched = jnp.where(action == 1, state.mark, -state.mark)
        reward = jnp.where(done, matched, jnp.float32(0))
        obs = jnp.stack([(state.t + 1).astype(jnp.float32), jnp.float32(0)])
        next_state = ProbeState(state.t + 1, state.mark)
        return next_state, EnvStep(obs, reward, reward, done, jnp.array(False))


CUE = Task("cue", "", lambda: None, jax_env=CueEnv(), env_params=ProbeParams(0.0))


def cue_returns(agent, state, spec):
    """Greedy returns of an agent in one episode of each cue, -1 and then 1."""
    cues = jnp.array([-1.0, 1.0])
    for t in range(3):
        obs = jnp.stack([jnp.full(2, float(t)), cues * (t == 0)], axis=-1)
        state, action = agent.act_greedy(state, spec, obs, jnp.full(2, t == 0), jax.random.key(0))
    return jnp.where(action == 1, cues, -cues)


@dataclass(frozen=True)
class Walk:
    """A walk to the left and to the right whose reward is half its position.

    It terminates three steps from its start and is truncated after six steps. It is deterministic,
    so it is the same in JAX and in Gymnasium.
    """

    def reset(self, params, key):
        return ProbeState(jnp.int32(0), jnp.float32(0)), jnp.zeros(2, jnp.float32)

    def step(self, params, state, action, key):
        t = state.t + 1
        position = state.mark + jnp.where(action == 1, jnp.float32(1), jnp.float32(-1))
        terminated = jnp.abs(position) >= 3
        obs = jnp.stack([position, t.astype(jnp.float32) / 4])
        reward = position / 2
        truncated = ~terminated & (t >= 6)
        return ProbeState(t, position), EnvStep(obs, reward, reward, terminated, truncated)


class GymWalk(gym.Env):
    """The same in Gymnasium."""

    observation_space = gym.spaces.Box(-math.inf, math.inf, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = self.position = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.position += 1 if action == 1 else -1
        obs = np.array([self.position, self.t / 4], np.float32)
        terminated = abs(self.position) >= 3
        return obs, self.position / 2, terminated, not terminated and self.t >= 6, {}


WALK = Task("walk", "", GymWalk, jax_env=Walk(), env_params=ProbeParams(0.0))


def episode_timesteps(*episodes):
    """Timesteps of one environment in episodes of (mark, rewards, is truncated).

    It observes the time and the mark. After the last comes an endless episode of mark 0.
    """

    def timestep(obs, reward=0.0, terminated=False, truncated=False, final=None):
        obs, final = (np.array([x], np.float32) for x in (obs, obs if final is None else final))
        flags = np.array([terminated]), np.array([truncated])
        return TimeStep(obs, np.array([reward], np.float32), *flags, final)

    marks = [mark for mark, _, _ in episodes] + [0.0]
    yield timestep((0, marks[0]))
    for number, (mark, rewards, is_truncated) in enumerate(episodes):
        for t, reward in enumerate(rewards, start=1):
            done, final = t == len(rewards), (t, mark)
            obs = (0, marks[number + 1]) if done else final
            yield timestep(obs, reward, done and not is_truncated, done and is_truncated, final)
    t = 0
    while True:
        t += 1
        yield timestep((t, 0.0))


def jit_step(agent, spec):
    """The agent's `step`, compiled, with a key for each step."""
    root = jax.random.key(9)
    return jax.jit(
        lambda state, timestep, step: agent.step(
            state, spec, timestep, step, jax.random.fold_in(root, step)
        )
    )


def rollout(step_function, state, timesteps, number):
    """States, actions and metrics of an agent in each of `number` steps, without learning."""
    states, actions, metrics = [], [], []
    for step, timestep in zip(range(number), timesteps, strict=False):
        state, action, step_metrics = step_function(state, timestep, jnp.int32(step))
        states.append(state)
        actions.append(int(action[0]))
        metrics.append({name: float(x) for name, x in step_metrics.items()})
    return states, actions, metrics


def constant_network(network, outputs):
    """The network with weights that give `outputs` for every input."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), network)
    is_recurrent = isinstance(network, RecurrentNetwork)
    last_bias = lambda net: net.head.bias if is_recurrent else net.layers[-1].bias  # noqa: E731
    return eqx.tree_at(last_bias, zeros, jnp.array(outputs, jnp.float32))


class TapeEnv(gym.Env):
    """The reward of step t is `rewards[t]`; after the last the episode terminates or is truncated.

    It observes its time and a number drawn at reset. `faults` maps the number of steps ever made to
    an exception, or to a function of (env, reward, done) that replaces the step's result.
    """

    def __init__(self, rewards=(1.0, 2.0, 3.0), truncate=False, faults=None, ignores_seed=False):
        self.observation_space = gym.spaces.Box(-math.inf, math.inf, (2,))
        self.action_space = gym.spaces.Discrete(2)
        self.rewards, self.truncate, self.faults = rewards, truncate, faults or {}
        self.ignores_seed = ignores_seed
        self.num_steps, self.seeds = 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        rng = np.random.default_rng() if self.ignores_seed else self.np_random
        self.number = rng.normal()
        return self.observation(), {}

    def observation(self):
        return np.array([self.t, self.number], np.float32)

    def step(self, action):
        self.num_steps += 1
        reward = self.rewards[self.t]
        self.t += 1
        done = self.t == len(self.rewards)
        if self.num_steps in self.faults:
            fault = self.faults[self.num_steps]
            if isinstance(fault, BaseException):
                raise fault
            return fault(self, reward, done)
        return self.observation(), reward, done and not self.truncate, done and self.truncate, {}


@dataclass(frozen=True)
class RecordingAgent(Agent):
    """An agent that always takes the same action and records what it receives."""

    action: int = 0

    def init(self, key, spec):
        shape = (spec.num_iterations, spec.num_envs)
        return {
            "observation": jnp.zeros((*shape, *spec.shape)),
            "reward": jnp.zeros(shape),
            "terminated": jnp.zeros(shape, bool),
            "truncated": jnp.zeros(shape, bool),
            "final_observation": jnp.zeros((*shape, *spec.shape)),
            "uniform": jnp.zeros(spec.num_iterations),
        }

    def step(self, state, spec, timestep, step, key):
        received = timestep._asdict() | {"uniform": jax.random.uniform(key)}
        state = {name: record.at[step].set(received[name]) for name, record in state.items()}
        actions = jnp.full(spec.num_envs, self.action)
        return state, actions, {"mean_reward": jnp.mean(timestep.reward)}

    def learn(self, state, spec, step, key):
        return state, {"step": step * 1.0}

    def act_greedy(self, state, spec, observation, episode_start, key, epsilon=0.0):
        return state, jnp.full(observation.shape[0], self.action)


class DriftVecEnv:
    """A vector environment like ALE's: a bright bar drifts to the left or to the right.

    An episode has four steps. Action 0 (left) or 1 (right) has reward 1 if it is the direction,
    which two frames show and one does not.
    """

    single_observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    single_action_space = gym.spaces.Discrete(2)
    EPISODE_STEPS = 4

    def __init__(self, num_envs):
        self.rngs = [np.random.default_rng()] * num_envs  # until a reset seeds them
        self.frames = np.zeros((num_envs, 4, 84, 84), np.uint8)
        self.position, self.direction, self.t = np.zeros((3, num_envs), int)

    def reset(self, seed, options=None):
        mask = np.ones(len(self.rngs), bool) if options is None else options["reset_mask"]
        for e, env_seed in zip(np.flatnonzero(mask).tolist(), seed, strict=True):
            self.rngs[e] = np.random.default_rng(int(env_seed))
            self.begin(e)
        return self.frames.copy(), {"lives": np.zeros(len(self.rngs), int)}

    def begin(self, e):
        self.position[e] = self.rngs[e].integers(28, 56)
        self.direction[e] = self.rngs[e].integers(2)
        self.t[e] = 0
        self.frames[e] = 0
        self.draw(e)

    def draw(self, e):
        self.frames[e] = np.roll(self.frames[e], -1, axis=0)
        self.frames[e, -1] = 0
        self.frames[e, -1, :, self.position[e] - 3 : self.position[e] + 3] = 255

    def send(self, actions):
        self.actions = np.array(actions)

    def recv(self):
        reward = (self.actions == self.direction).astype(float)
        done = self.t + 1 == self.EPISODE_STEPS
        for e in range(len(self.rngs)):
            if done[e]:
                self.begin(e)
            else:
                self.t[e] += 1
                self.position[e] += 16 * self.direction[e] - 8
                self.draw(e)
        info = {"lives": np.zeros(len(self.rngs), int)}
        return self.frames.copy(), reward, done, np.zeros_like(done), info

    def close(self):
        pass
