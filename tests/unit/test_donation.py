"""Compiled functions with state that is updated in place, and the packing of timesteps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.runners.donation import DonatedFunction, pack_timestep, unpack_timestep
from engram.types import Spec, TimeStep


def test_a_function_that_was_compiled_in_advance_is_not_compiled_again():
    function = DonatedFunction(lambda state, x: ((jnp.sin(state[0]) + x,), ()))
    state = (jnp.ones(3),)
    events = []
    function.compiler(state, np.float32(1))()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: events.append(event)
    )
    try:
        for _ in range(2):
            state, _ = function(state, np.float32(1))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [event for event in events if "backend_compile" in event]


def test_only_changed_arrays_are_donated_and_returned():
    num_traces = 0

    def function(state, x):
        nonlocal num_traces
        num_traces += 1
        a, b, _, d, e = state
        return (a + x, b, a, d, e), (a.sum() + b.sum(), e)

    donated = DonatedFunction(function)
    state = jnp.arange(3.0), jnp.ones(2), jnp.zeros(3), jnp.ones(4), jnp.ones(5)
    (a, b, c, d, e), (total, output) = donated(state, np.float32(2))
    assert donated.is_changed == [True, False, True, False, False]  # the third becomes the first
    assert donated.is_read == [False, True, False, False, True]  # the fourth is not used
    assert b is state[1]
    assert d is state[3]
    assert e is state[4]
    assert state[0].is_deleted()
    assert (a.tolist(), c.tolist()) == ([2, 3, 4], [0, 1, 2])
    assert (float(total), output.tolist()) == (5, [1] * 5)
    (a, _, c, _, _), _ = donated((a, b, c, d, e), np.float32(1))
    assert (a.tolist(), c.tolist()) == ([3, 4, 5], [2, 3, 4])
    assert num_traces == 1


def test_arrays_of_another_shape_are_refused():
    function = DonatedFunction(lambda state: ((state[0] + 1,), ()))
    function((jnp.ones(3),))
    with pytest.raises(ValueError, match="differ in shape or dtype"):
        function((jnp.ones(2),))


@pytest.mark.parametrize(
    ("dtype", "shape", "num_arrays"),
    [("float32", (3,), 1), ("float32", (2, 3), 1), ("float32", (), 1), ("uint8", (2, 2), 3)],
)
def test_unpacking_inverts_packing(dtype, shape, num_arrays):
    rng = np.random.default_rng(0)
    size = (2, 4)
    observation, final = (rng.integers(0, 255, (*size, *shape)).astype(dtype) for _ in range(2))
    reward = rng.normal(size=size).astype(np.float32)
    terminated, truncated = rng.random((2, *size)) < 0.5
    timestep = TimeStep(observation, reward, terminated, truncated, final)
    arrays = pack_timestep(timestep)
    assert len(arrays) == num_arrays
    unpacked = unpack_timestep(Spec(shape, 2, dtype=dtype, num_envs=4), arrays)
    for before, after in zip(timestep, unpacked, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_frame_stacks_have_no_final_observation():
    flags = np.ones((1, 2), bool)
    timestep = TimeStep(
        observation=np.ones((1, 2, 4, 3, 3), np.uint8),
        reward=np.ones((1, 2), np.float32),
        terminated=flags,
        truncated=flags,
        final_observation=np.zeros((1, 2, 0), np.uint8),
    )
    arrays = pack_timestep(timestep)
    assert len(arrays) == 2
    spec = Spec((4, 3, 3), 2, dtype="uint8", frame_stack=4, num_envs=2)
    assert unpack_timestep(spec, arrays).final_observation.shape == (1, 2, 0)
