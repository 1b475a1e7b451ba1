"""MBEC++: model-based episodic control joined to a DQN by a learned weight (Section 3.4, Algorithm 1)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import episodic, models, standard
from engram import memory as mem
from engram import replay as rp
from engram.agents.mbec import Life, born, foresee, take_in
from engram.agents.shared import (
    Bootstrapping,
    check_neighbours,
    due,
    epsilon,
    explore,
    greedy,
    q_network,
    rate,
    renewed,
    repeated,
    shown,
    to_judge,
)
from engram.episodic import Episodic, Experience, Mind
from engram.networks import MLP, Seeing, choosable, descend, draw, head, optimiser, trunk, widened
from engram.options import Count, Probability, Share
from engram.returns import td_loss, td_target
from engram.schedule import when
from engram.types import Spec, TimeStep
from engram.vision import is_image, small


class Semantic(NamedTuple):
    """What learns by temporal differences: Q_theta and f_beta."""

    q: MLP | Seeing
    consolidation: MLP


class State(NamedTuple):
    life: Life
    semantic: Semantic
    target: Semantic
    optimiser: PyTree
    gist_map: Float[Array, "F G"] | None
    """from what the convolutions find, or from small images, to what the models are told, where there are images"""
    gist_norm: standard.Norm | None
    """of what the map gives, where that is brought to one size"""


class Batch(NamedTuple):
    """What the TD loss needs of a batch, all of it fixed: no gradient enters memory, trajectory or reward model."""

    state: Shaped[Array, "B S"]
    action: Int[Array, "B"]
    tau: Float[Array, "B H"]
    q_episodic: Float[Array, "B"]
    target: Float[Array, "B"]


class Consulted(NamedTuple):
    """What updates take from replay, and what memory and target copies say of it; no update changes any of it. A target gathers the rewards
    of one step or several, from a first to a last one."""

    state: Shaped[Array, "B S"]
    action: Int[Array, "B"]
    reward: Float[Array, "B"]
    """of the first step"""
    pair: Float[Array, "B X"]
    """its state and action, as the models get them"""
    tau: Float[Array, "B H"]
    """before it"""
    gathered: Float[Array, "B"]
    """rewards"""
    discount: Float[Array, "B"]
    """of what follows the last step"""
    end: Float[Array, "B"]
    told: Float[Array, "B G"]
    """what the models are told of the state after it"""
    after: Float[Array, "B H"]
    """the trajectory there"""
    worth: Float[Array, "B"]
    """discounted, what memory says of where the first step led"""
    worth_next: Float[Array, "B A"]
    """and of where each action would lead after the last"""
    q_target: Float[Array, "B A"]
    beta_target: Float[Array, "B"]
    asked: Bool[Array, "B 2"] | None
    """whether the memory has a say in the value of the first step, and in what follows the last, where it has not always"""
    next_state: Shaped[Array, "B S"] | None
    """after the last step, where the newest network chooses in it"""


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
    q_chooses: bool = False
    """whether in TD targets the Q-network (with `double` the newest, else its copy) chooses the next action alone, and memory only helps to
    value it"""
    p_ask: Probability | None = None
    """probability that memory is asked in a decision, and on either side of the TD errors of a batch; always where not given. Where it is
    not asked, the Q-network says all"""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        life_key, semantic_key = jax.random.split(key)

        def build(key):
            return Semantic(
                q=q_network(self, spec, key),
                consolidation=MLP((self.trajectory, self.consolidation_hidden, 1), key),
            )

        semantic = draw(build, semantic_key, self.he_weights)
        if self.q_sees_trajectory:
            semantic = semantic._replace(q=widened(semantic.q, self.trajectory))
        adam = optimiser(self.learning_rate, self.clip)
        gist_map = gist_norm = None
        if is_image(spec):
            seen = jax.ShapeDtypeStruct((1, math.prod(spec.shape)), jnp.uint8)
            size = jax.eval_shape(lambda seen: self.summary(semantic, seen, self.find(semantic, seen)), seen).shape[1]
            gist_map = jax.random.normal(jax.random.fold_in(semantic_key, 1), (size, self.gist)) / jnp.sqrt(size)
            gist_norm = standard.unmet(self.gist) if self.standard_gist else None
        return State(born(self, spec, life_key), semantic, semantic, adam.init(semantic), gist_map, gist_norm)

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        lots = jax.random.uniform(key, (1 + 3 * spec.envs,))
        semantic = self.acting(state)
        found, gist = self.look(state, shown(self, spec, to_judge(self, spec, timestep) if is_image(spec) else timestep.observation))
        found, led_to = found[: spec.envs], None
        if gist is not None:
            if state.gist_norm is not None:
                state = state._replace(gist_norm=standard.meet(state.gist_norm, gist[: spec.envs]))
            told = self.tell(state, gist)
            gist, led_to = told[: spec.envs], told[-spec.envs :]
        life, happened = take_in(self, state.life, spec, timestep, step, gist, led_to)
        mind, tau, plan, q_mbec = episodic.consider(life.mind, self, spec, happened, self.gamma, step, lots[: 1 + spec.envs])
        beta = self.beta(semantic, tau.h)
        q_episodic = beta[:, None] * (q_mbec - self.level(life.mind))
        q_semantic = self.values(semantic, found, tau.h)
        q = choosable(spec, q_episodic * self.asks(key, spec.envs) + q_semantic)  # Eq. 7
        chance = epsilon(self, spec, step)
        action = explore(q, chance, lots[1 + spec.envs :].reshape(2, -1))
        mind = episodic.advance(mind, tau, plan, action, happened.done)
        best = jnp.argmax(q, axis=-1)
        metrics = {
            "episodic": jnp.mean(jnp.argmax(choosable(spec, q_episodic), axis=-1) == best),
            "semantic": jnp.mean(jnp.argmax(choosable(spec, q_semantic), axis=-1) == best),
            "beta": jnp.mean(beta),
            "memory": mind.memory.filled.astype(jnp.float32),
            "epsilon": chance,
            "value": jnp.mean(jnp.max(q, axis=-1)),
        }
        if gist is not None and spec.envs > 1:
            metrics["gist"] = jnp.mean(jnp.std(gist, axis=0))  # how far it tells the environments apart; actions are of size 1
        return state._replace(life=life._replace(mind=mind, action=action)), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        replay, past = state.life.replay, state.life.mind

        def prepare(lots):
            ahead = rp.look_ahead(replay.transition, step, self.multi_step, self.gamma, lots[:, 1 : 1 + self.batch].ravel())
            first, last = (self.drawn(replay, place) for place in (ahead.first, ahead.last))
            p_read = self.p_read if self.p_read_learning is None else self.p_read_learning
            asked = None if self.p_ask is None else lots[:, 1 + self.batch :] < self.p_ask
            return self.consult(state, spec, first, last, ahead, episodic.is_optimistic(p_read, lots[:, 0]), asked)

        def update(learnt, found):
            semantic, optimiser_state, reward, reward_optimiser = learnt
            mind = past._replace(reward=reward, reward_optimiser=reward_optimiser)
            batch = self.evaluate(semantic, mind, spec, found)
            adam = optimiser(rate(self, spec, step), self.clip, self.adam_eps)
            *learnt, error = descend(adam, self.loss, semantic, optimiser_state, batch)
            *rewards, reward_error = episodic.train_reward(mind, self, spec, found.pair, found.tau, found.reward, self.clip, step)
            return (*learnt, *rewards), (error, reward_error)

        before, nothing = (state.semantic, state.optimiser, past.reward, past.reward_optimiser), (jnp.zeros(()), jnp.zeros(()))
        lots = 1 + self.batch + 2 * (self.p_ask is not None)
        learns = partial(due, self, spec)
        learnt, losses = when(learns, step, lambda: repeated(self, prepare, update, before, key, lots), lambda: (before, nothing))
        semantic, optimiser_state, reward, reward_optimiser = learnt
        mind = past._replace(reward=reward, reward_optimiser=reward_optimiser)
        trajectory_key = jax.random.fold_in(key, self.updates)  # no update's: these have the key itself, or 0, 1, ...
        mind = episodic.train_trajectory(mind, self, spec, replay, self.clip, step, trajectory_key, self.updates)
        target = renewed(self, spec, step, semantic, state.target)
        metrics = {"td_loss": losses[0], "reward_loss": losses[1], "trajectory_loss": mind.recall_loss}
        life = state.life._replace(mind=mind)
        return state._replace(life=life, semantic=semantic, target=target, optimiser=optimiser_state), metrics

    def drawn(self, replay: Experience, place: tuple[Int[Array, "B"], Int[Array, "B"]]) -> Experience:
        """What lies in replay there."""
        drawn = rp.at(replay, place)
        if replay.gist is None or replay.next_gist is not None:
            return drawn
        return drawn._replace(next_gist=rp.at(replay.gist, rp.after(replay.transition, place)))

    def consult(
        self,
        state: State,
        spec: Spec,
        first: Experience,
        last: Experience,
        ahead: rp.Ahead,
        optimistic: Bool[Array, "U"],
        asked: Bool[Array, "U 2"] | None = None,
    ) -> Consulted:
        """Asks the memory, by one search, and the target copies about the batches of U updates. `last` is the last of the steps whose
        rewards a target gathers."""
        mind, count = state.life.mind, len(ahead.reward)
        told, next_state = episodic.told_next(last), last.transition.next_state
        pair = models.pairs(episodic.told(first), first.transition.action, spec.actions)
        reached = jax.vmap(mind.trajectory)(first.before, pair)
        planned = episodic.led_to(mind, told, last.after, spec.actions)
        keys = episodic.keys(mind, jnp.concatenate([reached.h, planned.h.reshape(-1, self.trajectory)]))
        batch = count // len(optimistic)
        rules = jnp.concatenate([jnp.repeat(optimistic, batch), jnp.repeat(optimistic, batch * spec.actions)])
        worth = self.gamma * episodic.read(mind, self, episodic.recall(mind, self, keys), rules) - self.level(mind)
        return Consulted(
            state=first.transition.state,
            action=first.transition.action,
            reward=first.transition.reward,
            pair=pair,
            tau=first.before.h,
            gathered=ahead.reward,
            discount=ahead.discount,
            end=last.transition.end,
            told=told,
            after=last.after.h,
            worth=worth[:count],
            worth_next=worth[count:].reshape(count, spec.actions),
            q_target=self.values(state.target, self.find(state.target, next_state), last.after.h),
            beta_target=self.beta(state.target, last.after.h),
            asked=None if asked is None else jnp.repeat(asked, batch, axis=0),
            next_state=next_state if self.double else None,
        )

    def evaluate(self, semantic: Semantic, mind: Mind, spec: Spec, found: Consulted) -> Batch:
        """Q_MBEC of the actions taken, and the TD targets (Eq. 6 to 8), by what the reward model and, where it chooses, the Q-network have
        learnt so far."""
        reward = found.reward if self.observed_reward else episodic.reward(mind, self, found.pair, found.tau)
        q_taken = reward + found.worth
        q_mbec = episodic.rewards(mind, self, found.told, found.after, spec.actions) + found.worth_next
        if found.asked is not None:
            q_taken, q_mbec = q_taken * found.asked[:, 0], q_mbec * found.asked[:, 1:]

        def joint(q_semantic, beta):
            return choosable(spec, q_mbec * beta[:, None] + q_semantic)

        q_chooser, beta_chooser = found.q_target, found.beta_target
        if found.next_state is not None:
            q_chooser = self.values(semantic, self.find(semantic, found.next_state), found.after)
            beta_chooser = self.beta(semantic, found.after)
        chooser = choosable(spec, q_chooser) if self.q_chooses else joint(q_chooser, beta_chooser) if self.double else None
        q_next = joint(found.q_target, found.beta_target)
        target = td_target(found.gathered, found.end, q_next, found.discount, chooser)
        return Batch(found.state, found.action, found.tau, q_taken, target)

    def loss(self, semantic: Semantic, batch: Batch) -> Float[Array, ""]:
        """What is made smaller: the joint value's TD errors (Eq. 8)."""
        q = self.values(semantic, self.find(semantic, batch.state), batch.tau)
        taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
        return td_loss(batch.target, self.beta(semantic, batch.tau) * batch.q_episodic + taken, self.huber)

    def acting(self, state: State) -> Semantic:
        """The networks that choose."""
        return state.target if self.act_by_target else state.semantic

    def look(self, state: State, seen: Shaped[Array, "E S"]) -> tuple[Float[Array, "E F"], Float[Array, "E G"] | None]:
        """What is found in what is seen and, of images, its gist."""
        semantic = self.acting(state)
        found = self.find(semantic, seen)
        return found, None if state.gist_map is None else self.summary(semantic, seen, found) @ state.gist_map

    def summary(self, semantic: Semantic, seen: Shaped[Array, "E S"], found: Float[Array, "E F"]) -> Float[Array, "E X"]:
        """What the gist of images is a map of."""
        if self.gist_of == "pixels":
            assert isinstance(semantic.q, Seeing)
            return jax.vmap(partial(small, semantic.q.vision.shape))(seen)
        # Behind the barrier, XLA does not make one product of this and the Q-network's, for which it would copy all weights at every step.
        return lax.optimization_barrier(found)

    def tell(self, state: State, gist: Float[Array, "E G"]) -> Float[Array, "E G"]:
        """What the models are told of images."""
        return gist if state.gist_norm is None else standard.in_deviations(state.gist_norm, gist)

    def find(self, semantic: Semantic, seen: Shaped[Array, "B S"]) -> Float[Array, "B F"]:
        """What the Q-network's convolutions find; what is seen itself where there are none."""
        return jax.vmap(lambda x: trunk(semantic.q, x))(seen)

    def values(self, semantic: Semantic, found: Float[Array, "B F"], tau: Float[Array, "B H"]) -> Float[Array, "B A"]:
        """Q_theta of what was found in states, met on trajectories `tau`."""
        inputs = jnp.concatenate([found, tau], axis=-1) if self.q_sees_trajectory else found
        return jax.vmap(head(semantic.q))(inputs)

    def level(self, mind: Mind) -> Float[Array, ""] | float:
        """What the episodic value is counted from."""
        return mem.mean(mind.memory) if self.centred else 0.0

    def beta(self, semantic: Semantic, tau: Float[Array, "B H"]) -> Float[Array, "B"]:
        """f_beta(tau), the weight of the episodic value."""
        if self.fixed_beta is not None:
            return jnp.full(tau.shape[0], self.fixed_beta)
        shift = jnp.log(self.initial_beta / (1 - self.initial_beta))
        return jax.nn.sigmoid(jax.vmap(semantic.consolidation)(tau)[:, 0] + shift)

    def asks(self, key: Key[Array, ""], decisions: int) -> Bool[Array, "B 1"] | float:
        """Whether each decision asks the memory."""
        return 1.0 if self.p_ask is None else jax.random.bernoulli(jax.random.fold_in(key, 2), self.p_ask, (decisions, 1))

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        found, gist = self.look(state, shown(self, spec, observation))
        told, mind, semantic = found if gist is None else self.tell(state, gist), state.life.mind, self.acting(state)
        plan, q_mbec, tau = foresee(self, mind, spec, told, first)
        q_episodic = self.beta(semantic, tau.h)[:, None] * (q_mbec - self.level(mind)) * self.asks(key, len(q_mbec))
        q = q_episodic + self.values(semantic, found, tau.h)
        action = greedy(spec, q, epsilon, key)
        return state._replace(life=state.life._replace(mind=mind._replace(tau=episodic.after(plan, action)))), action
