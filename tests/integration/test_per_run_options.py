"""Options of the agent that differ between the runs of one program."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runner_helpers import run

from engram import runners
from engram.agents import DQN, MBECpp
from engram.envs import get_task
from engram.errors import EngramError
from engram.runners import GymRunner, JaxRunner
from engram.types import Spec

CARTPOLE = get_task("cartpole")
NOISY_CARTPOLE = get_task("cartpole-gaussian")
SPEC = Spec((4,), 2, max_episode_steps=200, truncation_is_terminal=True, num_iterations=80)


@pytest.mark.parametrize(
    "runner_class", [JaxRunner, pytest.param(GymRunner, marks=pytest.mark.slow)]
)
def test_a_run_with_its_own_options_learns_the_same_as_alone(runner_class):
    agent = DQN(batch_size=4, hidden_size=4, num_layers=1, learning_starts=4)
    options = {"learning_rate": (1e-2, 1e-3), "epsilon_decay": (500.0, 20.0)}
    both, returns = run(runner_class, agent, [NOISY_CARTPOLE] * 2, [7, 7], SPEC, options=options)
    weights = jax.tree.leaves(both.run_state.agent.q)
    assert not np.allclose(weights[0][0], weights[0][1])
    for r in range(2):
        own_agent = replace(agent, **{name: values[r] for name, values in options.items()})
        alone, own_returns = run(runner_class, own_agent, [NOISY_CARTPOLE], [7], SPEC)
        np.testing.assert_array_equal(returns[:, r], own_returns[:, 0])
        own_weights = jax.tree.leaves(alone.run_state.agent.q)
        for a, b in zip(weights, own_weights, strict=True):
            np.testing.assert_allclose(a[r], b[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"learning_rat": (1.0, 1.0)},
            "DQN has no option 'learning_rat'. Did you mean learning_rate",
        ),
        ({"learning_rate": (1e-3, -1.0)}, "learning_rate must be greater than 0, but is -1."),
        ({"learning_rate": (1e-3, "fast")}, "learning_rate must be a number, not"),
        (
            {"learning_rate": (1e-3,)},
            "learning_rate needs one value for each of the 2 runs, not 1.",
        ),
        ({"hidden_size": (8, 16)}, "hidden_size cannot differ between the runs of one program"),
        (
            {"truncation_is_terminal": (True, False)},
            "truncation_is_terminal cannot differ between the runs of one program",
        ),
    ],
)
def test_options_that_cannot_differ_between_runs_are_refused(options, message):
    with pytest.raises(EngramError) as error:
        runners.make_runner(DQN(), [CARTPOLE] * 2, [0, 1], SPEC, options=options)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_option_that_is_none_cannot_differ_between_runs():
    assert runners.is_vmappable(MBECpp(), "learning_rate")
    assert not runners.is_vmappable(MBECpp(), "fixed_beta")
    assert runners.is_vmappable(MBECpp(fixed_beta=0.5), "fixed_beta")


def test_the_probabilities_of_episodic_control_may_differ_between_runs():
    """No branch of Python depends on them, so that they can be traced."""
    options = {"p_read": (0.2, 0.9), "p_refine": (0.0, 0.1), "fixed_beta": (0.0, 1.0)}
    agents = runners.VmappedAgent(MBECpp(fixed_beta=0.5), SPEC, 2, options)
    run_state = jax.eval_shape(agents.init, jnp.arange(2, dtype=jnp.uint32))
    run_state, _ = jax.eval_shape(agents.step, run_state, agents.zero_timestep(2))
    jax.eval_shape(agents.learn, run_state)
