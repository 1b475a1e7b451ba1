"""PPO's clipped loss agrees with numbers worked out by hand."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import constant_network

from engram.agents.ppo import PPO, ActorCritic, PolicyStep, Sample
from engram.types import Spec

SPEC = Spec((2,), 2, max_episode_steps=10, num_iterations=40)
AGENT = PPO(
    hidden_size=3, num_steps=4, num_minibatches=1, norm_adv=False, ent_coef=0.0, clip_coef=0.25
)


@pytest.fixture(scope="module")
def networks():
    """Networks that give the actions probabilities 0.2 and 0.8, and every state the value 5."""
    initial = AGENT.init(jax.random.key(0), SPEC).networks
    actor = constant_network(initial.actor, np.log([0.2, 0.8]))
    return ActorCritic(actor, constant_network(initial.critic, [5.0]))


@cache
def jitted_loss(agent):
    return jax.jit(agent.loss_fn)


def make_samples(*rows):
    """Samples from rows of (action, its probability when taken, the value then, advantage)."""
    actions, probabilities, values, advantages = (
        np.array(x)[None] for x in zip(*rows, strict=True)
    )
    decision = PolicyStep(
        obs=jnp.zeros((1, len(rows), 2)),
        action=jnp.array(actions),
        log_prob=jnp.log(jnp.array(probabilities, jnp.float32)),
        value=jnp.array(values, jnp.float32),
        lstm_state=None,
        episode_start=jnp.zeros((1, len(rows)), bool),
    )
    return Sample(decision, jnp.array(advantages, jnp.float32))


@pytest.mark.parametrize(
    ("old_probability", "advantage", "objective", "clip_fraction"),
    [
        # Action 1 has probability 0.8; its ratio to the old one may lie within 0.75 and 1.25.
        (0.8, 2.0, 2.0, 0),  # unchanged
        (0.7, 2.0, 2.0 * 0.8 / 0.7, 0),  # a little more likely
        (0.4, 2.0, 2.0 * 1.25, 1),  # twice as likely, and good: clipped
        (0.4, -2.0, -2.0 * 2.0, 1),  # twice as likely, but bad: the objective is not clipped
        (1.0, -2.0, -2.0 * 0.8, 0),  # a little less likely
    ],
)
def test_the_objective_is_clipped_where_the_policy_has_improved_enough(
    networks, old_probability, advantage, objective, clip_fraction
):
    _, metrics = jitted_loss(AGENT)(networks, make_samples((1, old_probability, 5.0, advantage)))
    assert metrics["policy_loss"] == pytest.approx(-objective, rel=1e-5)
    assert metrics["clip_fraction"] == clip_fraction
    ratio = 0.8 / old_probability
    assert metrics["approx_kl"] == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-6)


@pytest.mark.parametrize(("advantage", "objective"), [(2.0, 2.0 * 0.5), (-2.0, -2.0 * 0.75)])
def test_the_objective_of_a_less_likely_action_is_clipped_from_below(
    networks, advantage, objective
):
    """Action 0 had probability 0.4 and has 0.2: the ratio is 1/2, and is clipped to 3/4."""
    _, metrics = jitted_loss(AGENT)(networks, make_samples((0, 0.4, 5.0, advantage)))
    assert metrics["policy_loss"] == pytest.approx(-objective, rel=1e-5)


def test_a_clipped_sample_has_no_gradient(networks):
    def policy_loss(networks, samples):
        return AGENT.loss_fn(networks, samples)[1]["policy_loss"]

    gradient = jax.jit(jax.grad(policy_loss))
    for old_probability, is_clipped in ((0.4, True), (0.7, False)):
        samples = make_samples((1, old_probability, 5.0, 2.0))
        bias = gradient(networks, samples).actor.layers[-1].bias
        assert np.any(bias != 0) != is_clipped


def test_the_loss_sums_policy_value_and_entropy_over_all_samples(networks):
    """Ratios 1, 2 and 1/2, advantages 1, 2 and -1; the value is 5 and was 5, 4 and 7."""
    agent = replace(AGENT, ent_coef=0.1, vf_coef=0.5)
    samples = make_samples((1, 0.8, 5.0, 1.0), (1, 0.4, 4.0, 2.0), (0, 0.4, 7.0, -1.0))
    loss, metrics = jitted_loss(agent)(networks, samples)
    policy_loss = -(1.0 + 2.0 * 1.25 - 0.75) / 3
    value_loss = (1**2 + 1**2 + 1**2) / 3 / 2  # targets 5 + 1, 4 + 2 and 7 - 1
    entropy = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    assert metrics["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(value_loss, rel=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert loss == pytest.approx(policy_loss + 0.5 * value_loss - 0.1 * entropy, rel=1e-5)


@pytest.mark.parametrize(
    ("old_value", "advantage", "error"),
    [
        # The value is 5. It may change by 1/4, and the larger of both errors counts.
        (4.0, 3.0, (4.25 - 7) ** 2),  # towards the target, but too far: the error of 4.25
        (4.0, -2.0, (5 - 2) ** 2),  # away from the target: the whole error
        (4.9, 3.0, (5 - 7.9) ** 2),  # not far
    ],
)
def test_clip_vloss_limits_the_change_of_a_value_towards_its_target(
    networks, old_value, advantage, error
):
    agent = replace(AGENT, clip_vloss=True)
    _, metrics = jitted_loss(agent)(networks, make_samples((1, 0.8, old_value, advantage)))
    assert metrics["value_loss"] == pytest.approx(error / 2, rel=1e-5)


def test_norm_adv_normalizes_advantages_but_not_the_targets_of_values(networks):
    agent = replace(AGENT, norm_adv=True)
    samples = make_samples((1, 0.8, 5.0, 10.0), (0, 0.4, 5.0, 30.0))
    _, metrics = jitted_loss(agent)(networks, samples)
    # Advantages -1 and 1, with ratios 1 and 1/2.
    assert metrics["policy_loss"] == pytest.approx(-(-1 + 0.5) / 2, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx((10**2 + 30**2) / 4, rel=1e-5)
