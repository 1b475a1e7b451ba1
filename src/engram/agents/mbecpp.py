"""MBEC++: model-based episodic control joined to a DQN by a learned weight (Section 3.4, Algorithm 1)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram import episodic, models
from engram import memory as mem
from engram import replay as rp
from engram.agents.mbec import Life, born, foresee, take_in
from engram.agents.shared import Bootstrapping, check_neighbours, due, epsilon, every, explore, rate, see
from engram.episodic import Episodic, Experience, Mind
from engram.networks import MLP, descend, draw, optimiser, widened, width
from engram.options import Count, Probability, Share
from engram.returns import td_loss, td_target
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
    """what the Q-network sees"""
    action: Int[Array, "B"]
    tau: Float[Array, "B H"]
    q_episodic: Float[Array, "B"]
    target: Float[Array, "B"]


@dataclass(frozen=True)
class MBECpp(Episodic, Bootstrapping):
    """Model-based episodic control joined to a DQN by a learned weight."""

    hidden: Count = 128
    """width of the Q-network's hidden layers"""
    consolidation_hidden: Count = 16
    """width of f_beta's hidden layer"""
    observed_reward: bool = False
    """while learning, the value of the action taken starts from the reward observed instead of the one predicted"""
    q_sees_trajectory: bool = False
    """whether the Q-network also sees the trajectory: what a single state does not show, it may"""
    initial_beta: Share = 0.5
    """about the weight of the episodic value at the beginning"""
    centred: bool = False
    """whether the memory's values count from their mean on: it then says what is better than usual, and the Q-network keeps the level"""
    p_read_learning: Probability | None = None
    """probability of the average rule in TD targets; that of decisions, p_read, where not given"""
    fixed_beta: Probability | None = None
    """the weight of the episodic value; learnt from the trajectory where not given"""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        life_key, semantic_key = jax.random.split(key)

        def build(key):
            return Semantic(
                q=MLP((width(spec), *[self.hidden] * self.layers, spec.actions), key),
                consolidation=MLP((self.trajectory, self.consolidation_hidden, 1), key),
            )

        semantic = draw(build, semantic_key)
        if self.q_sees_trajectory:
            semantic = semantic._replace(q=widened(semantic.q, self.trajectory))
        adam = optimiser(self.learning_rate, self.clip)
        return State(born(self, spec, life_key), semantic, semantic, adam.init(semantic))

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        lots = jax.random.uniform(key, (1 + 3 * spec.envs,))
        life, happened = take_in(self, state.life, spec, timestep, step)
        mind, tau, plan, q_mbec = episodic.consider(life.mind, self, spec, happened, self.gamma, step, lots[: 1 + spec.envs])
        beta = self.beta(state.semantic, tau.h)
        q_episodic = beta[:, None] * (q_mbec - self.level(life.mind))
        q_semantic = jax.vmap(state.semantic.q)(self.view(happened.state, tau.h))
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
            ahead = rp.look_ahead(replay.transition, step, self.multi_step, self.gamma, lots[1:])
            experience = rp.at(replay, ahead.first)
            p_read = self.p_read if self.p_read_learning is None else self.p_read_learning
            batch = self.evaluate(state, spec, experience, rp.at(replay, ahead.last), ahead, episodic.is_optimistic(p_read, lots[0]))
            adam = optimiser(rate(self, spec, step), self.clip)
            learnt = descend(adam, self.loss, state.semantic, state.optimiser, batch)
            return learnt, episodic.train_reward(mind, self, spec, experience, self.clip)

        nothing = jnp.zeros(())
        as_before = (state.semantic, state.optimiser, nothing), (mind.reward, mind.reward_optimiser, nothing)
        learnt, rewards = lax.cond(due(self, spec, step), update, lambda: as_before)
        semantic, optimiser_state, error = learnt
        mind = mind._replace(reward=rewards[0], reward_optimiser=rewards[1])
        mind = episodic.train_trajectory(mind, self, spec, replay, self.clip, step, jax.random.fold_in(key, 1))
        target = every(self.target_every, step, semantic, state.target)
        metrics = {"td_loss": error, "reward_loss": rewards[2], "trajectory_loss": mind.recall_loss}
        return State(state.life._replace(mind=mind), semantic, target, optimiser_state), metrics

    def evaluate(
        self, state: State, spec: Spec, experience: Experience, last: Experience, ahead: rp.Ahead, optimistic: Bool[Array, ""]
    ) -> Batch:
        """Q_MBEC of the actions taken, and the TD targets, by one search of the memory (Eq. 6 to 8). `last` is the last of the steps
        whose rewards a target gathers."""
        mind, level = state.life.mind, self.level(state.life.mind)
        s, a, r = experience.transition[:3]
        s_next, end = last.transition.next_state, last.transition.end
        pair = models.pairs(s, a, spec.actions)
        reached = jax.vmap(mind.trajectory)(experience.before, pair)
        plan = episodic.imagine(mind, self, s_next, last.after, spec.actions)
        keys = episodic.keys(mind, jnp.concatenate([reached.h, plan.tau.h.reshape(-1, self.trajectory)]))
        values = episodic.read(mind, self, episodic.recall(mind, self, keys), optimistic)
        reward = r if self.observed_reward else episodic.reward(mind, self, pair, experience.before.h)
        q_mbec = plan.reward + self.gamma * values[self.batch :].reshape(plan.reward.shape) - level

        def joint(semantic):
            return q_mbec * self.beta(semantic, last.after.h)[:, None] + jax.vmap(semantic.q)(self.view(s_next, last.after.h))

        chooser = joint(state.semantic) if self.double else None
        return Batch(
            state=self.view(s, experience.before.h),
            action=a,
            tau=experience.before.h,
            q_episodic=reward + self.gamma * values[: self.batch] - level,
            target=td_target(ahead.reward, end, joint(state.target), ahead.discount, chooser),
        )

    def loss(self, semantic: Semantic, batch: Batch) -> Float[Array, ""]:
        """What is made smaller: the joint value's TD errors (Eq. 8)."""
        q = jax.vmap(semantic.q)(batch.state)
        taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
        return td_loss(batch.target, self.beta(semantic, batch.tau) * batch.q_episodic + taken, self.huber)

    def view(self, state: Float[Array, "B S"], tau: Float[Array, "B H"]) -> Float[Array, "B X"]:
        """What the Q-network sees of a state on a trajectory."""
        return jnp.concatenate([state, tau], axis=-1) if self.q_sees_trajectory else state

    def level(self, mind: Mind) -> Float[Array, ""] | float:
        """What the episodic value is counted from."""
        return mem.mean(mind.memory) if self.centred else 0.0

    def beta(self, semantic: Semantic, tau: Float[Array, "B H"]) -> Float[Array, "B"]:
        """f_beta(tau), the weight of the episodic value."""
        if self.fixed_beta is not None:
            return jnp.full(tau.shape[0], self.fixed_beta)
        shift = jnp.log(self.initial_beta / (1 - self.initial_beta))
        return jax.nn.sigmoid(jax.vmap(semantic.consolidation)(tau)[:, 0] + shift)

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""]):
        seen = see(self, spec, observation)
        mind = state.life.mind
        plan, q_mbec, tau = foresee(self, mind, spec, seen, first)
        q = self.beta(state.semantic, tau.h)[:, None] * (q_mbec - self.level(mind)) + jax.vmap(state.semantic.q)(self.view(seen, tau.h))
        action = jnp.argmax(q, axis=-1)
        return state._replace(life=state.life._replace(mind=mind._replace(tau=episodic.after(plan, action)))), action
