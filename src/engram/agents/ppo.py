"""Proximal policy optimization (Schulman et al. 2017), with or without an LSTM."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig
from engram.batching import sequential_over_runs
from engram.config import Count, Positive, Probability, Range
from engram.encoders import EncoderName, make_encoder
from engram.errors import EngramError
from engram.networks import (
    Network,
    RecurrentNetwork,
    make_network,
    obs_size,
    reset_where,
    zero_state,
)
from engram.optim import gradient_step, make_optimizer
from engram.periodic import periodically
from engram.targets import generalized_advantages
from engram.types import Metrics, Spec, TimeStep

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class ActorCritic(NamedTuple):
    """Networks, or LSTM states, of the policy and of the value."""

    actor: Any
    critic: Any


class PolicyStep(NamedTuple):
    """Observation, action, and the outputs of the networks for them."""

    obs: Shaped[Array, "*B S"]
    action: Int[Array, "*B"]
    log_prob: Float[Array, "*B"]
    value: Float[Array, "*B"]
    lstm_state: ActorCritic | None
    """before the observation"""
    episode_start: Bool[Array, "*B"]


class RolloutStep(NamedTuple):
    """One step of the rollout."""

    decision: PolicyStep
    reward: Float[Array, "*B"]
    """with the discounted value of the next state where an episode was truncated"""
    done: Float[Array, "*B"]


class Sample(NamedTuple):
    """What the loss is computed on."""

    decision: PolicyStep
    advantage: Float[Array, "*B"]


class State(NamedTuple):
    networks: ActorCritic
    opt_state: PyTree
    rollout: RolloutStep
    last: PolicyStep
    lstm_state: ActorCritic | None
    """after the current observation"""
    metrics: Metrics
    """of the last update"""


@dataclass(frozen=True)
class PPO(CommonConfig):
    """Clipped policy gradients from several environments at once."""

    supports_action_mask: ClassVar[bool] = False

    learning_rate: Positive = 1e-3
    """of Adam, at the start"""
    anneal_lr: bool = True
    """decay the learning rate linearly to 0 over the run"""
    num_steps: Count = 256
    """environment steps, of all environments together, between two updates"""
    update_epochs: Count = 10
    """passes over the rollout per update"""
    num_minibatches: Count = 4
    """minibatches per epoch"""
    clip_coef: Positive = 0.2
    """epsilon, largest relative change of an action's probability"""
    clip_vloss: bool = False
    """clip the change of the value too"""
    gae_lambda: Probability = 0.95
    """lambda of generalized advantage estimation"""
    norm_adv: bool = True
    """normalize the advantages of a minibatch"""
    ent_coef: Annotated[float, Range(0)] = 0.01
    """weight of the entropy in the loss"""
    vf_coef: Positive = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """largest norm of a gradient"""
    hidden_size: Count = 64
    """units of the hidden layers, two in each network or one before the LSTM"""
    encoder: EncoderName = "nature"
    """for images: the paper's four convolutions, the three of Mnih et al. (2015), or the residual
    network of IMPALA with once, twice or four times its channels"""
    recurrent: bool = False
    """use an LSTM"""
    lstm_size: Count = 64
    """units of the LSTM"""
    sequence_length: Count = 16
    """steps of backpropagation through time"""

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        self.check(spec)
        networks = self.make_networks(key, spec)
        zeros, action = jnp.zeros(spec.num_envs), jnp.zeros(spec.num_envs, jnp.int32)
        lstm_state = None
        if self.recurrent:
            zero = zero_state(spec.num_envs, self.lstm_size)
            lstm_state = ActorCritic(zero, zero)
        episode_start = jnp.ones(spec.num_envs, bool)
        last = PolicyStep(common.zero_obs(spec), action, zeros, zeros, lstm_state, episode_start)
        rows = self.rollout_length(spec)
        rollout = jax.tree.map(
            lambda x: jnp.zeros((rows, *x.shape), x.dtype), RolloutStep(last, zeros, zeros)
        )
        return State(
            networks=networks,
            opt_state=make_optimizer(self.learning_rate, self.max_grad_norm).init(networks),
            rollout=rollout,
            last=last,
            lstm_state=lstm_state,
            metrics={name: jnp.zeros(()) for name in METRICS},
        )

    def make_networks(self, key: Key[Array, ""], spec: Spec) -> ActorCritic:
        """Orthogonal weights; the policy starts nearly uniform, since its last layer is small."""
        keys = jax.random.split(key)
        actor = orthogonal(self.make_one(spec, spec.num_actions, key), 0.01, keys[0])
        critic = self.make_one(spec, 1, key)
        return ActorCritic(actor, orthogonal(critic, 1.0, after_drawing(actor, keys[1])))

    def make_one(self, spec: Spec, outputs: int, key: Key[Array, ""]) -> PyTree:
        """A network with `outputs` outputs."""
        if not self.recurrent:
            sizes = self.hidden_size, self.hidden_size, outputs
            return make_network(spec, self.encoder, sizes, key, jnp.tanh)
        sizes = obs_size(spec), self.hidden_size, self.lstm_size, outputs
        return RecurrentNetwork(sizes, key, jnp.tanh, make_encoder(spec, self.encoder, key))

    @property
    def steps_together(self) -> int:
        """Steps that a minibatch must not separate."""
        return self.sequence_length if self.recurrent else 1

    def rollout_length(self, spec: Spec) -> int:
        """Iterations between two updates."""
        return self.num_steps // spec.num_envs // self.steps_together * self.steps_together

    def check(self, spec: Spec) -> None:
        """Raises if the rollout does not fit environments, minibatches or the run."""
        rows = self.rollout_length(spec)
        if not rows:
            each = f"a sequence of {self.sequence_length} steps" if self.recurrent else "a step"
            remedy = f"raise it to at least {self.steps_together * spec.num_envs}"
            remedy += " or lower sequence_length" if self.recurrent else ""
            raise EngramError(
                f"num_steps ({self.num_steps}) must hold {each} of each of the {spec.num_envs} "
                f"environments: {remedy}."
            )
        if spec.num_iterations <= rows:
            raise EngramError(
                f"The run ends before its first rollout of {rows * spec.num_envs} steps: raise "
                "steps or lower num_steps."
            )
        count = rows * spec.num_envs // self.steps_together
        if count < self.num_minibatches:
            unit = f"sequences of {self.sequence_length} steps" if self.recurrent else "steps"
            raise EngramError(
                f"A rollout of {count} {unit} cannot be split into {self.num_minibatches} "
                "minibatches: raise num_steps or lower num_minibatches."
            )

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        obs = common.network_input(self, spec, timestep.observation)
        episode_start = timestep.done | (step == 0)
        before = reset_where(state.lstm_state, episode_start)
        after, log_probs, value = forward_one(state.networks, before, obs)
        uniform = jax.random.uniform(key, (spec.num_envs, 1))
        below = jnp.cumsum(jnp.exp(log_probs), axis=-1) < uniform
        action = jnp.minimum(jnp.sum(below, axis=-1, dtype=jnp.int32), spec.num_actions - 1)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]

        reward = timestep.reward
        if not common.truncation_ends(self, spec):
            reached = common.network_input(self, spec, timestep.final_observation)
            _, _, next_value = forward_one(state.networks, state.lstm_state, reached)
            reward += self.gamma * (timestep.truncated & ~timestep.terminated) * next_value
        row = RolloutStep(state.last, reward, timestep.done.astype(jnp.float32))
        rollout = replay_buffer.add(state.rollout, row, step - 1)
        last = PolicyStep(obs, action, log_prob, value, before, episode_start)
        state = state._replace(rollout=rollout, last=last, lstm_state=after)
        return state, action, {"value": jnp.mean(value)}

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        rows = self.rollout_length(spec)
        networks, opt_state, metrics = periodically(
            lambda step: (step > 0) & (step % rows == 0),
            step,
            lambda: self.update(state, spec, step, key),
            lambda: (state.networks, state.opt_state, state.metrics),
        )
        state = state._replace(networks=networks, opt_state=opt_state, metrics=metrics)
        return state, metrics

    def update(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        """All epochs over the rollout, in minibatches drawn anew each time."""
        decision, reward, done = state.rollout
        advantage = generalized_advantages(
            reward, decision.value, done, state.last.value, self.gamma, self.gae_lambda
        )
        samples = to_sequences(Sample(decision, advantage), self.steps_together)
        count = samples.advantage.shape[1]
        size = count // self.num_minibatches
        order = jnp.argsort(jax.random.uniform(key, (self.update_epochs, count)), axis=-1)
        order = order[:, : size * self.num_minibatches].reshape(-1, size)
        learning_rate = common.learning_rate_schedule(self, spec, step)

        def all_epochs(networks, opt_state, samples, order, learning_rate):
            optimizer = make_optimizer(learning_rate, self.max_grad_norm, eps=1e-5)

            def one_minibatch(params, chosen):
                batch = jax.tree.map(
                    lambda x: x.at[:, chosen].get(mode="promise_in_bounds"), samples
                )
                networks, opt_state, (_, metrics) = gradient_step(
                    optimizer, self.loss_fn, *params, batch, has_aux=True
                )
                return (networks, opt_state), metrics

            return lax.scan(one_minibatch, (networks, opt_state), order)

        data = state.networks, state.opt_state, samples, order, jnp.asarray(learning_rate)
        if self.recurrent:
            params, metrics = sequential_over_runs(all_epochs, *data)
        else:
            params, metrics = all_epochs(*data)
        return *params, jax.tree.map(jnp.mean, metrics)

    def loss_fn(self, networks: ActorCritic, batch: Sample) -> tuple[Float[Array, ""], Metrics]:
        """The clipped objective (Eq. 9), and its parts."""
        decision, advantage = batch
        lstm_state = jax.tree.map(lambda x: x[0], decision.lstm_state)
        _, log_probs, value = forward(networks, lstm_state, decision.obs, decision.episode_start)
        log_prob = jnp.take_along_axis(log_probs, decision.action[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(log_prob - decision.log_prob)
        target = advantage + decision.value
        if self.norm_adv:
            advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
        clipped = jnp.clip(ratio, 1 - self.clip_coef, 1 + self.clip_coef)
        policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
        error = (value - target) ** 2
        if self.clip_vloss:
            change = jnp.clip(value - decision.value, -self.clip_coef, self.clip_coef)
            error = jnp.maximum(error, (decision.value + change - target) ** 2)
        value_loss = 0.5 * jnp.mean(error)
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
        metrics: Metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": jnp.mean(ratio - 1 - jnp.log(ratio)),
            "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > self.clip_coef),
        }
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy, metrics

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        before = reset_where(state.lstm_state, episode_start)
        obs = common.network_input(self, spec, observation)
        lstm_state, log_probs, _ = forward_one(state.networks, before, obs)
        return state._replace(lstm_state=lstm_state), common.greedy_action(
            spec, log_probs, epsilon, key
        )

    def policy_state(self, state: State) -> State:
        return state._replace(opt_state=None, rollout=None, last=None)


def forward(
    networks: ActorCritic,
    lstm_state: ActorCritic | None,
    obs: Shaped[Array, "T B S"],
    episode_start: Bool[Array, "T B"],
) -> tuple[ActorCritic | None, Float[Array, "T B A"], Float[Array, "T B"]]:
    """LSTM states after each observation, log-probabilities of the actions, and values."""
    if lstm_state is None:
        logits, value = (jax.vmap(jax.vmap(network))(obs) for network in networks)
    else:
        actor, logits = networks.actor(lstm_state.actor, obs, episode_start)
        critic, value = networks.critic(lstm_state.critic, obs, episode_start)
        lstm_state = ActorCritic(actor, critic)
    return lstm_state, jax.nn.log_softmax(logits), value[..., 0]


def forward_one(
    networks: ActorCritic, lstm_state: ActorCritic | None, obs: Shaped[Array, "B S"]
) -> tuple[ActorCritic | None, Float[Array, "B A"], Float[Array, "B"]]:
    """Outputs and LSTM states of a network for one observation of each environment."""
    no_start = jnp.zeros((1, obs.shape[0]), bool)
    return jax.tree.map(lambda x: x[0], forward(networks, lstm_state, obs[None], no_start))


def to_sequences(rows: PyTree, length: int) -> PyTree:
    """Rows [T E ...] as sequences [length, T / length * E, ...]."""

    def one(x):
        parts = x.reshape(-1, length, *x.shape[1:])
        return jnp.moveaxis(parts, 1, 0).reshape(length, -1, *x.shape[2:])

    return jax.tree.map(one, rows)


def orthogonal(
    network: Network | RecurrentNetwork, last_gain: float, key: Key[Array, ""]
) -> PyTree:
    """The network with orthogonal weights, of gain sqrt(2) but for the last layer, and bias 0."""
    leaves, tree = jax.tree.flatten(network)
    last = max(i for i, x in enumerate(leaves) if x.ndim == 2)
    drawn: list[Array] = []
    for i, (x, own_key) in enumerate(zip(leaves, jax.random.split(key, len(leaves)), strict=True)):
        if x.ndim == 2:
            initializer = jax.nn.initializers.orthogonal(last_gain if i == last else 2**0.5)
            drawn.append(initializer(after_drawing(drawn, own_key), x.shape))
        else:
            drawn.append(jnp.zeros_like(x))
    return jax.tree.unflatten(tree, drawn)


def after_drawing(drawn: PyTree, key: Key[Array, ""]) -> Key[Array, ""]:
    """The same key, but dependent on `drawn`.

    JAX 0.10 hangs on a CPU if it draws two large orthogonal matrices at once.
    """
    is_nan = [jnp.isnan(x.ravel()[0]) for x in jax.tree.leaves(drawn)]
    never = jnp.any(jnp.array(is_nan, bool))  # no compiler can know that
    data = jax.random.key_data(key)
    return jax.random.wrap_key_data(jnp.where(never, data + 1, data))
