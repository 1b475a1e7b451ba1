"""Model-based episodic control alone: plans by the trajectory model and values plans by memory (Section 3.3)."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped

from engram import episodic, models
from engram import replay as rp
from engram.agents.shared import Learning, blank_replay, check_neighbours, due, ends, epsilon, explore, greedy, nothing_kept, see
from engram.agents.shared import take_in as store_transition
from engram.episodic import Episodic, Experience, Happened, Mind
from engram.errors import EngramError
from engram.networks import choosable, lived, width
from engram.schedule import when
from engram.types import Spec, TimeStep
from engram.vision import is_image


class Life(NamedTuple):
    """What both agents with an episodic system carry: it, its replay, and the last state and action."""

    mind: Mind
    replay: Experience
    seen: Shaped[Array, "E S"]
    action: Int[Array, "E"]
    gist: Float[Array, "E G"] | None = None
    """what the models were told of the last state, where that is an image and no film has it"""


@dataclass(frozen=True)
class MBEC(Episodic, Learning):
    """Model-based episodic control: acts by its memory of trajectories alone."""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> Life:
        if is_image(spec):
            raise EngramError("MBEC alone has no network that learns to see images: use mbec++ here.")
        return born(self, spec, key)

    def act(self, life: Life, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        lots = jax.random.uniform(key, (1 + 3 * spec.envs,))
        life, happened = take_in(self, life, spec, timestep, step)
        mind, tau, plan, q = episodic.consider(life.mind, self, spec, happened, self.gamma, step, lots[: 1 + spec.envs])
        q = choosable(spec, q)
        chance = epsilon(self, spec, step)
        action = explore(q, chance, lots[1 + spec.envs :].reshape(2, -1))
        mind = episodic.advance(mind, tau, plan, action, happened.done)
        metrics = {"epsilon": chance, "value": jnp.mean(jnp.max(q, axis=-1)), "memory": mind.memory.filled.astype(jnp.float32)}
        return life._replace(mind=mind, action=action), action, metrics

    def learn(self, life: Life, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def update():
            batch = rp.sample(life.replay, step, jax.random.uniform(key, (self.batch,)))
            pair = models.pairs(episodic.told(batch), batch.transition.action, spec.actions)
            return episodic.train_reward(life.mind, self, spec, pair, batch.before.h, batch.transition.reward, self.clip, step)

        as_before = life.mind.reward, life.mind.reward_optimiser, jnp.zeros(())
        reward, optimiser_state, loss = when(partial(due, self, spec), step, update, lambda: as_before)
        mind = life.mind._replace(reward=reward, reward_optimiser=optimiser_state)
        mind = episodic.train_trajectory(mind, self, spec, life.replay, self.clip, step, jax.random.fold_in(key, 1))
        return life._replace(mind=mind), {"reward_loss": loss, "trajectory_loss": mind.recall_loss}

    def play(self, life: Life, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        state = see(self, spec, observation)
        plan, q, _ = foresee(self, life.mind, spec, state, first)
        action = greedy(spec, q, epsilon, key)
        return life._replace(mind=life.mind._replace(tau=episodic.after(plan, action))), action


def born(options, spec: Spec, key: Key[Array, ""]) -> Life:
    """The beginning of a life, with nothing remembered."""
    states = options.gist if is_image(spec) else width(spec)
    mind = episodic.init(options, spec, states, options.clip, key)
    transition = blank_replay(options, spec)
    rows = transition.reward.shape[0]
    before, after = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape)), (mind.before, mind.tau))
    gist = jnp.zeros((rows, spec.envs, states)) if is_image(spec) else None
    next_gist, last = (None, None) if gist is None or spec.stack else (gist, gist[0])
    return Life(mind, Experience(transition, before, after, gist, next_gist), nothing_kept(spec), jnp.zeros(spec.envs, jnp.int32), last)


def take_in(
    options,
    life: Life,
    spec: Spec,
    timestep: TimeStep,
    step: Int[Array, ""],
    gist: Float[Array, "E G"] | None = None,
    led_to: Float[Array, "E G"] | None = None,
) -> tuple[Life, Happened]:
    """Stores what followed the last action. `gist` is what the models are told of images that are seen now, `led_to` of those that the
    action led to."""
    transition, seen = store_transition(options, spec, life.replay.transition, life.seen, life.action, timestep, step)
    before, after = rp.store((life.replay.before, life.replay.after), (life.mind.before, life.mind.tau), step - 1)
    told, told_next, last = life.replay.gist, life.replay.next_gist, life.gist
    if told_next is not None:
        told, told_next = rp.store((told, told_next), (last, led_to), step - 1)
        last = gist
    elif told is not None:  # as with its film: what is told of a frame is that of the step before it, too
        told = rp.store(told, gist, step)
    over = timestep.terminated | timestep.truncated
    happened = Happened(seen if gist is None else gist, timestep.reward, over, ends(options, spec, timestep))
    replay = Experience(transition, before, after, told, told_next)
    return life._replace(replay=replay, seen=life.seen if spec.stack else seen, gist=last), happened


def foresee(options, mind: Mind, spec: Spec, state: Float[Array, "E S"], first):
    """For greedy play: the plan, Q_MBEC by the average rule, and the trajectory so far."""
    tau = lived(mind.tau, first)
    plan = episodic.imagine(mind, options, state, tau, spec.actions)
    keys = episodic.keys(mind, plan.tau.h)
    value = episodic.read(mind, options, episodic.recall(mind, options, keys.reshape(-1, keys.shape[-1])))
    return plan, plan.reward + options.gamma * value.reshape(plan.reward.shape), tau
