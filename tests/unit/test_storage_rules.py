"""What MBEC stores by its own rules: returns with the step's reward, of n steps, soon written."""

from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import constant_network
from scripted_rollout import (
    AGENT,
    FIVE_STEPS,
    SPEC,
    TERMINATED,
    TRUNCATED,
    assert_stored,
    programs,
    rollout,
)

from engram.agents import make
from engram.episodic import control
from engram.episodic.control import WRITES_PER_STEP, StepResult, StorageRules
from engram.episodic.trajectory_model import RewardModel
from engram.networks import LSTMState
from engram.types import TimeStep

# As in `scripted_rollout` gamma is 1/2 and K is 1; every step is stored.
MONTE_CARLO = replace(AGENT, chunk=1, memory_size=128, rewards="memory", reencode=True)
TWO_STEP = replace(MONTE_CARLO, n_step=2)
SECOND_EPISODE = [[(3.0, "")], [(5.0, "")]]


@pytest.fixture
def no_moving_of_neighbours(monkeypatch):
    """Writes do not move neighbours, so that stored values can be computed by hand."""
    monkeypatch.setattr(control, "WRITE_LR", 0.0)


def first_episode(result):
    """What `FIVE_STEPS` leaves in the memory: 1 + 2/2 + 4/4 + 8/8 + 16/16, and so on."""
    values = ((1, 5.0), (2, 8.0), (3, 12.0), (4, 16.0), (5, 16.0))
    return [(result.tau(0, t), value) for t, value in values]


def written(result):
    return [int(state.episodic.memory.num_inserted) for state in result.states]


# Returns until the end of the episode


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_every_step_is_stored_with_its_own_reward_and_those_after_it():
    result = rollout(MONTE_CARLO, SPEC, FIVE_STEPS)
    assert_stored(result.states[-1], first_episode(result))


@pytest.mark.usefixtures("no_moving_of_neighbours")
@pytest.mark.parametrize(("store_final", "steps"), [(False, [2, 4]), (True, [2, 4, 5])])
def test_every_second_step_is_stored_with_its_own_reward(store_final, steps):
    agent = replace(MONTE_CARLO, chunk=2, store_final=store_final)
    result = rollout(agent, SPEC, FIVE_STEPS)
    assert_stored(result.states[-1], [first_episode(result)[t - 1] for t in steps])


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_entries_are_written_two_per_step_in_order_with_the_number_of_their_step():
    assert WRITES_PER_STEP == 2
    result = rollout(MONTE_CARLO, SPEC, FIVE_STEPS)
    assert written(result)[:10] == [0, 0, 0, 0, 0, 2, 4, 5, 5, 5]
    assert result.states[-1].episodic.memory.source[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_the_backlog_of_long_episodes_is_written_in_order_and_without_loss():
    length = 30
    spec = replace(SPEC, max_episode_steps=length)
    rewards = np.random.default_rng(0).normal(size=(2, length))
    script = [
        [(float(reward), TERMINATED if t == length - 1 else "")]
        for episode in rewards
        for t, reward in enumerate(episode)
    ]
    result = rollout(MONTE_CARLO, spec, script, extra=length)
    counts = [int(state.episodic.pending.count[0]) for state in result.states]
    # An episode waits as a whole, then two are written and one is added in every step.
    assert counts[length - 1 : length + 3] == [length - 1, length - 2, length - 3, length - 4]
    assert counts[2 * length - 1] == length - 1
    assert counts[2 * length] == length - 2
    assert np.diff(written(result)).max() == 2
    memory = result.states[-1].episodic.memory
    assert memory.source[: 2 * length].tolist() == list(range(2 * length))
    discounts = 0.5 ** np.arange(length)
    returns = [
        np.sum(discounts[: length - t] * episode[t:]) for episode in rewards for t in range(length)
    ]
    np.testing.assert_allclose(memory.values[: 2 * length], returns, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_environments_are_independent():
    other = [(10.0, ""), (20.0, ""), (40.0, TERMINATED), (5.0, ""), (6.0, "")]
    script = [[one, second] for (one,), second in zip(FIVE_STEPS, other, strict=True)]
    result = rollout(MONTE_CARLO, replace(SPEC, num_envs=2), script, extra=4)
    second = [(result.tau(0, t, env=1), value) for t, value in ((1, 30.0), (2, 40.0), (3, 40.0))]
    assert_stored(result.states[-1], first_episode(result) + second)
    # Iteration 3 writes steps 0 and 1 of the second environment, iteration 5 of the first one.
    assert result.states[-1].episodic.memory.source[:8].tolist() == [1, 3, 5, 0, 2, 4, 6, 8]


# n-step returns


def read(memory, key):
    """The value of the nearest memory (K is 1); 0 from an empty one."""
    if int(memory.size) == 0:
        return 0.0
    keys = np.asarray(memory.keys)[: int(memory.size)]
    return float(memory.values[np.linalg.norm(keys - key, axis=1).argmin()])


def action_values(result, start, t):
    """Q of both actions in iteration t of an episode, by the memory before it."""
    model, memory = result.states[t].episodic.key_model, result.states[t - 1].episodic.memory
    tau = LSTMState(jnp.zeros(3), jnp.zeros(3))
    for pair in result.pairs[0][start:t]:
        tau = model(tau, pair)
    obs = result.pairs[0][t][:2]
    taus = [model(tau, np.concatenate([obs, one_hot]).astype(np.float32)) for one_hot in np.eye(2)]
    return [read(memory, np.asarray(next_tau.h)) for next_tau in taus]


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_an_n_step_return_bootstraps_from_the_best_action_of_the_state_reached():
    result = rollout(TWO_STEP, SPEC, [*FIVE_STEPS, [(3.0, "")], [(-9.0, "")], [(5.0, "")]], extra=2)
    memory = result.states[-1].episodic.memory
    keys, values = np.asarray(memory.keys), np.asarray(memory.values)
    # Returns of the steps of both episodes with two rewards before their end.
    rewards, unlike = [1.0, 2.0, 4.0, 8.0, 16.0, 3.0, -9.0, 5.0, 0.0], 0
    for t, start in ((0, 0), (1, 0), (2, 0), (5, 5), (6, 5), (7, 5)):
        q = action_values(result, start, t + 2)
        unlike += q[0] != q[1]
        expected = rewards[t] + rewards[t + 1] / 2 + max(q) / 4
        (slot,) = np.flatnonzero(memory.source[: int(memory.size)] == t)
        np.testing.assert_allclose(keys[slot], result.tau(start, t + 1), atol=1e-6)
        assert values[slot] == pytest.approx(expected, rel=1e-5)
    assert unlike > 0
    # The first of them met an empty memory.
    assert values[0] == pytest.approx(1 + 2 / 2)


@pytest.mark.usefixtures("no_moving_of_neighbours")
def test_n_step_returns_are_written_while_the_episode_lasts():
    result = rollout(TWO_STEP, SPEC, [[(1.0, "")]] * 12, extra=0)
    assert written(result) == [0, 0, *range(1, 12)]
    assert max(int(state.episodic.pending.count[0]) for state in result.states) == 1


@pytest.mark.usefixtures("no_moving_of_neighbours")
@pytest.mark.parametrize("n_step", [2, 9, None])
def test_a_terminated_episode_has_no_bootstrap(n_step):
    result = rollout(replace(MONTE_CARLO, n_step=n_step), SPEC, FIVE_STEPS)
    memory = result.states[-1].episodic.memory
    last_two = [int(np.flatnonzero(memory.source[:5] == t)[0]) for t in (3, 4)]
    assert memory.values[jnp.array(last_two)].tolist() == [8 + 16 / 2, 16.0]


@pytest.mark.usefixtures("no_moving_of_neighbours")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_truncated_episode_bootstraps_from_its_last_trajectory_unless_that_is_terminal(
    is_terminal,
):
    spec = replace(SPEC, truncation_is_terminal=is_terminal)
    script = [*FIVE_STEPS, *SECOND_EPISODE, [(7.0, TRUNCATED)]]
    result = rollout(MONTE_CARLO, spec, script)
    memory, last = result.states[7].episodic.memory, result.tau(5, 8)
    assert int(memory.size) == 5
    # The memory's value of the last step is its reward of 7 and half of what would have followed.
    rest = 0.0 if is_terminal else 2 * (read(memory, last) - 7)
    assert is_terminal or abs(rest) > 1
    second = [
        (result.tau(5, 6), 3 + 5 / 2 + 7 / 4 + rest / 8),
        (result.tau(5, 7), 5 + 7 / 2 + rest / 4),
        (last, 7 + rest / 2),
    ]
    assert_stored(result.states[-1], first_episode(result) + second)


# Refinement


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("", 8 + 0.5 * (3 + 8 / 2 - 8)),
        (TRUNCATED, 8.0),  # nothing is known of what would have followed
        (TERMINATED, 8 + 0.5 * (3 - 8)),
    ],
)
def test_a_step_refines_the_trajectory_that_it_reached_towards_its_reward_and_the_best_q(
    end, expected
):
    agent = replace(MONTE_CARLO, chunk=6, p_refine=1.0)  # nothing is written
    init, step = programs(agent, SPEC)
    no, ended = np.zeros(1, bool), np.ones(1, bool)
    obs = np.ones((1, 2), np.float32)

    def timestep(reward, end=""):
        flags = (ended if end == kind else no for kind in (TERMINATED, TRUNCATED))
        return TimeStep(obs, np.full(1, reward, np.float32), *flags, obs)

    def with_memories(state):
        """Every read is 8. The second memory is of the next episode's start."""
        episodic = state.episodic
        memory = episodic.memory._replace(
            keys=episodic.memory.keys.at[0].set(episodic.tau.h[0]),
            values=episodic.memory.values.at[:2].set(8.0),
            num_inserted=jnp.int32(2),
        )
        return state._replace(episodic=episodic._replace(memory=memory))

    state, _, _ = step(with_memories(init()), timestep(9.0), jnp.int32(0), jax.random.key(0))
    assert state.episodic.memory.values[:2].tolist() == [8.0, 8.0]  # there was no step before
    state = with_memories(state)
    state, _, _ = step(state, timestep(3.0, end), jnp.int32(1), jax.random.key(0))
    np.testing.assert_allclose(state.episodic.memory.values[:2], [expected, 8.0])


# The trajectory vector is one number. The model's next one is 0 after action 0, and after action 1
# it is this, from a cell state of 0.
AFTER_ACTION_1 = 0.5 * np.tanh(0.5)
MODEL_RULES, MEMORY_RULES = StorageRules(), StorageRules(includes_reward=True)


def simple_state(spec, keys, values):
    """A state of episodic control with a model as above, a reward model of 1/2, and a memory."""
    config = make("mbec", "paper", trajectory_dim=1, memory_size=8, num_neighbours=1)
    state = control.init(config, spec, 2, jax.random.key(0))
    cell = jax.tree.map(jnp.zeros_like, state.trajectory_model.cell)
    # Rows are the input, forget, cell and output gates; columns are two features and two actions.
    cell = eqx.tree_at(lambda c: c.weight_ih, cell, cell.weight_ih.at[2, 3].set(50.0))
    memory = state.memory._replace(
        keys=state.memory.keys.at[: len(keys), 0].set(jnp.array(keys)),
        values=state.memory.values.at[: len(keys)].set(jnp.array(values)),
        num_inserted=jnp.int32(len(keys)),
    )
    return state._replace(
        memory=memory,
        trajectory_model=eqx.tree_at(lambda m: m.cell, state.trajectory_model, cell),
        reward_model=RewardModel(constant_network(state.reward_model.network, [0.5])),
    )


def refined(keys, values, tau, k, is_terminal, rules, use_max=False):
    """The memory's values after one refinement at a past `tau` with reward 1 (gamma is 1/2)."""
    config = SimpleNamespace(num_neighbours=k, num_write_neighbours=None, gamma=0.5)
    flag = jnp.array([is_terminal])
    reached = StepResult(jnp.ones((1, 2)), jnp.ones(1), flag, flag)
    tau = LSTMState(jnp.array([[tau]]), jnp.zeros((1, 1)))

    @jax.jit
    def refine():
        state = simple_state(SPEC, keys, values)
        return control.refine_past(state, config, SPEC, reached, tau, rules, jnp.array(use_max))

    return np.asarray(refine().memory.values)[: len(keys)]


@pytest.mark.parametrize(
    ("rules", "is_terminal", "target"),
    [
        (MEMORY_RULES, False, 1 + 20 / 2),
        (MEMORY_RULES, True, 1.0),
        (MODEL_RULES, False, 0.5 + 20 / 2),
        (MODEL_RULES, True, 0.0),
    ],
)
def test_a_past_step_is_refined_towards_the_best_action_after_it(rules, is_terminal, target):
    """Action 0 leads to a memory of 10, action 1 to one of 20; the past step itself has 2."""
    keys, values = [0.0, AFTER_ACTION_1, 3.0], [10.0, 20.0, 2.0]
    new_values = refined(keys, values, 3.0, 1, is_terminal, rules)
    np.testing.assert_allclose(new_values, [10.0, 20.0, 2 + 0.5 * (target - 2)], rtol=1e-5)


@pytest.mark.parametrize(("use_max", "next_value"), [(False, 15.0), (True, 20.0)])
def test_a_past_step_moves_two_neighbours_by_their_weights(use_max, next_value):
    """All actions lead midway between two far memories, and the past step to one of them."""
    keys, values = [-1_000.0, 1_000.0], [10.0, 20.0]
    new_values = refined(keys, values, 500.0, 2, False, MEMORY_RULES, use_max)
    target = 1 + next_value / 2
    # Distances 1,500 and 500: weights 1/4 and 3/4.
    expected = [10 + 0.5 * (target - 10) / 4, 20 + 0.5 * (target - 20) * 3 / 4]
    np.testing.assert_allclose(new_values, expected, rtol=1e-3)


@pytest.mark.parametrize(("refine_batch", "expected"), [(0, 8.0), (2, 13 - (13 - 8) / 4)])
def test_learning_refines_so_many_past_steps(refine_batch, expected):
    """Replay holds one step of reward 3 and memory value 8, after which the best Q is 20."""
    agent = replace(MONTE_CARLO, refine_batch=refine_batch, learning_starts=1)
    state = rollout(agent, SPEC, [[(3.0, "")]], extra=0).states[-1]
    inputs = state.inputs._replace(mean=jnp.array([0.5, -0.5]), weight=jnp.array([2.0, 3.0]))
    first = jax.tree.map(lambda x: x[0], state.replay)

    def keys_after(tau, features):
        after = [
            state.episodic.key_model(jax.tree.map(lambda x: x[0], tau), pair)
            for pair in np.concatenate([np.tile(features, (2, 1)), np.eye(2)], axis=1)
        ]
        return [np.asarray(next_tau.h) for next_tau in after]

    memories = [
        (first.next_tau.h[0], 8.0),
        *zip(keys_after(first.next_tau, inputs(first.next_obs)), (20.0, 4.0), strict=True),
        # The step before it, other observations, and observations that are not encoded.
        (first.tau.h[0], 100.0),
        *zip(keys_after(first.next_tau, inputs(first.obs)), (200.0, 300.0), strict=True),
        *zip(keys_after(first.next_tau, first.next_obs), (400.0, 500.0), strict=True),
    ]
    keys, values = (jnp.array(np.array(x)) for x in zip(*memories, strict=True))
    memory = state.episodic.memory
    memory = memory._replace(
        keys=memory.keys.at[: len(keys)].set(keys),
        values=memory.values.at[: len(keys)].set(values),
        num_inserted=jnp.int32(len(keys)),
    )
    state = state._replace(episodic=state.episodic._replace(memory=memory), inputs=inputs)
    learn = jax.jit(lambda state: agent.learn(state, SPEC, jnp.int32(1), jax.random.key(0))[0])
    new_values = learn(state).episodic.memory.values[: len(keys)]
    np.testing.assert_allclose(new_values, [expected, *values[1:]], rtol=1e-5)
