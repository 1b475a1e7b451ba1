"""Proximal policy optimisation (Schulman et al. 2017), with or without an LSTM."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay as rp
from engram.agents.shared import Common, Sighted, cut_ends, eyes, greedy, network, nothing_seen, rate, shown
from engram.errors import EngramError
from engram.networks import MLP, Recurrent, Seeing, descend, fresh, in_turn, lived, optimiser, width
from engram.options import Count, Positive, Probability, Range
from engram.returns import advantages
from engram.schedule import when
from engram.types import Spec, TimeStep


class Pair(NamedTuple):
    """Something of the policy and the same of the value."""

    actor: Any
    critic: Any


def run(networks: Pair, carried: Pair | None, states: Shaped[Array, "T B S"], first: Bool[Array, "T B"]):
    """After each of T states of B environments: what the LSTMs carry, log-probabilities of the actions, and the value."""
    if carried is None:
        logits, value = (jax.vmap(jax.vmap(network))(states) for network in networks)
    else:
        (actor, logits), (critic, value) = (network(c, states, first) for network, c in zip(networks, carried, strict=True))
        carried = Pair(actor, critic)
    return carried, jax.nn.log_softmax(logits), value[..., 0]


def run_once(networks: Pair, carried: Pair | None, state: Shaped[Array, "B S"]):
    """The same for one state of each environment."""
    return jax.tree.map(lambda x: x[0], run(networks, carried, state[None], jnp.zeros((1, state.shape[0]), bool)))


class Decision(NamedTuple):
    """What was seen and done in a step."""

    state: Shaped[Array, "*B S"]
    action: Int[Array, "*B"]
    log_p: Float[Array, "*B"]
    """of the action, when it was taken"""
    value: Float[Array, "*B"]
    carried: Pair | None
    """before the state was seen"""
    first: Bool[Array, "*B"]
    """whether an episode began there"""


class Row(NamedTuple):
    """A row of the rollout: a decision and what came of it."""

    decision: Decision
    reward: Float[Array, "*B"]
    """and, where an episode was cut, what was still to come"""
    done: Float[Array, "*B"]


class Sample(NamedTuple):
    """What the loss is taken on."""

    decision: Decision
    advantage: Float[Array, "*B"]


class State(NamedTuple):
    networks: Pair
    optimiser: PyTree
    rollout: Row
    last: Decision
    carried: Pair | None
    """after the last state seen"""
    metrics: dict[str, Float[Array, ""]]
    """of the last update"""


@dataclass(frozen=True)
class PPO(Sighted, Common):
    """Policy gradient that does not go further than the data allows, from several environments at once."""

    mixes_games: ClassVar[bool] = False

    learning_rate: Positive = 1e-3
    """of Adam, in the beginning"""
    anneal: bool = True
    """whether the learning rate falls to 0 in a straight line over the run"""
    rollout: Count = 256
    """agent steps, of all environments together, between two updates"""
    epochs: Count = 10
    """times that an update goes through them"""
    minibatches: Count = 4
    """parts that each time they are split into"""
    clip_range: Positive = 0.2
    """epsilon, how far the probability of an action may move from what it was, as a share of it"""
    clip_value: bool = False
    """whether the value, too, may not move further than that"""
    gae_decay: Probability = 0.95
    """lambda, how far an advantage looks ahead"""
    normalise: bool = True
    """whether the advantages of a minibatch are brought to mean 0 and deviation 1"""
    entropy_cost: Annotated[float, Range(0)] = 0.01
    """weight of the policy's entropy in the loss"""
    value_cost: Positive = 0.5
    """weight of the value's error in the loss"""
    clip: Positive = 0.5
    """largest norm of a gradient"""
    hidden: Count = 64
    """width of the hidden layers, two in each network or one before the LSTM"""
    recurrent: bool = False
    """whether an LSTM carries on what was seen"""
    lstm: Count = 64
    """its width"""
    sequence: Count = 16
    """steps through which its gradient goes back"""

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        self.check(spec)
        networks = self.build(key, spec)
        nothing, count = jnp.zeros(spec.envs), jnp.zeros(spec.envs, jnp.int32)
        carried = Pair(fresh(spec.envs, self.lstm), fresh(spec.envs, self.lstm)) if self.recurrent else None
        last = Decision(nothing_seen(spec), count, nothing, nothing, carried, jnp.ones(spec.envs, bool))
        rows = jax.tree.map(lambda x: jnp.zeros((self.rows(spec), *x.shape), x.dtype), Row(last, nothing, nothing))
        metrics = {name: jnp.zeros(()) for name in ("policy_loss", "value_loss", "entropy", "moved", "clipped")}
        return State(networks, optimiser(self.learning_rate, self.clip).init(networks), rows, last, carried, metrics)

    def build(self, key: Key[Array, ""], spec: Spec) -> Pair:
        """Orthogonal weights; the policy begins nearly even, since its last layer is small."""
        keys = jax.random.split(key)

        def one(outputs):
            if not self.recurrent:
                return network(spec, self.convolutions, (self.hidden, self.hidden, outputs), key, jnp.tanh)
            return Recurrent((width(spec), self.hidden, self.lstm, outputs), key, jnp.tanh, eyes(spec, self.convolutions, key))

        actor, critic = one(spec.actions), one(1)
        actor = orthogonal(actor, 0.01, keys[0])
        return Pair(actor, orthogonal(critic, 1.0, once_drawn(actor, keys[1])))

    @property
    def length(self) -> int:
        """Steps that must stay together: without an LSTM each stands for itself."""
        return self.sequence if self.recurrent else 1

    def rows(self, spec: Spec) -> int:
        """Iterations between two updates."""
        return self.rollout // spec.envs // self.length * self.length

    def check(self, spec: Spec) -> None:
        rows = self.rows(spec)
        if self.rollout < self.length * spec.envs:
            each = f"a sequence of {self.sequence} steps" if self.recurrent else "a step"
            remedy = f"raise rollout to at least {self.length * spec.envs}" + (" or lower sequence" if self.recurrent else "")
            raise EngramError(f"rollout ({self.rollout}) must hold {each} of each of the {spec.envs} environments: {remedy}.")
        if spec.iterations <= rows:
            raise EngramError(
                f"The run ends before its first rollout of {rows * spec.envs} steps can be learnt from: raise steps or lower rollout."
            )
        parts = rows * spec.envs // self.length
        if parts < self.minibatches:
            what = f"sequences of {self.sequence} steps" if self.recurrent else "steps"
            raise EngramError(
                f"A rollout of {parts} {what} cannot be split into {self.minibatches} minibatches: raise rollout or lower minibatches."
            )

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        seen = shown(self, spec, timestep.observation)
        done = timestep.terminated | timestep.truncated
        first = done | (step == 0)
        before = lived(state.carried, first)
        after, log_p, value = run_once(state.networks, before, seen)
        lot = jax.random.uniform(key, (spec.envs, 1))
        action = jnp.minimum(jnp.sum(jnp.cumsum(jnp.exp(log_p), axis=-1) < lot, axis=-1, dtype=jnp.int32), spec.actions - 1)
        taken = jnp.take_along_axis(log_p, action[:, None], axis=-1)[:, 0]

        reward = timestep.reward
        if not cut_ends(self, spec):
            led_to = shown(self, spec, timestep.final)
            _, _, still_to_come = run_once(state.networks, state.carried, led_to)
            reward += self.gamma * (timestep.truncated & ~timestep.terminated) * still_to_come
        row = Row(state.last, reward, done.astype(jnp.float32))
        rollout = rp.store(state.rollout, row, step - 1)
        last = Decision(seen, action, taken, value, before, first)
        metrics = {"value": jnp.mean(value)}
        return state._replace(rollout=rollout, last=last, carried=after), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        rows, as_before = self.rows(spec), (state.networks, state.optimiser, state.metrics)
        networks, optimiser_state, metrics = when(
            lambda step: (step > 0) & (step % rows == 0), step, lambda: self.update(state, spec, step, key), lambda: as_before
        )
        return state._replace(networks=networks, optimiser=optimiser_state, metrics=metrics), metrics

    def update(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        """Several times through the rollout, in minibatches drawn anew each time."""
        decision, reward, done = state.rollout
        advantage = advantages(reward, decision.value, done, state.last.value, self.gamma, self.gae_decay)
        samples = sequences(Sample(decision, advantage), self.length)
        count = samples.advantage.shape[1]
        size = count // self.minibatches
        order = jnp.argsort(jax.random.uniform(key, (self.epochs, count)), axis=-1)[:, : size * self.minibatches]
        adam = optimiser(rate(self, spec, step), self.clip, eps=1e-5)

        def through(learnt, samples, order):
            def one(learnt, chosen):
                batch = jax.tree.map(lambda x: x.at[:, chosen].get(mode="promise_in_bounds"), samples)
                networks, optimiser_state, (_, metrics) = descend(adam, self.loss, *learnt, batch, has_aux=True)
                return (networks, optimiser_state), metrics

            return lax.scan(one, learnt, order)

        data = (state.networks, state.optimiser), samples, order.reshape(-1, size)
        learnt, metrics = in_turn(through, *data) if self.recurrent else through(*data)
        return *learnt, jax.tree.map(jnp.mean, metrics)

    def loss(self, networks: Pair, batch: Sample) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The clipped objective (Eq. 9), and what it is made of."""
        decision, advantage = batch
        carried = jax.tree.map(lambda x: x[0], decision.carried)
        _, log_p, value = run(networks, carried, decision.state, decision.first)
        taken = jnp.take_along_axis(log_p, decision.action[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(taken - decision.log_p)
        target = advantage + decision.value
        if self.normalise:
            advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
        held = jnp.clip(ratio, 1 - self.clip_range, 1 + self.clip_range)
        policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, held * advantage))
        error = (value - target) ** 2
        if self.clip_value:
            near = decision.value + jnp.clip(value - decision.value, -self.clip_range, self.clip_range)
            error = jnp.maximum(error, (near - target) ** 2)
        value_loss = 0.5 * jnp.mean(error)
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=-1))
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "moved": jnp.mean(ratio - 1 - jnp.log(ratio)),  # an estimate of the divergence from the policy that acted
            "clipped": jnp.mean(jnp.abs(ratio - 1) > self.clip_range),
        }
        return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, metrics

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        before = lived(state.carried, first)
        carried, log_p, _ = run_once(state.networks, before, shown(self, spec, observation))
        return state._replace(carried=carried), greedy(spec, log_p, epsilon, key)


def sequences(rows: PyTree, length: int) -> PyTree:
    """Rows [T E ...] as sequences [length, T / length * E, ...]."""

    def cut(x):
        parts = x.reshape(-1, length, *x.shape[1:])
        return jnp.moveaxis(parts, 1, 0).reshape(length, -1, *x.shape[2:])

    return jax.tree.map(cut, rows)


def orthogonal(network: MLP | Seeing | Recurrent, last: float, key: Key[Array, ""]) -> PyTree:
    """The network with orthogonal weights, of gain sqrt(2) but for the last layer, and no biases."""
    leaves, tree = jax.tree.flatten(network)
    final = max(i for i, x in enumerate(leaves) if x.ndim == 2)
    gains = [last if i == final else 2**0.5 for i in range(len(leaves))]
    drawn: list[Array] = []
    for x, gain, own in zip(leaves, gains, jax.random.split(key, len(leaves)), strict=True):
        drawn.append(jax.nn.initializers.orthogonal(gain)(once_drawn(drawn, own), x.shape) if x.ndim == 2 else jnp.zeros_like(x))
    return jax.tree.unflatten(tree, drawn)


def once_drawn(drawn: PyTree, key: Key[Array, ""]) -> Key[Array, ""]:
    """The same key, but not before all this is drawn: of large orthogonal matrices JAX 0.10 draws one at a time on a CPU, or hangs."""
    never = jnp.any(jnp.array([jnp.isnan(x.ravel()[0]) for x in jax.tree.leaves(drawn)], bool))  # which no compiler can know
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.where(never, data + 1, data))
