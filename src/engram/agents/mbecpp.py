"""MBEC++: model-based episodic control joined to a DQN by a learned weight (Section 3.4, Algorithm 1)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram import episodic, models
from engram import replay as rp
from engram.agents.mbec import Life, born, foresee, take_in
from engram.agents.shared import TemporalDifference, check_neighbours, due, epsilon, every, explore, rate
from engram.episodic import Episodic, Experience
from engram.networks import MLP, descend, draw, encode, optimiser, width
from engram.options import Count, Probability
from engram.returns import td_target
from engram.types import Spec, TimeStep


class Semantic(NamedTuple):
    """What learns by temporal differences: Q_theta and f_beta."""

    q: MLP
    consolidation: MLP


class State(NamedTuple):
    life: Life
    semantic: Semantic
    target: Semantic
    optimiser: PyTree


class Batch(NamedTuple):
    """What the TD loss needs of a batch, all of it fixed: no gradient enters memory, trajectory or reward model."""

    state: Float[Array, "B S"]
    action: Int[Array, "B"]
    tau: Float[Array, "B H"]
    q_episodic: Float[Array, "B"]
    target: Float[Array, "B"]


@dataclass(frozen=True)
class MBECpp(Episodic, TemporalDifference):
    """Model-based episodic control joined to a DQN by a learned weight."""

    hidden: Count = 128
    """width of the Q-network's two hidden layers"""
    consolidation_hidden: Count = 16
    """width of f_beta's hidden layer"""
    observed_reward: bool = False
    """while learning, the value of the action taken starts from the reward observed instead of the one predicted"""
    fixed_beta: Probability | None = None
    """the weight of the episodic value; learnt from the trajectory where not given"""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        life_key, semantic_key = jax.random.split(key)

        def build(key):
            return Semantic(
                q=MLP((width(spec), self.hidden, self.hidden, spec.actions), key),
                consolidation=MLP((self.trajectory, self.consolidation_hidden, 1), key),
            )

        semantic = draw(build, semantic_key)
        adam = optimiser(self.learning_rate, self.clip)
        return State(born(self, spec, life_key), semantic, semantic, adam.init(semantic))

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        lots = jax.random.uniform(key, (1 + 3 * spec.envs,))
        life, happened = take_in(self, state.life, spec, timestep, step)
        mind, tau, plan, q_mbec = episodic.consider(life.mind, self, spec, happened, self.gamma, step, lots[: 1 + spec.envs])
        beta = self.beta(state.semantic, tau.h)
        q_episodic, q_semantic = beta[:, None] * q_mbec, jax.vmap(state.semantic.q)(happened.state)
        q = q_episodic + q_semantic  # Eq. 7
        chance = epsilon(self, spec, step)
        action = explore(q, chance, lots[1 + spec.envs :].reshape(2, -1))
        mind = episodic.advance(mind, tau, plan, action, happened.done)
        best = jnp.argmax(q, axis=-1)
        metrics = {
            "episodic": jnp.mean(jnp.argmax(q_episodic, axis=-1) == best),
            "semantic": jnp.mean(jnp.argmax(q_semantic, axis=-1) == best),
            "beta": jnp.mean(beta),
            "memory": mind.memory.filled.astype(jnp.float32),
            "epsilon": chance,
            "value": jnp.mean(jnp.max(q, axis=-1)),
        }
        return state._replace(life=life._replace(mind=mind, seen=happened.state, action=action)), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        mind, replay = state.life.mind, state.life.replay

        def update():
            lots = jax.random.uniform(key, (1 + self.batch,))
            experience = rp.sample(replay, step, lots[1:])
            batch = self.evaluate(state, spec, experience, episodic.is_optimistic(self, lots[0]))
            adam = optimiser(rate(self, spec, step), self.clip)
            learnt = descend(adam, self.loss, state.semantic, state.optimiser, batch)
            return learnt, episodic.train_reward(mind, self, spec, experience, self.clip)

        nothing = jnp.zeros(())
        as_before = (state.semantic, state.optimiser, nothing), (mind.reward, mind.reward_optimiser, nothing)
        learnt, rewards = lax.cond(due(self, spec, step), update, lambda: as_before)
        semantic, optimiser_state, td_loss = learnt
        mind = mind._replace(reward=rewards[0], reward_optimiser=rewards[1])
        mind = episodic.train_trajectory(mind, self, spec, replay, self.clip, step, jax.random.fold_in(key, 1))
        target = every(self.target_every, step, semantic, state.target)
        metrics = {"td_loss": td_loss, "reward_loss": rewards[2], "trajectory_loss": mind.recall_loss}
        return State(state.life._replace(mind=mind), semantic, target, optimiser_state), metrics

    def evaluate(self, state: State, spec: Spec, experience: Experience, optimistic: Bool[Array, ""]) -> Batch:
        """Q_MBEC of the actions taken, and the TD targets, by one search of the memory (Eq. 6 to 8)."""
        mind = state.life.mind
        s, a, r, s_next, end = experience.transition
        pair = models.pairs(s, a, spec.actions)
        reached = jax.vmap(mind.trajectory)(experience.before, pair)
        plan = episodic.imagine(mind, self, s_next, experience.after, spec.actions)
        keys = episodic.keys(mind, jnp.concatenate([reached.h, plan.tau.h.reshape(-1, self.trajectory)]))
        values = episodic.read(mind, self, episodic.recall(mind, self, keys), optimistic)
        reward = r if self.observed_reward else episodic.reward(mind, self, pair, experience.before.h)
        q_next = plan.reward + self.gamma * values[self.batch :].reshape(plan.reward.shape)
        q_next = q_next * self.beta(state.target, experience.after.h)[:, None] + jax.vmap(state.target.q)(s_next)
        return Batch(
            state=s,
            action=a,
            tau=experience.before.h,
            q_episodic=reward + self.gamma * values[: self.batch],
            target=td_target(r, end, q_next, self.gamma),
        )

    def loss(self, semantic: Semantic, batch: Batch) -> Float[Array, ""]:
        """The mean squared TD error of the joint value (Eq. 8)."""
        q = jax.vmap(semantic.q)(batch.state)
        taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
        return jnp.mean((batch.target - self.beta(semantic, batch.tau) * batch.q_episodic - taken) ** 2)

    def beta(self, semantic: Semantic, tau: Float[Array, "B H"]) -> Float[Array, "B"]:
        """f_beta(tau), the weight of the episodic value."""
        if self.fixed_beta is not None:
            return jnp.full(tau.shape[0], self.fixed_beta)
        return jax.nn.sigmoid(jax.vmap(semantic.consolidation)(tau)[:, 0])

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""]):
        seen = encode(spec, observation, self.scale_inputs)
        mind = state.life.mind
        plan, q_mbec, tau = foresee(self, mind, spec, seen, first)
        q = self.beta(state.semantic, tau.h)[:, None] * q_mbec + jax.vmap(state.semantic.q)(seen)
        action = jnp.argmax(q, axis=-1)
        return state._replace(life=state.life._replace(mind=mind._replace(tau=episodic.after(plan, action)))), action
