"""What several agents share: groups of options, exploration, the clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay as rp
from engram.errors import EngramError
from engram.networks import MLP, Seeing, choosable, encode, width
from engram.options import Count, Positive, Probability, Share, check_all
from engram.schedule import Step, when
from engram.types import Spec, TimeStep
from engram.vision import Convolutions, Vision, fitting, is_image


@dataclass(frozen=True)
class Common:
    """Options of every agent that learns."""

    gamma: Probability = 0.99
    """discount of the future"""
    scale_inputs: bool = False
    """map observations from their bounds to [-1, 1]"""
    stretch_inputs: bool = False
    """multiply only the numbers of an observation that are bound to stay smaller than 1, so that their larger bound becomes 1"""
    time_limit_ends: bool | None = None
    """whether an episode cut by its time limit counts as ended; as the task says where not given"""
    clip_rewards: bool = True
    """on Atari, clip rewards to [-1, 1]; scores never are"""

    def __post_init__(self):
        check_all(self)
        if self.scale_inputs and self.stretch_inputs:
            raise EngramError("scale_inputs and stretch_inputs are two ways of one thing: choose one of them.")


@dataclass(frozen=True)
class Sighted:
    """Options of agents other than the paper's whose networks see images."""

    convolutions: Convolutions = "nature"
    """what sees images: the three layers of Mnih et al. (2015), or the four of MBEC++'s paper; fewer and smaller ones where an image is
    too small"""


@dataclass(frozen=True)
class Exploring(Common):
    """Options of every agent that now and then takes a random action."""

    epsilon_start: Probability = 1.0
    """probability of a random action at the beginning"""
    epsilon_end: Probability = 0.01
    """probability of a random action in the end"""
    epsilon_decay: Positive = 500.0
    """agent steps in which what lies between the two falls to 1/e"""


@dataclass(frozen=True)
class Learning(Exploring):
    """Options of every agent that explores and learns from replay."""

    batch: Count = 32
    """transitions drawn from replay for one update"""
    replay: Count = 1_000_000
    """transitions kept"""
    learn_every: Count = 1
    """iterations between two updates"""
    learn_start: Count = 32
    """agent steps before the first update"""
    clip: Positive = 10.0
    """largest norm of a gradient"""


@dataclass(frozen=True)
class TemporalDifference(Learning):
    """Options of agents with a Q-network and its target copy."""

    learning_rate: Positive = 5e-4
    """of Adam, for the networks that learn by temporal differences"""
    anneal: bool = False
    """whether this learning rate falls to 0 in a straight line over the run"""
    hidden: Count = 144
    """width of the Q-network's hidden layers"""
    target_every: Count = 100
    """iterations between two copies of the networks to their targets"""


@dataclass(frozen=True)
class Bootstrapping(TemporalDifference):
    """Options of agents whose TD targets come from single transitions in replay."""

    updates: Count = 1
    """updates, one after another, in an iteration that learns, which so stands for as many with a share of the environments each: targets
    are copied so many times as often, and trajectories learnt share by share"""
    layers: Count = 2
    """hidden layers of the Q-network"""
    multi_step: Count = 1
    """n, rewards that a TD target gathers before it is estimated"""
    double: bool = False
    """whether the network chooses the next action and its target copy only values it (double Q-learning)"""
    target_rate: Share | None = None
    """the part of the way that target copies go towards the networks with each update, instead of all of it now and then"""
    act_by_target: bool = False
    """whether actions are chosen by the target copies, which stay as they are for a while; else all updates of an iteration lie between
    two actions of an environment, and change its mind"""
    convolutions: Convolutions = "paper"
    """what sees images: the paper's four layers, or the three of Mnih et al. (2015); fewer and smaller ones where an image is too small"""
    huber: bool = False
    """whether errors greater than 1 count by their size, not by its square"""
    adam_eps: Positive = 1e-8
    """what Adam adds to the size of past gradients before it divides by it: steps are smaller where these are smaller"""
    he_weights: bool = False
    """whether the Q-network's first weights are normal with variance 2 / inputs, and no bias (He et al. 2015), not even within
    1 / sqrt(inputs)"""


def see(options: Common, spec: Spec, observation: Float[Array, "E ..."]) -> Float[Array, "E S"]:
    """Observations as numbers."""
    return encode(spec, observation, options.scale_inputs, options.stretch_inputs)


def shown(options: Common, spec: Spec, observation: Shaped[Array, "E ..."]) -> Shaped[Array, "E S"]:
    """Observations as a network gets them: images in bytes, as they are stored."""
    return observation.reshape(observation.shape[0], -1) if is_image(spec) else see(options, spec, observation)


def eyes(spec: Spec, convolutions: Convolutions, key: Key[Array, ""]) -> Vision | None:
    """What sees observations that are images."""
    return Vision(spec.shape, fitting(spec.shape, convolutions), key, spec.brightest) if is_image(spec) else None


def q_network(options: Bootstrapping, spec: Spec, key: Key[Array, ""]) -> MLP | Seeing:
    """A network of what is seen, with a value for each action."""
    return network(spec, options.convolutions, (*[options.hidden] * options.layers, spec.actions), key)


def network(
    spec: Spec,
    convolutions: Convolutions,
    sizes: tuple[int, ...],
    key: Key[Array, ""],
    activation: Callable[[Array], Array] = jax.nn.relu,
) -> MLP | Seeing:
    """Layers of these sizes on what is seen; images by convolutions."""
    seeing = eyes(spec, convolutions, key)
    return MLP((width(spec), *sizes), key, activation) if seeing is None else Seeing(seeing, sizes, key, activation)


def blank_replay(options: Learning, spec: Spec) -> rp.Transition:
    """Room for transitions; of stacks of frames each frame is stored once."""
    nothing, action, seen = jnp.zeros(spec.envs), jnp.zeros(spec.envs, jnp.int32), None if spec.stack else nothing_seen(spec)
    return room_for(options, spec, rp.Transition(seen, action, nothing, seen, nothing, nothing))


def room_for(options: Learning, spec: Spec, row: Any) -> Any:
    """An empty replay of rows like this one, whose `state` is a film where there are stacks of frames."""
    if not spec.stack:
        return rp.empty(row, options.replay, spec.iterations)
    check_replay(options, spec, spec.stack + 2, "as many as a stack has frames and two more")
    rest = rp.empty(row._replace(state=None), options.replay, spec.iterations + spec.stack)
    return rest._replace(state=rp.film(spec.stack, spec.shape, *rest.action.shape))


def nothing_seen(spec: Spec) -> Shaped[Array, "E S"]:
    """What the environments showed before the first step."""
    return jnp.zeros((spec.envs, width(spec)), jnp.uint8 if is_image(spec) else jnp.float32)


def nothing_kept(spec: Spec) -> Shaped[Array, "E S"]:
    """The same, but nothing where a film has it already."""
    return jnp.zeros((spec.envs, 0)) if spec.stack else nothing_seen(spec)


def take_in(
    options: Learning,
    spec: Spec,
    replay: rp.Transition,
    seen: Shaped[Array, "E S"],
    action: Int[Array, "E"],
    timestep: TimeStep,
    step: Int[Array, ""],
) -> tuple[rp.Transition, Shaped[Array, "E S"]]:
    """Replay with what followed the last action, and what is seen now, as a Q-network gets it."""
    now = shown(options, spec, timestep.observation)
    end, over = ends(options, spec, timestep), timestep.terminated | timestep.truncated
    told = action, timestep.reward
    # Before the first step this fills the last row, which is overwritten before it can be drawn.
    if not spec.stack:
        row = rp.Transition(seen, *told, shown(options, spec, timestep.final), end.astype(jnp.float32), over.astype(jnp.float32))
        return rp.store(replay, row, step - 1), now
    row = rp.Transition(None, *told, None, end.astype(jnp.float32), over.astype(jnp.float32))
    rest = rp.store(replay._replace(state=None), row, step - 1)
    return rest._replace(state=rp.shoot(replay.state, timestep.observation, step)), now


def cut_ends(options: Common, spec: Spec) -> bool:
    """Whether an episode that was cut counts as ended: as the options say, else as the task does. Of stacks of frames, what followed a cut
    is not kept, so there it always does."""
    if spec.stack:
        return True
    return spec.limit_ends if options.time_limit_ends is None else options.time_limit_ends


def ends(options: Common, spec: Spec, timestep: TimeStep) -> Bool[Array, "E"]:
    """Where nothing follows the last action: at a termination and, if so chosen, at a time limit."""
    return timestep.terminated | timestep.truncated if cut_ends(options, spec) else timestep.terminated


def to_judge(options: Common, spec: Spec, timestep: TimeStep) -> Array:
    """What is seen now and, after it, what the last action led to. They differ only where an episode is over; where a cut counts as an end
    the second is worth nothing there, and left out: each is a search of the memory."""
    return timestep.observation if cut_ends(options, spec) else jnp.concatenate([timestep.observation, timestep.final])


def epsilon(options: Exploring, spec: Spec, step: Int[Array, ""]) -> Float[Array, ""]:
    decay = jnp.exp(-step * spec.envs / options.epsilon_decay)
    return options.epsilon_end + (options.epsilon_start - options.epsilon_end) * decay


def rate(options: Any, spec: Spec, step: Int[Array, ""]) -> Float[Array, ""] | float:
    """The learning rate at this iteration."""
    return options.learning_rate * jnp.maximum(1 - step / spec.iterations, 0.0) if options.anneal else options.learning_rate


def explore(q: Float[Array, "E A"], epsilon: Float[Array, ""], lots: Float[Array, "2 E"]) -> Int[Array, "E"]:
    """The best action or, with probability epsilon, any that is choosable; `lots` are even numbers from 0 to 1. Of equally good actions
    any is taken: a table that has seen no reward would else stand still."""
    lot, choice = lots
    chosen = jnp.where((lot < epsilon)[:, None], q > -jnp.inf, q == jnp.max(q, axis=-1, keepdims=True))
    count = jnp.cumsum(chosen, axis=-1)  # the first whose count exceeds a drawn number is taken
    drawn = jnp.minimum((choice * count[:, -1]).astype(jnp.int32), count[:, -1] - 1)
    return jnp.argmax(count > drawn[:, None], axis=-1).astype(jnp.int32)


def count(spec: Spec) -> Int[Array, ""] | int:
    """How many actions may be chosen."""
    return spec.actions if spec.allowed is None else spec.allowed


def greedy(spec: Spec, q: Float[Array, "E A"], epsilon: Float[Array, ""] | float, key: Key[Array, ""]) -> Int[Array, "E"]:
    """The best action, of equals the first; or, with probability epsilon, any that may be chosen."""
    best = jnp.argmax(choosable(spec, q), axis=-1).astype(jnp.int32)
    if isinstance(epsilon, float) and not epsilon:
        return best
    lot_key, any_key = jax.random.split(key)
    any_action = jax.random.randint(any_key, best.shape, 0, count(spec))
    return jnp.where(jax.random.uniform(lot_key, best.shape) < epsilon, any_action, best)


def every(period: int, step: Int[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` in every `period`-th iteration, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(step % period == 0, a, b), new, old)


def renewed(options: Bootstrapping, spec: Spec, step: Int[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """The target copies of networks. Those that see images are large: to branch costs less than to read both."""
    if options.target_rate is not None:
        part = jnp.where(due(options, spec, step), 1 - (1 - options.target_rate) ** options.updates, 0.0)
        return jax.tree.map(lambda a, b: b + part * (a - b), new, old)
    period = max(1, options.target_every // options.updates)
    return when(lambda step: step % period == 0, step, lambda: new, lambda: old) if is_image(spec) else every(period, step, new, old)


def due(options: Learning, spec: Spec, step: Step) -> Bool[Array, ""] | bool:
    """Whether this iteration learns."""
    return (step * spec.envs >= options.learn_start) & (step % options.learn_every == 0)


def repeated(
    options: Bootstrapping,
    prepare: Callable[[Float[Array, "U L"]], PyTree],
    update: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    learnt: PyTree,
    key: Key[Array, ""],
    lots: int,
):
    """As many updates as wanted, each of which gives what is learnt, and losses; of these the means. What no update changes, `prepare`
    finds for all of them at once, by so many even numbers from 0 to 1 for each: networks and memory are read once for all."""
    keys = key[None] if options.updates == 1 else jax.random.split(key, options.updates)
    ready = prepare(jax.vmap(lambda key: jax.random.uniform(key, (lots,)))(keys))
    ready = jax.tree.map(lambda x: x.reshape(options.updates, -1, *x.shape[1:]), ready)
    if options.updates == 1:
        return update(learnt, jax.tree.map(lambda x: x[0], ready))
    learnt, losses = lax.scan(update, learnt, ready)
    return learnt, jax.tree.map(jnp.mean, losses)


def check_neighbours(options: Any) -> None:
    """Raises if more neighbours are wanted than there are slots."""
    for name in ("neighbours", "write_neighbours"):
        if (getattr(options, name, None) or 0) > options.slots:
            raise EngramError(
                f"{name} ({getattr(options, name)}) must not exceed slots ({options.slots}): "
                "a memory has no more neighbours than slots; lower the one or raise the other."
            )


def check_replay(options: Learning, spec: Spec, rows: int, why: str) -> None:
    """Raises if replay cannot hold so many steps in a row of each environment."""
    if options.replay < rows * spec.envs:
        each = f" of each of {spec.envs} environments" if spec.envs > 1 else ""
        raise EngramError(
            f"replay ({options.replay}) must hold {rows} steps{each}, {why}: raise it to at least {rows * spec.envs}, or lower the other."
        )
