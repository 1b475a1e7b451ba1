"""Agents compute what their equations say, and learn the values of tasks whose values are known."""

import copy
from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import (
    CHOSEN_REWARD,
    CUE,
    ONE_STATE,
    PROBES,
    SEEN_REWARD,
    TWO_ARMS,
    TWO_STATES,
    WALK,
    actor,
    constant,
    episodes,
    probe_spec,
    recalls,
)

from engram import episodic, loop, models, records
from engram import replay as rp
from engram import tables as tb
from engram.agents import AGENTS, DQN, MBEC, MBECpp, Random, make, name_of
from engram.agents.drqn import DRQN
from engram.agents.mbec import foresee
from engram.agents.mbecpp import Semantic
from engram.agents.mfec import MFEC
from engram.agents.nec import NEC
from engram.agents.ppo import PPO, run_once
from engram.agents.shared import Learning, due, ends, epsilon, every, explore, rate, renewed
from engram.episodic import Experience
from engram.errors import EngramError
from engram.models import RewardModel
from engram.networks import fresh
from engram.policy import without_learning
from engram.tasks import CartPole, Task, find
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, limit=10, iterations=20)
TINY = {"gamma": 0.5, "batch": 2, "neighbours": 1, "slots": 4, "chunk": 2, "trajectory": 2, "hidden": 2, "reward_hidden": 4}


# By hand


def by_hand(agent, beta=0.5, reward=None):
    """A state of MBEC++ in which r is 1/2 (or as given), every read is 10, Q_theta is (2, 4), and its target copy (1, 3)."""
    state = agent.init(jax.random.key(0), SPEC)
    logit = float(np.log(beta / (1 - beta)))
    mind = state.life.mind
    memory = mind.memory._replace(values=jnp.full(4, 10.0), written=jnp.int32(1))
    network = constant(mind.reward.network, [0.5]) if reward is None else reward
    mind = mind._replace(memory=memory, reward=RewardModel(network))

    def semantic(q):
        networks = state.semantic
        return networks._replace(q=constant(networks.q, q), consolidation=constant(networks.consolidation, [logit]))

    return state._replace(life=state.life._replace(mind=mind), semantic=semantic([2.0, 4.0]), target=semantic([1.0, 3.0]))


def experience(rewards, end):
    count = len(rewards)
    states, tau = jnp.ones((count, 2)), fresh(count, 2)
    transition = rp.Transition(states, jnp.zeros(count, jnp.int32), jnp.array(rewards), 2 * states, jnp.array(end), jnp.array(end))
    return Experience(transition, tau, tau)


def evaluated(agent, state, steps):
    """What the TD loss gets of single steps."""
    return agent.evaluate(state.semantic, state.life.mind, SPEC, consulted(agent, state, steps))


def consulted(agent, state, steps, asked=None):
    ahead = rp.Ahead((None, None), (None, None), steps.transition.reward, jnp.full(len(steps.transition.reward), agent.gamma))
    return agent.consult(state, SPEC, steps, steps, ahead, jnp.array([False]), asked)


def evaluate(agent, state, first, last, ahead):
    found = agent.consult(state, SPEC, first, last, ahead, jnp.array([False]))
    return agent.evaluate(state.semantic, state.life.mind, SPEC, found)


@pytest.mark.parametrize("fixed", [None, 0.5])
def test_the_td_target_of_mbecpp_is_that_of_equation_8(fixed):
    agent = MBECpp(**TINY, fixed_beta=fixed)
    state = by_hand(agent, beta=0.5 if fixed is None else 0.9)
    batch = evaluated(agent, state, experience([1.0, 1.0], [0.0, 1.0]))
    # Q_MBEC is 1/2 + 10/2 of every action; the next state is worth 5.5/2 + 3 by the target copy, and nothing follows an end
    np.testing.assert_allclose(batch.q_episodic, [5.5, 5.5], rtol=1e-6)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * 5.75, 1.0], rtol=1e-6)
    # of the first action Q is 5.5/2 + 2 = 4.75: errors 3.875 - 4.75 and 1 - 4.75
    assert agent.loss(state.semantic, batch) == pytest.approx((0.875**2 + 3.75**2) / 2, rel=1e-6)


def test_the_weight_of_memory_in_the_target_is_that_of_the_target_copy():
    agent = MBECpp(**TINY)
    state = by_hand(agent, beta=0.75)
    state = state._replace(semantic=by_hand(agent, beta=0.25).semantic)
    batch = evaluated(agent, state, experience([0.0, 0.0], [0.0, 0.0]))
    np.testing.assert_allclose(batch.target, 0.5 * (0.75 * 5.5 + 3), rtol=1e-5)
    assert agent.loss(state.semantic, batch) == pytest.approx((float(batch.target[0]) - 0.25 * 5.5 - 2) ** 2, rel=1e-5)


def test_a_centred_memory_tells_what_is_better_than_usual():
    agent = MBECpp(**TINY, fixed_beta=0.5, centred=True)
    # every memory is worth 10, so their mean is: Q_MBEC is 1/2 + 10/2 - 10 of every action
    batch = evaluated(agent, by_hand(agent), experience([1.0, 1.0], [0.0, 1.0]))
    np.testing.assert_allclose(batch.q_episodic, [-4.5, -4.5], rtol=1e-6)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * (3 - 4.5 / 2), 1.0], rtol=1e-6)


def test_a_network_that_sees_the_trajectory_begins_as_one_that_does_not():
    blind, seeing = (MBECpp(**TINY, q_sees_trajectory=sees) for sees in (False, True))
    state, tau = jnp.array([[0.5, -1.0]]), jnp.array([[2.0, 3.0]])
    of_blind, of_seeing = (agent.values(agent.init(jax.random.key(3), SPEC).semantic, state, tau) for agent in (blind, seeing))
    np.testing.assert_array_equal(of_blind, of_seeing)
    # and the trajectory before each step, and after the last, is what it learns by
    before, after = jnp.array([[2.0, 3.0], [4.0, 5.0]]), jnp.array([[6.0, 7.0], [8.0, 9.0]])
    steps = experience([1.0, 1.0], [0.0, 1.0])
    steps = steps._replace(before=steps.before._replace(h=before), after=steps.after._replace(h=after))
    state = by_hand(seeing)
    weight = state.target.q.layers[0].weight.at[0].set(jnp.array([0.0, 0.0, 0.0, 1.0]))  # the first unit is the trajectory's second number
    last = state.target.q.layers[-1].weight.at[:, 0].set(1.0)
    target = eqx.tree_at(lambda q: (q.layers[0].weight, q.layers[-1].weight), state.target.q, (weight, last))
    target = eqx.tree_at(lambda q: q.layers[1].weight, target, jnp.eye(2))
    batch = evaluated(seeing, state._replace(target=state.target._replace(q=target)), steps)
    np.testing.assert_array_equal(batch.tau, before)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * (5.5 / 2 + 3 + 7), 1.0], rtol=1e-6)


def test_in_double_learning_the_network_chooses_and_its_copy_values():
    agent = MBECpp(**TINY, double=True)
    state = by_hand(agent)
    state = state._replace(semantic=state.semantic._replace(q=constant(state.semantic.q, [9.0, 4.0])))
    # the network would do the first action, which its copy values at 1 + 5.5/2
    batch = evaluated(agent, state, experience([1.0, 1.0], [0.0, 1.0]))
    np.testing.assert_allclose(batch.target, [1 + 0.5 * 3.75, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "network", "memory", "worth"),
    [
        ({}, [2.0, 4.0], [20.0, 0.0], 1 + 20.5 / 2),  # the best of both together
        ({"q_chooses": True}, [9.0, 4.0], [20.0, 0.0], 3 + 0.5 / 2),  # that of the target copy, whatever memory says
        ({"double": True}, [9.0, 4.0], [0.0, 20.0], 3 + 20.5 / 2),  # the best of both by the network
        ({"double": True, "q_chooses": True}, [9.0, 4.0], [0.0, 20.0], 1 + 0.5 / 2),  # that of the network alone
    ],
)
def test_who_chooses_in_a_target(options, network, memory, worth):
    agent = MBECpp(**TINY, **options)
    state = by_hand(agent)
    state = state._replace(semantic=state.semantic._replace(q=constant(state.semantic.q, network)))
    found = consulted(agent, state, experience([1.0, 1.0], [0.0, 1.0]))._replace(worth_next=jnp.array([memory, memory]))
    batch = agent.evaluate(state.semantic, state.life.mind, SPEC, found)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * worth, 1.0], rtol=1e-6)
    # and where a game lacks the second action, the first
    batch = agent.evaluate(state.semantic, state.life.mind, replace(SPEC, allowed=jnp.int32(1)), found)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * (1 + (memory[0] + 0.5) / 2), 1.0], rtol=1e-6)


@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True), (False, False)])
def test_where_memory_is_not_asked_the_network_says_all(asked):
    agent = MBECpp(**TINY, p_ask=0.5)
    state = by_hand(agent)
    found = consulted(agent, state, experience([1.0, 1.0], [0.0, 1.0]), jnp.array([asked]))
    batch = agent.evaluate(state.semantic, state.life.mind, SPEC, found)
    np.testing.assert_allclose(batch.q_episodic, 5.5 * asked[0], rtol=1e-6)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * (3 + asked[1] * 5.5 / 2), 1.0], rtol=1e-6)


def told(agent, numbers):
    """The agent with other numbers for some options, which may be those of a program that is still to be compiled: one for them all."""
    agent = copy.copy(agent)
    for name, value in numbers.items():
        object.__setattr__(agent, name, value)
    return agent


@cache
def learning(agent):
    """What an agent has learnt from two steps, and what it says of that, by its state and numbers for some of its options."""
    return jax.jit(lambda state, numbers: told(agent, numbers).learn(state, SPEC, jnp.int32(2), jax.random.key(1)))


def several_steps(agent):
    """A replay of two steps, rewards 1 and 4, of which the second leads to a state of sevens."""
    state = agent.init(jax.random.key(3), SPEC)
    replay = state.life.replay if isinstance(agent, MBECpp) else state.replay
    transition = replay.transition if isinstance(agent, MBECpp) else replay
    steps = transition._replace(
        reward=transition.reward.at[:2, 0].set(jnp.array([1.0, 4.0])),
        next_state=transition.next_state.at[1, 0].set(7.0),
    )
    return state, replay._replace(transition=steps) if isinstance(agent, MBECpp) else steps


def test_a_target_over_two_steps_of_mbecpp_ends_where_the_second_led():
    agent = MBECpp(**TINY, multi_step=2)
    state, replay = several_steps(agent)
    state = state._replace(life=state.life._replace(replay=replay))
    ahead = rp.look_ahead(replay.transition, jnp.int32(2), 2, agent.gamma, jnp.zeros(2))
    first, last = rp.at(replay, ahead.first), rp.at(replay, ahead.last)
    batch = evaluate(agent, state, first, last, ahead)
    one = evaluate(agent, state, last, last, ahead._replace(reward=jnp.zeros(2), discount=jnp.ones(2)))
    # 1 + 4/2, and a quarter of what the second step led to is worth
    np.testing.assert_allclose(batch.target, 3 + 0.25 * one.target, rtol=1e-6)
    np.testing.assert_array_equal(batch.state, first.transition.state)
    # and that is not what the first step led to
    wrong = evaluate(agent, state, first, first, ahead)
    assert np.all(np.abs(batch.target - wrong.target) > 1e-3)


@pytest.mark.parametrize("kind", [DQN, MBECpp])
def test_agents_learn_from_as_many_steps_as_they_are_told(kind):
    """The loss of an update is that of its target: it changes with n, since n = 2 sees both rewards and another state."""

    def loss(n):
        agent = kind(**(TINY if kind is MBECpp else {"hidden": 2, "batch": 2}), multi_step=n, learn_start=1)
        state, replay = several_steps(agent)
        state = state._replace(life=state.life._replace(replay=replay)) if kind is MBECpp else state._replace(replay=replay)
        return float(learning(agent)(state, {})[1]["td_loss"])

    assert loss(1) != loss(2)
    assert loss(2) == loss(3)  # there are but two


@pytest.mark.parametrize("kind", [DQN, MBECpp])
def test_adam_divides_by_what_gradients_were_and_its_eps(kind):
    """Its first step is rate * g / (|g| + eps)."""
    agent = kind(**(TINY if kind is MBECpp else {"hidden": 2, "batch": 2}), learn_start=1, learning_rate=1.0)
    state, replay = several_steps(agent)
    state = state._replace(life=state.life._replace(replay=replay)) if kind is MBECpp else state._replace(replay=replay)

    def step(eps):
        after, _ = learning(agent)(state, {"adam_eps": eps})
        q_of = (lambda state: state.semantic.q) if kind is MBECpp else (lambda state: state.q)
        return np.concatenate([np.ravel(b - a) for a, b in zip(*map(jax.tree.leaves, (q_of(state), q_of(after))), strict=True)])

    first = step(1.0)
    gradient = first / (1 - np.abs(first))
    assert np.any(gradient)
    assert np.abs(first).max() < 0.95  # no gradient is longer than 10; without eps each number would go the whole rate, 1
    np.testing.assert_allclose(step(3.0), gradient / (np.abs(gradient) + 3), rtol=1e-4, atol=1e-6)


def loss_with_two_memories(agent, **numbers):
    """The TD loss of an update, with two memories of different worth: the best of them and their mean differ."""
    state, replay = several_steps(agent)
    memory = state.life.mind.memory
    memory = memory._replace(values=jnp.array([0.0, 10.0, 0.0, 0.0]), keys=memory.keys.at[1].set(0.1), written=jnp.int32(2))
    state = state._replace(life=state.life._replace(replay=replay, mind=state.life.mind._replace(memory=memory)))
    return float(learning(agent)(state, numbers)[1]["td_loss"])


def test_the_rule_of_reading_while_learning_may_be_its_own():
    agent = MBECpp(**TINY | {"neighbours": 2}, learn_start=1)
    apart = replace(agent, p_read_learning=0.5)
    best, mean = loss_with_two_memories(agent, p_read=0.0), loss_with_two_memories(agent, p_read=1.0)
    assert best == loss_with_two_memories(apart, p_read=1.0, p_read_learning=0.0)
    assert mean == loss_with_two_memories(apart, p_read=0.0, p_read_learning=1.0)
    assert best != mean


@pytest.mark.parametrize(("often", "equal"), [(0.0, True), (1.0, False)])
def test_who_never_asks_memory_does_not_learn_from_it(often, equal):
    agent = MBECpp(**TINY | {"neighbours": 2}, learn_start=1, p_ask=0.5, fixed_beta=0.5)
    first, second = (loss_with_two_memories(agent, p_ask=often, fixed_beta=beta) for beta in (0.1, 0.9))
    assert (first == second) == equal


def test_beta_begins_where_it_is_told_to():
    agent = MBECpp(**TINY, initial_beta=0.1)
    assert agent.beta(by_hand(agent, beta=0.5).semantic, jnp.zeros((1, 2))) == pytest.approx(0.1, rel=1e-5)


def test_the_observed_reward_may_stand_for_the_predicted_one():
    agent = MBECpp(**TINY, observed_reward=True)
    batch = evaluated(agent, by_hand(agent), experience([1.0, 7.0], [0.0, 0.0]))
    np.testing.assert_allclose(batch.q_episodic, [6.0, 12.0], rtol=1e-6)
    np.testing.assert_allclose(batch.target, [1 + 0.5 * 5.75, 7 + 0.5 * 5.75], rtol=1e-6)  # of other actions none was observed


BLANK = TimeStep(jnp.ones((1, 2)), jnp.zeros(1), jnp.zeros(1, bool), jnp.zeros(1, bool), jnp.ones((1, 2)))
GREEDY = {"epsilon_start": 0.0, "epsilon_end": 0.0, "p_refine": 0.0}


def acting(agent):
    """What an agent does first, in one program: by itself each of its operations would be compiled."""
    return jax.jit(lambda state: agent.act(state, SPEC, BLANK, jnp.int32(0), jax.random.key(0)))


def of_two_minds(agent, favourite=0):
    """A state of MBEC++ in which Q_theta is (2, 4), and Q_MBEC 10 for the favourite and 0 else: rewards, and the memory is empty."""
    network = constant(by_hand(agent).life.mind.reward.network, [0.0])
    network = eqx.tree_at(lambda mlp: (mlp.layers[0].weight, mlp.layers[1].weight), network, replace_fn=lambda x: x.at[0, 0].set(10.0))
    network = eqx.tree_at(lambda mlp: mlp.layers[0].weight, network, jnp.zeros((4, 4)).at[0, 2 + favourite].set(1.0))
    state = by_hand(agent, reward=network)
    mind = state.life.mind
    return state._replace(life=state.life._replace(mind=mind._replace(memory=mind.memory._replace(written=jnp.int32(0)))))


@pytest.mark.parametrize(("beta", "episodic", "semantic", "chosen"), [(0.5, 1.0, 0.0, 0), (0.1, 0.0, 1.0, 1)])
def test_contributions_tell_which_part_agrees_with_the_whole(beta, episodic, semantic, chosen):
    agent = MBECpp(**TINY, **GREEDY, fixed_beta=beta)
    # together (7, 4) with beta = 1/2, and (3, 4) with beta = 1/10
    _, action, metrics = acting(agent)(of_two_minds(agent))
    assert (float(metrics["episodic"]), float(metrics["semantic"])) == (episodic, semantic)
    assert action.tolist() == [chosen]
    assert metrics["value"] == pytest.approx(max(2 + 10 * beta, 4.0))


def test_memory_decides_as_often_as_it_is_asked():
    agent = MBECpp(**TINY, **GREEDY, p_ask=0.5)
    state = of_two_minds(agent)  # with the memory it does the first action, without it the second

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def decided(often, key):
        own = told(agent, {"p_ask": often})
        _, acts, _ = own.act(state, SPEC, BLANK, jnp.int32(0), key)
        _, plays = own.play(state, SPEC, BLANK.observation, jnp.array([True]), key)
        return acts, plays, own.asks(key, 4)[:, 0]

    for often in (0.0, 0.3, 1.0):
        acts, plays, asks = decided(often, jax.random.split(jax.random.key(0), 2_000))
        for actions in (acts, plays):
            assert float(jnp.mean(actions == 0)) == pytest.approx(often, abs=0.03)
        assert float(jnp.mean(jnp.all(asks == asks[:, :1], axis=1))) == pytest.approx(often**4 + (1 - often) ** 4, abs=0.03)  # each its own


def test_a_memory_that_is_not_asked_is_not_heard():
    agent = MBECpp(**TINY, **GREEDY, p_ask=0.0, centred=True)
    _, action, metrics = acting(agent)(of_two_minds(agent, favourite=1))
    assert (action.tolist(), float(metrics["value"])) == ([1], 4.0)
    assert float(metrics["episodic"]) == 1.0  # what it would have said is told all the same
    _, _, metrics = acting(agent)(by_hand(agent))
    assert float(metrics["value"]) == 4.0  # nor is its level


class Asked(Exception):
    """Ends an update where the memory would be asked."""


def test_both_sides_of_a_td_error_ask_memory_by_lots_of_their_own(monkeypatch):
    agent = MBECpp(**TINY, p_ask=0.3, p_read=0.5, updates=2_000, learn_start=1)
    state, replay = several_steps(agent)
    state = state._replace(life=state.life._replace(replay=replay))

    def consult(self, state, spec, first, last, ahead, optimistic, asked):
        raise Asked(ahead.reward.reshape(self.updates, -1)[:, 0] > 1, optimistic, *asked.T)

    monkeypatch.setattr(MBECpp, "consult", consult)
    with jax.disable_jit(), pytest.raises(Asked) as seen:
        agent.learn(state, SPEC, jnp.int32(2), jax.random.key(1))
    drawn = np.array(seen.value.args, float)  # which step it is of, the rule of reading, and both sides
    np.testing.assert_allclose(drawn.mean(axis=1), [0.5, 0.5, 0.3, 0.3], atol=0.04)
    np.testing.assert_allclose(np.corrcoef(drawn), np.eye(4), atol=0.1)


@pytest.mark.parametrize(("by_target", "chosen", "value"), [(False, 1, 4.0), (True, 0, 3.0)])
def test_who_acts_by_the_target_copies_acts_and_plays_as_they_say(by_target, chosen, value):
    greedy = {"epsilon_start": 0.0, "epsilon_end": 0.0, "act_by_target": by_target}
    dqn, mbecpp = DQN(hidden=2, **greedy), MBECpp(**TINY, p_refine=0.0, **greedy)
    alone, joint = dqn.init(jax.random.key(0), SPEC), by_hand(mbecpp)
    alone = alone._replace(q=constant(alone.q, [2.0, 4.0]), q_target=constant(alone.q, [3.0, 1.0]))
    consolidation = constant(joint.target.consolidation, [float(np.log(0.2 / 0.8))])
    joint = joint._replace(target=Semantic(constant(joint.target.q, [3.0, 1.0]), consolidation))
    # Every action has an episodic value of 1/2 and half of 10, by the newest weight of 1/2 or that of the copy, 1/5
    episodic = 5.5 * (0.2 if by_target else 0.5)
    for agent, state, best in ((dqn, alone, value), (mbecpp, joint, value + episodic)):
        _, action, metrics = acting(agent)(state)
        assert action.tolist() == [chosen]
        assert metrics["value"] == pytest.approx(best)
        left = without_learning(agent, state)
        assert agent.play(left, SPEC, jnp.ones((1, 2)), jnp.array([True]), jax.random.key(0))[1].tolist() == [chosen]


@pytest.mark.parametrize("count", [1, 3])
def test_memory_is_asked_for_as_many_environments_as_play(count):
    """However many it was trained in; who asks with certainty plays like one who always asks."""
    spec = replace(SPEC, envs=2)
    always, surely = (MBECpp(**TINY, p_ask=p_ask) for p_ask in (None, 1.0))
    state, seen = without_learning(surely, surely.init(jax.random.key(0), spec)), jnp.arange(2.0 * count).reshape(count, 2)
    played = [agent.play(state, spec, seen, jnp.ones(count, bool), jax.random.key(1)) for agent in (always, surely)]
    assert played[1][1].shape == (count,)
    assert played[0][1].tolist() == played[1][1].tolist()
    np.testing.assert_array_equal(played[0][0].life.mind.tau.h, played[1][0].life.mind.tau.h)


@pytest.mark.parametrize("updates", [1, 4])
def test_no_update_has_the_key_by_which_the_trajectory_model_learns(monkeypatch, updates):
    keys = []
    monkeypatch.setattr(episodic, "train_trajectory", lambda mind, *told: keys.append(told[5]) or mind)
    agent, key = MBECpp(**TINY, updates=updates), jax.random.key(5)
    with jax.disable_jit():
        agent.learn(agent.init(jax.random.key(0), SPEC), SPEC, jnp.int32(0), key)
    taken = [key, *jax.random.split(key, updates)]
    assert not any((jax.random.key_data(keys[0]) == jax.random.key_data(other)).all() for other in taken)


def test_no_gradient_of_the_td_loss_reaches_memory_trajectory_or_reward():
    """However fast the semantic part learns, the rest of the mind becomes the same."""

    agent = MBECpp(**TINY, learn_start=1, trajectory_loss="none")
    before = agent.init(jax.random.key(3), SPEC)
    replay = jax.tree.map(lambda x, y: x.at[:2].set(y[:, None]), before.life.replay, experience([1.0, 5.0], [0.0, 1.0]))
    before = before._replace(life=before.life._replace(replay=replay))
    slow, fast = (learning(agent)(before, {"learning_rate": rate})[0] for rate in (1e-4, 0.3))
    for a, b in zip(jax.tree.leaves(slow.life.mind), jax.tree.leaves(fast.life.mind), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(jax.tree.leaves(slow.life.mind.trajectory), jax.tree.leaves(before.life.mind.trajectory), strict=True):
        np.testing.assert_array_equal(a, b)
    for part in ("q", "consolidation"):
        a, b = (jax.tree.leaves(getattr(state.semantic, part)) for state in (slow, fast))
        assert any(np.any(x != y) for x, y in zip(a, b, strict=True))
    assert any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (slow.life.mind.reward, before.life.mind.reward)), strict=True))


def test_dqn_has_the_td_error_of_its_batch():
    agent = DQN(hidden=2)
    q = constant(agent.init(jax.random.key(0), SPEC).q, [2.0, 4.0])
    batch = jnp.ones((2, 2)), jnp.array([0, 1])
    assert agent.loss(q, *batch, jnp.array([5.0, 5.0])) == pytest.approx((3**2 + 1) / 2)
    assert replace(agent, huber=True).loss(q, *batch, jnp.array([5.0, 4.5])) == pytest.approx((2.5 + 0.25 / 2) / 2)


def test_where_a_limit_ends_is_the_tasks_word_unless_the_agent_says_otherwise():
    flags = TimeStep(None, None, jnp.array([True, False, False]), jnp.array([False, True, False]), None)
    task = {ended: replace(SPEC, limit_ends=ended) for ended in (False, True)}
    for options, spec, expected in (
        (Learning(), task[False], [True, False, False]),
        (Learning(), task[True], [True, True, False]),
        (Learning(time_limit_ends=True), task[False], [True, True, False]),
        (Learning(time_limit_ends=False), task[True], [True, False, False]),
    ):
        assert ends(options, spec, flags).tolist() == expected


def test_exploration_falls_from_start_to_end_by_agent_steps():
    options = Learning(epsilon_start=0.9, epsilon_end=0.1, epsilon_decay=10.0)
    assert epsilon(options, SPEC, jnp.int32(0)) == pytest.approx(0.9)
    assert epsilon(options, SPEC, jnp.int32(10)) == pytest.approx(0.1 + 0.8 / np.e)
    assert epsilon(options, replace(SPEC, envs=2), jnp.int32(5)) == pytest.approx(0.1 + 0.8 / np.e)


def test_with_probability_epsilon_any_action_is_taken():
    lots = jax.random.uniform(jax.random.key(0), (2, 30_000))
    q = jnp.tile(jnp.array([0.0, 1.0, 0.0]), (30_000, 1))
    shares = np.bincount(explore(q, jnp.float32(0.3), lots)) / 30_000
    np.testing.assert_allclose(shares, [0.1, 0.8, 0.1], atol=0.01)
    assert explore(q[:1], jnp.float32(1.0), jnp.array([[0.0], [1.0]])).tolist() == [2]


def test_of_equally_good_actions_each_is_taken_as_often():
    lots = jax.random.uniform(jax.random.key(0), (2, 30_000))
    shares = np.bincount(explore(jnp.full((30_000, 3), -7.0), jnp.float32(0.0), lots)) / 30_000
    np.testing.assert_allclose(shares, [1 / 3] * 3, atol=0.01)
    two = jnp.tile(jnp.array([2.0, 1.0, 2.0]), (30_000, 1))
    shares = np.bincount(explore(two, jnp.float32(0.0), lots)) / 30_000
    np.testing.assert_allclose(shares, [0.5, 0.0, 0.5], atol=0.01)


def test_a_learning_rate_falls_in_a_straight_line_if_so_chosen():
    falling = replace(DQN(), learning_rate=0.5, anneal=True)
    assert [float(rate(falling, SPEC, jnp.int32(step))) for step in (0, 5, 15, 20, 25)] == [0.5, 0.375, 0.125, 0.0, 0.0]
    assert rate(replace(falling, anneal=False), SPEC, jnp.int32(15)) == 0.5


@pytest.mark.parametrize("name", ["dqn", "drqn", "nec", "mbec++", "ppo"])
def test_annealed_agents_hardly_learn_in_the_end(name):
    """From one state, in one program, by the number of the step alone; and who is not annealed has another program."""
    task = find("cartpole", 400)
    options = {"nec": {}, "ppo": {"rollout": 50}}.get(name, {"target_every": 1000})
    driver = loop.Scan(make(name, anneal=True, **options), [task], [0], task.spec(1, 400))
    driver.start()
    driver.advance(350)
    kept = driver.carry, driver.world

    def moved(step):
        carry, driver.world = jax.tree.map(jnp.copy, kept)  # which the driver writes over
        driver.carry = carry._replace(step=jnp.int32(step))
        driver.advance(50)
        changes = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), network(driver.carry.agent), network(kept[0].agent))
        return max(jax.tree.leaves(changes))

    def network(state):
        return getattr(state, {"dqn": "q", "drqn": "q", "nec": "embedding", "mbec++": "semantic", "ppo": "networks"}[name])

    assert 0 < moved(350) < 0.4 * moved(50)
    learns = [loop.program.Program(make(name, anneal=anneal, **options), driver.spec, 1).learn for anneal in (True, False)]
    assert str(jax.make_jaxpr(learns[0])(kept[0])) != str(jax.make_jaxpr(learns[1])(kept[0]))


def test_learning_begins_and_recurs_when_it_is_due():
    options = Learning(learn_start=6, learn_every=4)
    assert [step for step in range(20) if due(options, SPEC, jnp.int32(step))] == [8, 12, 16]
    assert [step for step in range(20) if due(options, replace(SPEC, envs=2), jnp.int32(step))] == [4, 8, 12, 16]
    assert [float(every(3, jnp.int32(step), 1.0, 0.0)) for step in range(4)] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["mbec", "mbec++", "mfec", "nec"])
def test_more_neighbours_than_slots_is_refused(name):
    for option in ("neighbours", "write_neighbours") if "mbec" in name else ("neighbours",):
        with pytest.raises(EngramError, match=rf"^{option} \(9\) must not exceed slots \(5\)"):
            make(name, **({"neighbours": 2, "slots": 5} | {option: 9}))


# Tasks whose values are known: gamma is 1/2

STEPS = 600
LEARNS = {"gamma": 0.5, "epsilon_end": 1.0, "batch": 16, "learn_start": 16}
EPISODIC = {"neighbours": 5, "slots": 200, "chunk": 1, "trajectory": 8, "reward_rate": 5e-3, "p_read": 1.0, "p_refine": 0.0}


@pytest.mark.parametrize("sees", [True, False])
def test_a_network_that_sees_the_trajectory_recalls_a_cue_that_is_no_longer_seen(sees):
    """Without the memory's part. At the last step both cues look the same but for what came before."""
    learns = {"gamma": 0.9, "hidden": 16, "learning_rate": 5e-3, "target_every": 20, "epsilon_end": 0.1, "epsilon_decay": 300.0}
    agent = MBECpp(**learns, fixed_beta=0.0, q_sees_trajectory=sees, batch=16, slots=8, neighbours=1, chunk=1, trajectory=8)
    driver = loop.Scan(agent, [CUE] * 2, [0, 1], probe_spec(1_500))
    driver.start()
    driver.advance(1_500)
    returns = np.asarray(jax.jit(jax.vmap(lambda state: recalls(agent, state, driver.spec)))(driver.carry.agent))
    assert returns.sum(axis=-1).tolist() == ([2.0, 2.0] if sees else [0.0, 0.0])


# A refinement at the first state moves even far neighbours, and so lifts what is remembered of an end: here values are exact.
LEARNERS = {
    "dqn": DQN(hidden=24, target_every=10, learning_rate=5e-3, **LEARNS),
    "mbec": MBEC(**LEARNS, **EPISODIC),
    "mbec++": MBECpp(hidden=24, target_every=10, learning_rate=5e-3, **LEARNS, **EPISODIC),
    "mfec": MFEC(gamma=0.5, epsilon_end=1.0, neighbours=3, slots=200),
    "nec": NEC(hidden=16, embedding=4, neighbours=5, slots=200, horizon=5, **LEARNS),
    "drqn": DRQN(hidden=16, lstm=8, sequence=4, learn_every=1, target_every=10, learning_rate=5e-3, **LEARNS),
    "ppo": PPO(gamma=0.5, hidden=16, rollout=24, epochs=6, minibatches=1, learning_rate=1e-2),
}


@pytest.fixture(scope="module", params=LEARNERS)
def learner(request):
    """An agent with its states after training on all probes, in one program."""
    agent = LEARNERS[request.param]
    driver = loop.Scan(agent, PROBES, [0] * len(PROBES), probe_spec(STEPS))
    driver.start()
    driver.advance(STEPS)
    return agent, jax.tree.map(np.asarray, driver.carry.agent)  # of which NumPy takes a run without a program for each shape


def values(learner, probe, seen, actions=()):
    """Q of both actions at the last of the observations `seen`, after `actions` at those before."""
    agent, states = learner
    state, spec = jax.tree.map(lambda x: x[probe], states), probe_spec(STEPS)
    if isinstance(agent, DQN):
        return np.asarray(state.q(jnp.array(seen[-1])))
    if isinstance(agent, MFEC):
        key = agent.keys(state, spec, jnp.array(seen[-1:]))
        return np.asarray(tb.read_mean(state.tables, tb.recall(state.tables, key, agent.neighbours))[0])
    if isinstance(agent, NEC):
        near = tb.recall(state.tables, jax.vmap(state.embedding)(jnp.array(seen[-1:])), agent.neighbours, agent.delta)
        return np.asarray(tb.read_weighted(state.tables, near)[0])
    if isinstance(agent, DRQN):
        _, q = state.q(fresh(1, agent.lstm), jnp.array(seen)[:, None], jnp.zeros((len(seen), 1), bool))
        return np.asarray(q[-1, 0])
    if isinstance(agent, PPO):  # the value of the state, whatever is done there
        return np.asarray(run_once(state.networks, None, jnp.array(seen[-1:]))[2])
    mind = (state.life if isinstance(agent, MBECpp) else state).mind
    for step, observation in enumerate(seen):
        plan, q, tau = foresee(agent, mind, spec, jnp.array([observation]), jnp.array([step == 0]))
        if step < len(actions):
            mind = mind._replace(tau=episodic.after(plan, jnp.array([actions[step]])))
    if isinstance(agent, MBECpp):
        q = agent.beta(state.semantic, tau.h)[:, None] * q + jax.vmap(state.semantic.q)(jnp.array(seen[-1:]))
    return np.asarray(q[0])


def test_one_state_of_reward_1_is_worth_1(learner):
    np.testing.assert_allclose(values(learner, ONE_STATE, [[0.0, 0.0]]), 1.0, atol=0.1)


def test_a_reward_one_step_ahead_is_worth_gamma_and_then_1(learner):
    np.testing.assert_allclose(values(learner, TWO_STATES, [[0.0, 0.0]]), 0.5, atol=0.1)
    for action in (0, 1):
        np.testing.assert_allclose(values(learner, TWO_STATES, [[0.0, 0.0], [1.0, 0.0]], [action]), 1.0, atol=0.1)


def test_a_reward_that_is_seen_is_foreseen(learner):
    for mark in (-1.0, 1.0):
        np.testing.assert_allclose(values(learner, SEEN_REWARD, [[0.0, mark]]), mark, atol=0.15)


@pytest.fixture
def valuer(learner):
    """One that knows values of actions."""
    if isinstance(learner[0], PPO):
        pytest.skip("PPO has values of states, not of actions: its play shows what it has learnt.")
    return learner


def test_a_reward_that_is_chosen_is_told_apart_by_the_action(valuer):
    np.testing.assert_allclose(values(valuer, CHOSEN_REWARD, [[0.0, 0.0]]), [-1.0, 1.0], atol=0.15)


def test_the_better_arm_is_known_though_it_pays_later(valuer):
    q = values(valuer, TWO_ARMS, [[0.0, 0.0]])
    np.testing.assert_allclose(q, [0.0, 0.25], atol=0.1)
    assert q[1] > q[0] + 0.1


def test_greedy_play_takes_what_was_learnt(learner):
    agent, states = learner
    play = jax.jit(jax.vmap(lambda state, key: agent.play(state, probe_spec(STEPS), jnp.zeros((6, 2)), jnp.ones(6, bool), key)[1]))
    chosen = np.asarray(play(states, jax.random.split(jax.random.key(1), len(PROBES))))
    assert (chosen[CHOSEN_REWARD] == 1).all()
    assert (chosen[TWO_ARMS] == 1).all()


def test_a_random_agent_learns_nothing():
    _, actions = Random().play((), SPEC, jnp.zeros((1000, 2)), jnp.ones(1000, bool), jax.random.key(0))
    assert 400 < int(actions.sum()) < 600


# Every agent

SMALLEST = {
    "random": Random(),
    "dqn": DQN(batch=4, hidden=4, learn_start=4),
    "mbec": MBEC(batch=4, neighbours=2, slots=16, chunk=2, trajectory=3, reward_hidden=4, learn_start=8),
    "mbec++": MBECpp(batch=4, neighbours=2, slots=16, chunk=2, trajectory=3, hidden=4, reward_hidden=4, learn_start=8),
    "mfec": MFEC(neighbours=2, slots=16, epsilon_decay=10.0),
    "nec": NEC(batch=4, hidden=4, embedding=3, neighbours=2, slots=16, horizon=3, replay=200, learn_start=4, learn_every=2),
    "drqn": DRQN(batch=2, hidden=4, lstm=4, sequence=3, learn_start=4, learn_every=1),
    "ppo": PPO(hidden=4, rollout=16, epochs=2, minibatches=2),
    "ppo with an LSTM": PPO(hidden=4, rollout=16, epochs=2, minibatches=2, recurrent=True, lstm=4, sequence=4),
}
WALKS = Spec((2,), 2, limit=6, envs=2, iterations=60)


class Everyone:
    """An agent in two runs of two environments each: one program for all seeds and lengths."""

    def __init__(self, agent):
        self.agent = agent
        self.driver = loop.Scan(agent, [WALK] * 2, [5, 6], WALKS)
        self.driver.most = WALKS.iterations
        self.begin = jax.jit(self.driver._init)

    def start(self, *seeds):
        self.driver.carry, self.driver.world = self.begin(jnp.array(seeds, jnp.uint32))
        self.driver.iteration = 0

    def advance(self, iterations):
        """What the agents know then, and the returns."""
        returns = self.driver.advance(iterations)
        return jax.tree.map(np.array, self.driver.carry.agent), returns


def alike(a, b, run_of_a, run_of_b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x[run_of_a], y[run_of_b], rtol=2e-3, atol=2e-3)


def two_seeds_live_and_learn_differently(everyone, tmp_path):
    everyone.start(5, 6)
    before = jax.tree.map(np.array, everyone.driver.carry.agent)
    state, returns = everyone.advance(60)
    assert np.isfinite(returns).any(axis=0).all()  # in every environment of both runs episodes have ended
    assert not np.array_equal(returns[:, 0], returns[:, 1], equal_nan=True)
    assert all(np.isfinite(x).all() for x in everyone.driver.metrics().values())
    if everyone.agent != Random():
        old, new = (jax.tree.leaves(x)[0] for x in (before, state))  # what is learnt stands first in every state
        assert np.any(new[0] != old[0])
        assert np.any(new[1] != old[1])
        assert np.any(new[0] != new[1])


def a_seed_does_not_mind_its_neighbours(everyone, tmp_path):
    """Over 30 steps: later NEC, whose neighbours are chosen by distances that it learns, makes much of how a number was rounded."""
    everyone.start(5, 6)
    one, returns = everyone.advance(30)
    everyone.start(6, 7)
    other, same = everyone.advance(30)
    np.testing.assert_array_equal(returns[:, 1], same[:, 0])
    alike(one, other, 1, 0)


def a_seed_alone_in_gymnasium_lives_what_it_lives_in_jax_among_others(everyone, tmp_path):
    if isinstance(everyone.agent, MBEC | MBECpp):
        return  # test_loop.py compares MBEC++ alone and among others, and test_training.py trains it in Gymnasium
    everyone.start(5, 6)
    in_jax, returns = everyone.advance(30)
    alone = loop.Host(everyone.agent, [WALK], [6], WALKS)
    alone.start()
    np.testing.assert_array_equal(alone.advance(30)[:, 0], returns[:, 1])
    alike(in_jax, alone.carry.agent, 1, 0)


def what_was_saved_goes_on_bit_for_bit(everyone, tmp_path):
    everyone.start(5, 6)
    everyone.advance(23)
    folder = records.create(tmp_path / "run", {})
    folder.save(everyone.driver.save()[0], {})
    whole, returns = everyone.advance(37)
    tree, _ = folder.restore(everyone.driver.template())
    everyone.driver.restore(tree, {})
    assert everyone.driver.iteration == 23
    again, same = everyone.advance(37)
    np.testing.assert_array_equal(returns, same)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)


def any_number_of_environments_is_played_and_with_any_chance(everyone, tmp_path):
    agent, many = everyone.agent, 400
    everyone.start(5, 6)
    state = jax.tree.map(lambda x: jnp.array(x[0]), everyone.driver.carry.agent)
    play = jax.jit(lambda state, first, chance: agent.play(state, WALKS, jnp.ones((many, 2)), first, jax.random.key(1), chance))
    state, greedy = play(state, jnp.ones(many, bool), 0.0)
    for chance, expected in ((0.0, 0), (0.5, many / 4), (1.0, many / 2)):  # of what is drawn, half is the greedy one
        _, actions = play(state, jnp.ones(many, bool), chance)  # the episodes begin again, so that all see the same
        assert set(actions.tolist()) <= {0, 1}
        if not isinstance(agent, Random):
            assert abs(np.sum(actions != greedy) - expected) <= 0.2 * expected
    _, actions = play(state, jnp.zeros(many, bool), 0.0)  # they go on
    assert actions.shape == (many,)


PROMISES = [
    two_seeds_live_and_learn_differently,
    a_seed_does_not_mind_its_neighbours,
    a_seed_alone_in_gymnasium_lives_what_it_lives_in_jax_among_others,
    what_was_saved_goes_on_bit_for_bit,
    any_number_of_environments_is_played_and_with_any_chance,
]


@pytest.mark.parametrize("name", ["mbec", "mbec++"])
def test_a_trajectory_goes_on_by_what_is_done_not_by_what_would_be_best(name):
    agent = SMALLEST[name]
    spec = replace(WALKS, envs=200)
    state = agent.init(jax.random.key(0), spec)
    mind = (state.life if name == "mbec++" else state).mind
    seen = jnp.ones((200, 2))
    play = jax.jit(lambda state: agent.play(state, spec, seen, jnp.ones(200, bool), jax.random.key(1), 0.5))
    after, actions = play(state)
    pairs = models.pairs(seen, actions, spec.actions)
    expected = jax.vmap(mind.trajectory)(fresh(200, agent.trajectory), pairs)
    assert set(actions.tolist()) == {0, 1}
    np.testing.assert_allclose((after.life if name == "mbec++" else after).mind.tau.h, expected.h, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SMALLEST)
def test_every_agent_keeps_the_promises_of_all(name, tmp_path):
    """In one test for each, as two processes would otherwise compile the same program."""
    everyone = Everyone(SMALLEST[name])
    for promise in PROMISES:
        promise(everyone, tmp_path)


def test_no_agent_is_forgotten():
    assert {name_of(agent) for agent in SMALLEST.values()} == set(AGENTS)


# All switches together

SHORT = Task("short", "", find("cartpole").make, dynamics=CartPole(limit=10))  # so that many episodes are cut
SMALL = {"batch": 4, "hidden": 8, "neighbours": 2, "slots": 16, "chunk": 2, "trajectory": 4, "reward_hidden": 8, "cues": 2}


def trained(agent, *stretches):
    """Means of the metrics over each stretch of steps."""
    driver = loop.Scan(agent, [SHORT], [0], Spec((4,), 2, limit=10, iterations=sum(stretches)))
    driver.start()
    driver.most = max(stretches)  # so that one program serves all
    for steps in stretches:
        driver.advance(steps)
        yield {name: float(value[0]) for name, value in driver.metrics().items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dqn", {}),
        ("dqn", {"double": True, "multi_step": 3}),
        ("mbec++", {"q_chooses": True, "p_ask": 0.5}),
        ("mbec++", {"double": True, "multi_step": 3, "centred": True, "reward_sees_trajectory": True}),
    ],
)
def test_two_updates_in_an_iteration_are_one_after_another(name, options):
    small = {"batch": 8, "hidden": 8, "target_every": 50} | (SMALL if name == "mbec++" else {}) | options
    one, spec = make(name, "paper", **small), Spec((2,), 2, limit=10, iterations=60)
    learn, both = (jax.jit(lambda *now, agent=agent: agent.learn(now[0], spec, *now[1:])) for agent in (one, replace(one, updates=2)))
    state, act, rewards = one.init(jax.random.key(0), spec), actor(one, spec), np.random.default_rng(0).normal(size=(5, 10))
    for step, timestep in zip(range(41), episodes(*((mark, own, True) for mark, own in enumerate(rewards))), strict=False):
        state, _, _ = act(state, timestep, jnp.int32(step))
        state, _ = learn(state, jnp.int32(step), jax.random.fold_in(jax.random.key(1), step))
    step, key = jnp.int32(41), jax.random.key(3)  # no multiple of what else happens now and then
    first, second = jax.random.split(key)
    once, losses = learn(state, step, first)
    twice, more = learn(once, step, second)
    together, means = both(state, step, key)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(twice), strict=True):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert float(means["td_loss"]) == pytest.approx((float(losses["td_loss"]) + float(more["td_loss"])) / 2, rel=1e-5)
    assert float(losses["td_loss"]) != float(more["td_loss"])


def known_after_each(agent, iterations):
    """What an agent knew after each iteration."""
    driver = loop.Scan(agent, [SHORT], [0], Spec((4,), 2, limit=10, iterations=60))
    driver.start()
    known = []
    for _ in range(iterations):
        driver.advance(1)
        known.append(jax.tree.map(np.array, driver.carry.agent))
    return known


@pytest.fixture(scope="module")
def stopping():
    """MBEC++ with two updates in an iteration, whose models learn from 20 steps."""
    return known_after_each(make("mbec++", "paper", **SMALL | {"learn_start": 1, "models_stop": 20, "target_every": 10, "updates": 2}), 40)


def test_models_learn_until_they_stop(stopping):
    found = [
        [jax.tree.leaves(x) for x in (known.life.mind.reward, known.life.mind.trajectory, known.semantic)]
        for known in (stopping[14], stopping[24], stopping[39])
    ]
    for parts, has_changed in ((found[:2], (True, True, True)), (found[1:], (False, False, True))):
        assert tuple(any(np.any(a != b) for a, b in zip(*pair, strict=True)) for pair in zip(*parts, strict=True)) == has_changed


def test_large_target_copies_are_renewed_by_a_branch():
    new, old = {"q": jnp.ones(3)}, {"q": jnp.zeros(3)}
    for updates, expected in ((2, [1, 0, 0, 1, 0, 0, 1]), (30, [1] * 7)):
        for stack in (0, 4):
            agent, spec = DQN(target_every=6, updates=updates), replace(SPEC, stack=stack)
            assert [float(renewed(agent, spec, jnp.int32(step), new, old)["q"][0]) for step in range(7)] == expected


def test_target_copies_that_follow_go_a_part_of_the_way_with_each_update():
    new, old = {"q": jnp.full(2, 8.0)}, {"q": jnp.zeros(2)}
    for updates, learns, expected in ((1, 0, 2.0), (2, 0, 3.5), (2, 9, 0.0)):  # 8 (1 - 0.75^updates); nothing where nothing is learnt
        agent = DQN(target_rate=0.25, updates=updates, learn_start=max(1, learns * SPEC.envs))
        assert float(renewed(agent, SPEC, jnp.int32(8), new, old)["q"][0]) == expected


@pytest.mark.parametrize("name", ["dqn", "mbec++"])
def test_an_iteration_of_two_updates_counts_twice_for_the_target_copies(name, request):
    if name == "dqn":
        known = known_after_each(make("dqn", "paper", batch=8, hidden=8, target_every=10, learn_start=1, updates=2), 21)
        networks = [(state.q, state.q_target) for state in known]
    else:
        networks = [(state.semantic, state.target) for state in request.getfixturevalue("stopping")[:21]]
    leaves = [map(jax.tree.leaves, pair) for pair in networks]
    equal = [i for i, (now, target) in enumerate(leaves) if all(np.array_equal(a, b) for a, b in zip(now, target, strict=True))]
    assert [iteration for iteration in equal if iteration > 0] == [5, 10, 15, 20]


def test_the_authors_switches_train_together():
    options = {"trajectory_loss": "prediction", "time_limit_ends": True, "p_recall": 1.0}
    first, last = trained(make("mbec++", "authors", **(SMALL | options)), 100, 400)
    assert np.isfinite([*first.values(), *last.values()]).all()
    assert last["reward_loss"] < 0.5 * first["reward_loss"]
    assert 0 < last["trajectory_loss"] < first["trajectory_loss"] * 1.5
    assert last["td_loss"] > 0
    assert 0 < last["beta"] < 1
    assert last["memory"] == 16
