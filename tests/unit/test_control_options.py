"""Every option of episodic control changes what is stored."""

from dataclasses import replace

import numpy as np
import pytest
from scripted_rollout import AGENT, SPEC, TERMINATED, TRUNCATED, rollout

BUSY = replace(AGENT, num_neighbours=2, memory_size=4, p_refine=0.3, p_read=0.5)
BOUNDED = replace(SPEC, low=(-2.0, -2.0), high=(3.0, 3.0), num_iterations=100)


def stored_values(agent):
    """The memory's values in each iteration of a run of many short episodes."""
    rng = np.random.default_rng(5)
    script = []
    for t in range(60):
        end = TRUNCATED if t % 5 == 4 else TERMINATED if t % 7 == 6 else ""
        script.append([(float(rng.normal()), end)])
    states = rollout(agent, BOUNDED, script, extra=0).states
    return np.array([np.asarray(state.episodic.memory.values) for state in states])


@pytest.fixture(scope="module")
def base_values():
    return stored_values(BUSY)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_neighbours", 1),
        ("num_write_neighbours", 4),
        ("chunk", 3),
        ("p_read", 1.0),
        ("p_refine", 0.0),
        ("store_final", True),
        ("rewards", "memory"),
        ("n_step", 1),
        ("gamma", 0.9),
        ("normalize_obs", "bounds"),
        ("truncation_is_terminal", True),
    ],
)
def test_every_option_changes_what_is_stored(option, value, base_values):
    changed = stored_values(replace(BUSY, **{option: value}))
    assert np.isfinite(changed).all()
    assert np.abs(changed - base_values).max() > 1e-3
