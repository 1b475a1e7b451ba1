"""What every agent guarantees: seeds, checkpoints, annealing, and greedy play of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import WALK

from engram import run_dir
from engram.agents import AGENTS, DQN, DRQN, MBEC, MFEC, NEC, PPO, MBECpp, Random, agent_name, make
from engram.config import replace
from engram.runners import GymRunner, JaxRunner, VmappedAgent
from engram.types import Spec

EPISODIC = {"batch_size": 4, "num_neighbours": 2, "memory_size": 16, "chunk": 2}
EPISODIC |= {"trajectory_dim": 3, "learning_starts": 8}
PPO_SMALL = {"hidden_size": 4, "num_steps": 16, "update_epochs": 2, "num_minibatches": 2}
SMALLEST = {
    "random": Random(),
    "dqn": DQN(batch_size=4, hidden_size=4, learning_starts=4, anneal_lr=True),
    "mbec": MBEC(**EPISODIC),
    "mbec of the paper": make("mbec", "paper", **EPISODIC),
    "mbec++": MBECpp(**EPISODIC, hidden_size=4, anneal_lr=True),
    "mfec": MFEC(num_neighbours=2, memory_size=16, epsilon_decay=10.0),
    "nec": NEC(
        batch_size=4,
        hidden_size=4,
        key_size=3,
        num_neighbours=2,
        memory_size=16,
        n_step=3,
        buffer_size=200,
        learning_starts=4,
        train_frequency=4,
        anneal_lr=True,
    ),
    "drqn": DRQN(
        batch_size=2,
        hidden_size=4,
        lstm_size=4,
        sequence_length=3,
        learning_starts=4,
        train_frequency=1,
        anneal_lr=True,
    ),
    "ppo": PPO(**PPO_SMALL, anneal_lr=True),
    "ppo with an LSTM": PPO(
        **PPO_SMALL, recurrent=True, lstm_size=4, sequence_length=4, anneal_lr=False
    ),
}
SPEC = Spec((2,), 2, max_episode_steps=6, num_envs=2, num_iterations=60)


class TwoRuns:
    """An agent in two runs of two environments each: one program for all seeds and lengths."""

    def __init__(self, agent):
        self.agent = agent
        self.runner = JaxRunner(agent, [WALK] * 2, [5, 6], SPEC)
        self.runner.max_iterations = SPEC.num_iterations
        self.init = jax.jit(self.runner._init)

    def start(self, *seeds):
        self.runner.run_state, self.runner.env_state = self.init(jnp.array(seeds, jnp.uint32))
        self.runner.iteration = 0

    def advance(self, iterations):
        """The agents' states after so many iterations, and the returns."""
        returns = self.runner.advance(iterations)
        return self.states(), returns

    def states(self):
        return jax.tree.map(np.array, self.runner.run_state.agent)


def assert_same_run(states, run, other_states, other_run):
    for x, y in zip(jax.tree.leaves(states), jax.tree.leaves(other_states), strict=True):
        np.testing.assert_allclose(x[run], y[other_run], rtol=2e-3, atol=2e-3)


def learned(agent, states):
    """What the agent learns, the networks with the annealed learning rate first."""
    if isinstance(agent, DQN | DRQN):
        return [states.q]
    if isinstance(agent, PPO):
        return list(states.networks)
    if isinstance(agent, NEC):
        return [states.embedding, states.dnd.keys, states.dnd.values]
    if isinstance(agent, MFEC):
        return [states.dnd.keys, states.dnd.values]
    episodic = states.episodic
    parts = [episodic.memory.keys, episodic.memory.values]
    if isinstance(agent, MBEC) and agent.reencode:
        parts.append([states.inputs.mean, states.inputs.weight])
    else:
        parts += [episodic.trajectory_model, episodic.reward_model]
    return [*states.params, *parts] if isinstance(agent, MBECpp) else parts


def differ(a, b):
    return any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def check_seeds_act_and_learn_differently(runs, tmp_path):
    runs.start(5, 6)
    before = runs.states()
    after, returns = runs.advance(60)
    assert np.isfinite(returns).any(axis=0).all()  # episodes ended in every environment
    assert not np.array_equal(returns[:, 0], returns[:, 1], equal_nan=True)
    assert all(np.isfinite(x).all() for x in runs.runner.pop_metrics().values())
    if isinstance(runs.agent, Random):
        return
    before, after = (learned(runs.agent, states) for states in (before, after))
    for old, new in zip(before, after, strict=True):
        (old_0, new_0), (old_1, new_1) = (
            jax.tree.map(lambda x, run=run: x[run], (old, new)) for run in (0, 1)
        )
        assert differ(old_0, new_0)
        assert differ(old_1, new_1)
        assert differ(new_0, new_1)


def check_a_seed_is_the_same_among_other_seeds(runs, tmp_path):
    """For 30 iterations: later NEC, whose neighbours depend on learned keys, amplifies rounding."""
    runs.start(5, 6)
    states, returns = runs.advance(30)
    runs.start(6, 7)
    other_states, other_returns = runs.advance(30)
    np.testing.assert_array_equal(returns[:, 1], other_returns[:, 0])
    assert_same_run(states, 1, other_states, 0)


def check_a_seed_alone_in_gymnasium_is_the_same_as_among_others_in_jax(runs, tmp_path):
    if isinstance(runs.agent, MBEC | MBECpp):
        return  # compared by tests of the runners, and trained in Gymnasium by those of training
    runs.start(5, 6)
    states, returns = runs.advance(30)
    alone = GymRunner(runs.agent, [WALK], [6], SPEC)
    alone.start()
    np.testing.assert_array_equal(alone.advance(30)[:, 0], returns[:, 1])
    assert_same_run(states, 1, alone.run_state.agent, 0)


def check_a_checkpoint_continues_bit_for_bit(runs, tmp_path):
    runs.start(5, 6)
    runs.advance(23)
    folder = run_dir.create(tmp_path / "run", {})
    folder.save(runs.runner.save()[0], {})
    whole, returns = runs.advance(37)
    tree, _ = folder.restore(runs.runner.template())
    runs.runner.restore(tree, {})
    assert runs.runner.iteration == 23
    again, same_returns = runs.advance(37)
    np.testing.assert_array_equal(returns, same_returns)
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)


def check_greedy_play_in_any_number_of_environments_with_any_epsilon(runs, tmp_path):
    agent, many = runs.agent, 400
    runs.start(5, 6)
    state = jax.tree.map(lambda x: jnp.array(x[0]), runs.runner.run_state.agent)

    @jax.jit
    def play(state, episode_start, epsilon):
        obs = jnp.ones((many, 2))
        return agent.act_greedy(state, SPEC, obs, episode_start, jax.random.key(1), epsilon)

    start = jnp.ones(many, bool)
    state, greedy = play(state, start, 0.0)
    # Half of the random actions are the greedy one.
    for epsilon, expected in ((0.0, 0), (0.5, many / 4), (1.0, many / 2)):
        _, actions = play(state, start, epsilon)
        assert set(actions.tolist()) <= {0, 1}
        if not isinstance(agent, Random):
            assert abs(np.sum(actions != greedy) - expected) <= 0.2 * expected
    _, actions = play(state, ~start, 0.0)  # the episodes continue
    assert actions.shape == (many,)


def check_an_annealed_agent_hardly_learns_in_the_end(runs, tmp_path):
    """From one state and by one program, the number of the iteration makes the difference."""
    if not getattr(runs.agent, "anneal_lr", False):
        return
    runs.start(5, 6)
    runs.advance(44)
    before = learned(runs.agent, runs.states())[0]
    kept = jax.tree.map(jnp.copy, (runs.runner.run_state, runs.runner.env_state))

    def change(step):
        # The runner updates its state in place.
        run_state, runs.runner.env_state = jax.tree.map(jnp.copy, kept)
        runs.runner.run_state = run_state._replace(step=jnp.int32(step))
        states, _ = runs.advance(12)
        after = learned(runs.agent, states)[0]
        changes = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b))), after, before)
        return max(jax.tree.leaves(changes))

    assert 0 < change(48) < 0.4 * change(8)
    constant = replace(runs.agent, anneal_lr=False)
    programs = [
        str(jax.make_jaxpr(VmappedAgent(agent, SPEC, 2).learn)(kept[0]))
        for agent in (runs.agent, constant)
    ]
    assert programs[0] != programs[1]


CHECKS = [
    check_seeds_act_and_learn_differently,
    check_a_seed_is_the_same_among_other_seeds,
    check_a_seed_alone_in_gymnasium_is_the_same_as_among_others_in_jax,
    check_a_checkpoint_continues_bit_for_bit,
    check_greedy_play_in_any_number_of_environments_with_any_epsilon,
    check_an_annealed_agent_hardly_learns_in_the_end,
]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if " " in name else []) for name in SMALLEST],
)
def test_every_agent_passes_all_checks(name, tmp_path):
    """One test per agent, since two processes would compile the same programs twice."""
    runs = TwoRuns(SMALLEST[name])
    for check in CHECKS:
        check(runs, tmp_path)


def test_every_registered_agent_is_tested():
    assert {agent_name(agent) for agent in SMALLEST.values()} == set(AGENTS)
