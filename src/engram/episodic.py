"""The episodic system that MBEC and MBEC++ share: the trajectory being lived, planning by memory, and the training of both models
(Sections 3.1 to 3.3, Algorithm 1)."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram import memory as mem
from engram import models
from engram import waiting as wt
from engram.models import RewardModel, Trajectory, TrajectoryModel
from engram.networks import MLP, choosable, descend, draw, fresh, lived, optimiser
from engram.options import Count, Positive, Probability
from engram.replay import Transition
from engram.schedule import Step, when
from engram.types import Spec


@dataclass(frozen=True)
class Episodic:
    """Options of the episodic system."""

    neighbours: Count = 15
    """K, how many memories a read or a write touches"""
    write_neighbours: Count | None = None
    """K_w, how many memories a write or a refinement touches; as many as a read where not given"""
    chunk: Count = 10
    """L, steps between two memories of one episode"""
    slots: Count = 3_000
    """N, how many memories are kept"""
    trajectory: Count = 16
    """H, length of a trajectory's vector"""
    key_dim: Count | None = None
    """length of the memory's keys, a fixed random linear map of the trajectory's vector; the vector itself where not given"""
    squared_distance: bool = False
    """whether the kernel takes the squared distance"""
    p_read: Probability = 0.7
    """probability of reading by the average rule, else by the best neighbour"""
    p_refine: Probability = 0.1
    """p_u, probability of refining the memory in a step; 0 for never"""
    write_rate: Probability = 0.5
    """alpha_w, how far a write or a refinement moves its neighbours"""
    forget: Literal["earliest", "unused"] = "earliest"
    """what gives way in a full memory: the earliest written, or what was used longest ago"""
    discount_memory: bool = True
    """whether the returns in memory are discounted"""
    trajectory_loss: Literal["recall", "prediction", "none"] = "recall"
    """what trains the trajectory model: TR loss, TP loss, or nothing"""
    p_recall: Probability = 0.5
    """p_rec, probability of training the trajectory model when a chunk is full"""
    cues: Count = 4
    """past steps that one TR loss recalls"""
    trajectory_rate: Positive = 5e-4
    """learning rate of the trajectory model"""
    reward_rate: Positive = 5e-4
    """learning rate of the reward model"""
    reward_hidden: Count = 32
    """width of the reward model"""
    reward_sees_trajectory: bool = False
    """whether the reward model also sees the trajectory"""
    gist: Count = 32
    """numbers that the models are told of an image, by a fixed random linear map"""
    gist_of: Literal["features", "pixels"] = "features"
    """of what: what the convolutions of the network that acts find, which means something else when they have learnt, or of the image
    itself, made small"""
    standard_gist: bool = True
    """whether what the models are told of an image is brought to mean 0 and deviation 1"""
    models_stop: Count | None = None
    """agent steps after which trajectory and reward model no longer learn; never where not given"""


class Mind(NamedTuple):
    """The state of the episodic system."""

    memory: mem.Memory
    trajectory: TrajectoryModel
    reward: RewardModel
    trajectory_optimiser: PyTree
    reward_optimiser: PyTree
    key_map: Float[Array, "H D"] | None
    tau: Trajectory
    """of each environment, after its last action"""
    before: Trajectory
    """of each environment, before its last action"""
    age: Int[Array, "E"]
    """t, steps that each environment's episode has lasted"""
    waiting: wt.Waiting
    recall_loss: Float[Array, ""]
    """of the last training of the trajectory model"""


def init(options: Episodic, spec: Spec, states: int, clip: float, key: Key[Array, ""]) -> Mind:
    models_key, map_key = jax.random.split(key)
    inputs = states + spec.actions + (options.trajectory if options.reward_sees_trajectory else 0)

    def build(key):
        trajectory = TrajectoryModel(states, spec.actions, options.trajectory, key)
        return trajectory, RewardModel(MLP((inputs, options.reward_hidden, 1), key))

    trajectory, reward = draw(build, models_key)
    key_map = None
    if options.key_dim is not None:
        key_map = jax.random.normal(map_key, (options.trajectory, options.key_dim)) / jnp.sqrt(options.trajectory)
    dim = options.key_dim or options.trajectory
    return Mind(
        memory=mem.empty(options.slots, dim),
        trajectory=trajectory,
        reward=reward,
        trajectory_optimiser=optimiser(options.trajectory_rate, clip).init(trajectory),
        reward_optimiser=optimiser(options.reward_rate, clip).init(reward),
        key_map=key_map,
        tau=fresh(spec.envs, options.trajectory),
        before=fresh(spec.envs, options.trajectory),
        age=jnp.zeros(spec.envs, jnp.int32),
        waiting=wt.empty(jnp.zeros((spec.envs, dim)), wt.places(spec.limit, options.chunk)),
        recall_loss=jnp.zeros(()),
    )


class Plan(NamedTuple):
    """What each action would lead to."""

    tau: Trajectory
    """[B A H], after the action"""
    reward: Float[Array, "B A"]


def imagine(mind: Mind, options: Episodic, state: Float[Array, "B S"], tau: Trajectory, actions: int) -> Plan:
    """tau'(a) = T_phi([s, a], tau) and r_phi(s, a) for every action."""
    return Plan(led_to(mind, state, tau, actions), rewards(mind, options, state, tau.h, actions))


def led_to(mind: Mind, state: Float[Array, "B S"], tau: Trajectory, actions: int) -> Trajectory:
    """[B A H], where every action leads."""
    each = jax.vmap(lambda state, tau, action: mind.trajectory(tau, models.pairs(state, action, actions)), in_axes=(None, None, 0))
    return jax.vmap(each, in_axes=(0, 0, None))(state, tau, jnp.arange(actions))


def reward(mind: Mind, options: Episodic, pair: Float[Array, "B X"], h: Float[Array, "B H"]) -> Float[Array, "B"]:
    """r_phi of pairs met on trajectories `h`."""
    return jax.vmap(mind.reward)(_reward_input(options, pair, h))


def rewards(mind: Mind, options: Episodic, state: Float[Array, "B S"], h: Float[Array, "B H"], actions: int) -> Float[Array, "B A"]:
    """r_phi of every action in states met on trajectories `h`."""
    each = jax.vmap(lambda action: reward(mind, options, models.pairs(state, jnp.full(len(state), action), actions), h), out_axes=1)
    return each(jnp.arange(actions))


def keys(mind: Mind, h: Float[Array, "*B H"]) -> Float[Array, "*B D"]:
    """The memory's key of a trajectory's vector."""
    return h if mind.key_map is None else h @ mind.key_map


def recall(mind: Mind, options: Episodic, tau: Float[Array, "Q D"]) -> mem.Neighbours:
    k = max(options.neighbours, options.write_neighbours or 0)
    return mem.recall(mind.memory, tau, k, options.squared_distance)


def read(mind: Mind, options: Episodic, near: mem.Neighbours, optimistic: Bool[Array, "#Q"] | bool = False) -> Float[Array, "Q"]:
    return mem.read(mind.memory, mem.first(near, options.neighbours), optimistic)


def is_optimistic(p_read: float, lot: Float[Array, "*U"]) -> Bool[Array, "*U"]:
    """Draws of the reading rule, one for a whole decision or batch: else `argmax` would compare unlike things."""
    return lot >= p_read


class Happened(NamedTuple):
    """What followed each environment's last action, and what it sees now."""

    state: Float[Array, "E S"]
    reward: Float[Array, "E"]
    done: Bool[Array, "E"]
    """the episode is over"""
    end: Bool[Array, "E"]
    """and nothing could have followed"""


def consider(
    mind: Mind, options: Episodic, spec: Spec, happened: Happened, gamma: float, step: Int[Array, ""], lots: Float[Array, "1+E"]
) -> tuple[Mind, Trajectory, Plan, Float[Array, "E A"]]:
    """One step of Algorithm 1 but for the choice: takes in what happened, plans (Eq. 6), refines (Eq. 3 and 4), writes one memory.

    Returns the trajectory so far, the plan, and Q_MBEC of each action. All reads and writes of the step share one search. `lots`, even
    numbers from 0 to 1, decide on the reading rule and on refining.
    """
    envs, actions = spec.envs, spec.actions
    is_memory = (mind.age > 0) & ((mind.age % options.chunk == 0) | happened.done)
    waiting = wt.accumulate(mind.waiting, happened.reward, gamma if options.discount_memory else 1.0)
    waiting = wt.append(waiting, keys(mind, mind.tau.h), is_memory)
    tau = lived(mind.tau, happened.done)
    plan = imagine(mind, options, happened.state, tau, actions)

    head = jnp.arange(envs), waiting.head
    queries = keys(mind, plan.tau.h).reshape(envs * actions, -1), keys(mind, tau.h), waiting.what[head], keys(mind, mind.tau.h)
    near = recall(mind, options, jnp.concatenate(queries))
    planned, present, oldest, reached = mem.split(near, (envs * actions, envs, envs, envs))
    q = plan.reward + gamma * read(mind, options, planned, is_optimistic(options.p_read, lots[0])).reshape(envs, actions)

    expected = read(mind, options, reached)  # what an episode that was cut would still have brought
    waiting = wt.close(waiting, happened.done, jnp.where(happened.end, 0.0, expected))
    is_ready = (waiting.count > 0) & ~waiting.is_open[head]

    writers = options.write_neighbours or options.neighbours
    is_refined = lots[1:] < options.p_refine
    memory = mem.refine(mind.memory, mem.first(present, writers), jnp.max(choosable(spec, q), axis=-1), options.write_rate, is_refined)
    if options.forget == "unused":
        memory = mem.touch(memory, mem.first(planned, options.neighbours), step)
    written = mem.first(oldest, writers), waiting.what[head], waiting.returns[head]
    memory = mem.write(memory, *written, options.write_rate, is_ready, step, options.forget)
    return mind._replace(memory=memory, waiting=wt.drop(waiting, is_ready)), tau, plan, q


def advance(mind: Mind, tau: Trajectory, plan: Plan, action: Int[Array, "E"], done: Bool[Array, "E"]) -> Mind:
    """The trajectory goes on by the action chosen."""
    return mind._replace(before=tau, tau=after(plan, action), age=jnp.where(done, 0, mind.age) + 1)


def after(plan: Plan, action: Int[Array, "B"]) -> Trajectory:
    """Where the actions chosen lead."""
    return jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), action], plan.tau)


class Experience(NamedTuple):
    """A row of replay: a transition with the trajectory before and after it."""

    transition: Transition
    before: Trajectory
    after: Trajectory
    gist: Float[Array, "*B G"] | None = None
    """of images, what the models are told of the state"""
    next_gist: Float[Array, "*B G"] | None = None


def told(experience: Experience) -> Float[Array, "*B S"]:
    """The state, as the models get it."""
    return experience.transition.state if experience.gist is None else experience.gist


def told_next(experience: Experience) -> Float[Array, "*B S"]:
    return experience.transition.next_state if experience.next_gist is None else experience.next_gist


def train_trajectory(
    mind: Mind,
    options: Episodic,
    spec: Spec,
    replay: Experience,
    clip: float,
    step: Int[Array, ""],
    key: Key[Array, ""],
    updates: int = 1,
) -> Mind:
    """Every L steps, with probability p_rec, one gradient step on the TR or TP loss of the episodes being lived; or several, each on those
    of a share of the environments.

    The steps are those of the run, not of the episode, so that all runs train at once.
    """
    if options.trajectory_loss == "none":
        return mind
    loss_of_one = models.recall_loss if options.trajectory_loss == "recall" else models.prediction_loss

    def loss(model, stretches, noise_keys):
        losses = jax.vmap(loss_of_one, in_axes=(None, 0, 0))(model, stretches, noise_keys)
        return jnp.sum(losses * stretches.usable) / jnp.maximum(jnp.sum(stretches.usable), 1)

    learnt = mind.trajectory, mind.trajectory_optimiser, mind.recall_loss
    shares = math.gcd(updates, spec.envs)

    def one(learnt, share):
        stretches, noise_keys, coin = share
        new = descend(optimiser(options.trajectory_rate, clip), loss, *learnt[:2], stretches, noise_keys)
        happens = coin & jnp.any(stretches.usable)
        return jax.tree.map(lambda new, old: jnp.where(happens, new, old), new, learnt), None

    def train():
        cue_key, noise_key, coin_key = jax.random.split(key, 3)
        stretches = _stretches(options, spec, mind.age - 1, replay, step, cue_key)
        of_envs = stretches, jax.random.split(noise_key, spec.envs)
        by_share = jax.tree.map(lambda x: x.reshape(shares, -1, *x.shape[1:]), of_envs)
        return lax.scan(one, learnt, (*by_share, jax.random.bernoulli(coin_key, options.p_recall, (shares,))))[0]

    model, state, last = when(lambda step: (step % options.chunk == 0) & is_learning(options, spec, step), step, train, lambda: learnt)
    return mind._replace(trajectory=model, trajectory_optimiser=state, recall_loss=last)


def is_learning(options: Episodic, spec: Spec, step: Step) -> Bool[Array, ""] | bool:
    """Whether trajectory and reward model still learn. The same for all runs."""
    return True if options.models_stop is None else step * spec.envs < options.models_stop


def _stretches(
    options: Episodic, spec: Spec, stored: Int[Array, "E"], replay: Experience, step: Int[Array, ""], key: Key[Array, ""]
) -> models.Stretch:
    """Of each environment's episode, whose last `stored` steps end replay: its newest chunk, and cues from anywhere in it."""
    rows, envs = replay.transition.action.shape[:2]
    # Of a film, the newest gist has no action yet, and lies in the oldest row.
    stored = jnp.minimum(stored, rows - (replay.gist is not None and replay.next_gist is None))
    each = jnp.arange(envs)[:, None]

    def pairs(iteration):
        rows_at = iteration % rows, each
        return models.pairs(told(replay)[rows_at], replay.transition.action[rows_at], spec.actions)

    length = max(options.chunk, 2)
    newest = step - length + jnp.arange(length)
    first = (step - jnp.minimum(length, stored)) % rows
    drawn = jax.random.uniform(key, (envs, options.cues)) * (stored - 1)[:, None]
    cues = (step - stored)[:, None] + drawn.astype(jnp.int32)
    return models.Stretch(
        tau=jax.tree.map(lambda x: x[first, jnp.arange(envs)], replay.before),
        chunk=pairs(jnp.broadcast_to(newest, (envs, length))),
        valid=newest >= (step - stored)[:, None],
        cues=pairs(cues),
        answers=pairs(cues + 1),
        usable=stored >= 2,
    )


def train_reward(
    mind: Mind,
    options: Episodic,
    spec: Spec,
    pair: Float[Array, "B X"],
    h: Float[Array, "B H"],
    reward: Float[Array, "B"],
    clip: float,
    step: Int[Array, ""],
) -> tuple[RewardModel, PyTree, Float[Array, ""]]:
    """The reward model and its optimiser after one gradient step (Eq. 5) on rewards of pairs met on trajectories `h`, and the loss before
    it."""
    adam = optimiser(options.reward_rate, clip)
    before = mind.reward, mind.reward_optimiser
    *learnt, loss = descend(adam, models.reward_loss, *before, _reward_input(options, pair, h), reward)
    learns = is_learning(options, spec, step)  # no branch: a GPU waits longer for one than this takes
    return *jax.tree.map(lambda new, old: jnp.where(learns, new, old), tuple(learnt), before), loss


def _reward_input(options: Episodic, pair: Float[Array, "*B X"], h: Float[Array, "*B H"]) -> Float[Array, "*B Y"]:
    return jnp.concatenate([pair, h], axis=-1) if options.reward_sees_trajectory else pair
