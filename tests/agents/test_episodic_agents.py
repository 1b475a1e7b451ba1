"""MBEC and MBEC++ follow trajectories by the actions taken, and train with all options at once."""

from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import constant_network

from engram.agents import MBEC, make
from engram.envs import CartPole, Task, get_task
from engram.episodic import control
from engram.episodic.trajectory_model import RewardModel, state_action
from engram.errors import EngramError
from engram.networks import zero_state
from engram.runners import JaxRunner
from engram.types import Spec, TimeStep

MANY = 200
SPEC = Spec((2,), 2, max_episode_steps=6, num_envs=MANY, num_iterations=60)
SMALL = {"batch_size": 4, "num_neighbours": 2, "memory_size": 16, "chunk": 2, "trajectory_dim": 3}


@pytest.mark.parametrize(
    ("name", "preset"), [("mbec", "paper"), ("mbec", "engram"), ("mbec++", "paper")]
)
def test_a_trajectory_continues_with_the_action_taken_and_not_with_the_greedy_one(name, preset):
    agent = make(name, preset, **SMALL)
    obs, start = jnp.ones((MANY, 2)), jnp.ones(MANY, bool)

    @jax.jit
    def play():
        state = agent.init(jax.random.key(0), SPEC)
        after, actions = agent.act_greedy(state, SPEC, obs, start, jax.random.key(1), 0.5)
        pairs = state_action(obs, actions, SPEC.num_actions)
        model = state.episodic.trajectory_model
        expected = jax.vmap(model)(zero_state(MANY, agent.trajectory_dim), pairs)
        return actions, after.episodic.tau, expected

    actions, tau, expected = play()
    assert set(actions.tolist()) == {0, 1}
    np.testing.assert_allclose(tau.h, expected.h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tau.c, expected.c, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("preset", "expected"), [("paper", 0.5 + 10 / 2), ("engram", 10.0)])
def test_mbec_acts_by_predicted_reward_and_memory_or_by_memory_alone(preset, expected):
    """Every read is 10, gamma is 1/2, and the predicted reward of Equation 6 is 1/2."""
    agent = make("mbec", preset, **SMALL, gamma=0.5, p_refine=0.0)
    spec = Spec((2,), 2, num_iterations=20)
    obs, no = jnp.ones((1, 2)), jnp.zeros(1, bool)
    timestep = TimeStep(obs, jnp.zeros(1), no, no, obs)

    @jax.jit
    def first_metrics():
        state = agent.init(jax.random.key(0), spec)
        episodic = state.episodic
        memory = episodic.memory._replace(values=jnp.full(16, 10.0), num_inserted=jnp.int32(1))
        reward_model = RewardModel(constant_network(episodic.reward_model.network, [0.5]))
        episodic = episodic._replace(memory=memory, reward_model=reward_model)
        state = state._replace(episodic=episodic)
        return agent.step(state, spec, timestep, jnp.int32(0), jax.random.key(0))[2]

    assert float(first_metrics()["q_max"]) == pytest.approx(expected)


PAPER_MBEC = {
    "gamma": 0.99,
    "epsilon_end": 0.01,
    "epsilon_decay": 500.0,
    "num_neighbours": 15,
    "num_write_neighbours": None,
    "chunk": 10,
    "memory_size": 3_000,
    "trajectory_dim": 16,
    "p_read": 0.7,
    "p_refine": 0.1,
    "trajectory_loss": "recall",
    "trajectory_lr": 5e-4,
    "reward_lr": 5e-4,
    "batch_size": 32,
    "normalize_obs": "none",
    # What the paper does not have.
    "store_final": False,
    "rewards": "model",
    "n_step": None,
    "refine_batch": 0,
    "reencode": False,
    "weigh_inputs": False,
}


def test_the_preset_paper_has_the_options_of_the_paper_and_the_default_does_not():
    agent = make("mbec", "paper")
    assert {name: getattr(agent, name) for name in PAPER_MBEC} == PAPER_MBEC
    assert agent.rules == control.PAPER_RULES
    assert make("mbec") == make("mbec", "engram") == MBEC()
    assert MBEC().rules == control.StorageRules(includes_reward=True, n_step=10, reencodes=True)
    shared = set(asdict(agent)) & set(asdict(make("mbec++", "paper"))) - {"n_step"}
    assert all(getattr(agent, name) == getattr(make("mbec++", "paper"), name) for name in shared)


def test_refining_no_past_steps_is_allowed_and_fewer_are_refused():
    assert MBEC(refine_batch=0).refine_batch == 0
    with pytest.raises(EngramError, match=r"^refine_batch must be at least 0, but is -1\."):
        MBEC(refine_batch=-1)
    with pytest.raises(EngramError, match=r"^rewards must be one of memory, model, not"):
        MBEC(rewards="both")


@pytest.mark.slow
def test_all_options_of_mbecpp_train_together():
    agent = make(
        "mbec++",
        "paper",
        **SMALL | {"trajectory_dim": 4, "hidden_size": 8, "num_write_neighbours": 3},
        trajectory_loss="prediction",
        truncation_is_terminal=True,
        store_final=True,
        center_memory_values=True,
        q_uses_tau=True,
        select_with_q_only=True,
        double_q=True,
        act_with_target=True,
        n_step=3,
        gradient_steps=2,
        loss="huber",
        anneal_lr=True,
    )
    # Most episodes are truncated.
    task = Task("short", "", get_task("cartpole").make, jax_env=CartPole(max_episode_steps=10))
    spec = Spec((4,), 2, max_episode_steps=10, num_iterations=500)
    runner = JaxRunner(agent, [task], [0], spec)
    runner.start()
    runner.max_iterations = 400  # one program for both lengths
    parts = []
    for iterations in (100, 400):
        runner.advance(iterations)
        parts.append({name: float(value[0]) for name, value in runner.pop_metrics().items()})
    first, last = parts
    assert np.isfinite([*first.values(), *last.values()]).all()
    assert last["reward_loss"] < 0.5 * first["reward_loss"]
    assert 0 < last["trajectory_loss"] < first["trajectory_loss"] * 1.5
    assert last["td_loss"] > 0
    assert 0 < last["beta"] < 1
    assert last["memory_size"] == 16
