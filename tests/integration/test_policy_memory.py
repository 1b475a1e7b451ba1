"""A policy gives what its agent has stored, as NumPy arrays."""

import numpy as np
import pytest

import engram

AGENTS = {
    "mbec": engram.MBEC(memory_size=64),
    "mbec++": engram.MBECpp(memory_size=1_000, chunk=5),
    "mfec": engram.MFEC(memory_size=20, key_size=4, num_neighbours=3),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "mfec" else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS],
)
def test_the_memory_holds_filled_slots_alone(name):
    result = engram.train(AGENTS[name], "cartpole", seeds=2, steps=200)
    for policy in result.policies.values():
        memory, stored = policy.memory, policy.agent.memory(policy.state)
        count = int(np.sum(stored.size))
        assert 0 < count <= np.size(stored.values)
        assert memory.keys.shape == (count, stored.keys.shape[-1])
        assert len(memory.values) == len(memory.last_used) == count
        assert memory.last_used.max() < 200
        assert type(memory.keys) is np.ndarray
        assert repr(memory).startswith(f"StoredMemories({count:,} keys of ")
        # Every step of Cart Pole has the reward 1, so a return is at least that.
        assert memory.values.min() >= 0
        assert memory.values.max() > 1
        if name == "mfec":
            of_first_action = memory.values[memory.action == 0]
            np.testing.assert_array_equal(of_first_action, stored.values[0, : stored.size[0]])
            assert set(memory.action) == {0, 1}
        else:
            assert memory.action is None
            np.testing.assert_array_equal(memory.values, stored.values[:count])
        assert (memory.source is not None) == (name == "mbec")
    first, second = (policy.memory for policy in result.policies.values())
    assert not np.array_equal(first.keys[:5], second.keys[:5])


@pytest.mark.slow
def test_an_empty_memory_and_agents_without_one():
    long = engram.train(AGENTS["mbec++"], "mountaincar", seeds=1, steps=40)
    memory = long.policies[0].memory
    assert (memory.keys.shape, repr(memory)) == ((0, 8), "StoredMemories(none)")
    assert engram.train("dqn", "cartpole", seeds=1, steps=40).policies[0].memory is None
