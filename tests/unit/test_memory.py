"""The memory agrees with numbers computed by hand, and with a memory that is a plain list."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.episodic import memory as mem
from engram.episodic.memory import init_memory, write

# Static: the number of neighbours, and whether distances are squared.
lookup = jax.jit(mem.lookup, static_argnums=(2, 3), static_argnames="squared")
read, refine, touch = jax.jit(mem.read), jax.jit(mem.refine), jax.jit(mem.touch)
KNOWN = [(0.0, 10.0), (3.0, 40.0), (99.0, 7.0)]


def column(*numbers):
    return jnp.array(numbers, jnp.float32)[:, None]


def memory_of(pairs, memory_size=8):
    """A memory that holds these pairs of a one-dimensional key and a value."""
    memory = init_memory(memory_size, 1)
    keys, values = zip(*pairs, strict=True)
    return memory._replace(
        keys=memory.keys.at[: len(keys), 0].set(jnp.array(keys)),
        values=memory.values.at[: len(keys)].set(jnp.array(values)),
        num_inserted=jnp.int32(len(keys)),
    )


@cache
def jitted_write(k, write_lr, eviction="fifo"):
    @jax.jit
    def recall_and_write(memory, tau, value, mask, step):
        return write(memory, lookup(memory, tau, k), tau, value, write_lr, mask, step, eviction)

    return recall_and_write


def put(memory, pairs, k=3, write_lr=0.5, mask=True, step=0, eviction="fifo"):
    """Writes pairs of a one-dimensional key and a value in one call."""
    keys, values = (np.array(x, np.float32) for x in zip(*pairs, strict=True))
    mask = np.broadcast_to(mask, len(pairs))
    recall_and_write = jitted_write(k, write_lr, eviction)
    return recall_and_write(memory, keys[:, None], values, mask, jnp.int32(step))


def stored(memory):
    """The pairs of key and value in the order of the slots."""
    keys, values = np.asarray(memory.keys)[:, 0], np.asarray(memory.values)
    return list(zip(keys.tolist(), values.tolist(), strict=True))[: int(memory.size)]


# Reading


def test_read_weighs_neighbours_by_inverse_distance():
    memory = memory_of(KNOWN)
    # The two nearest of 1.0 are at distances 1 and 2: weights 2/3 and 1/3.
    assert read(memory, lookup(memory, column(1.0), 2))[0] == pytest.approx(20.0, rel=1e-3)


def test_kernel_adds_eps_to_the_distance():
    memory = memory_of(KNOWN)
    # With eps = 1 the kernel is 1/2 and 1/3: weights 3/5 and 2/5.
    value = read(memory, lookup(memory, column(1.0), 2, eps=1.0))[0]
    assert value == pytest.approx(0.6 * 10 + 0.4 * 40)
    # At a stored key the kernel is 1 / 0.001, and 1 / 3.001 for the other one.
    weight = 1000 / (1000 + 1 / 3.001)
    value = read(memory, lookup(memory, column(0.0), 2))[0]
    assert value == pytest.approx(10 * weight + 40 * (1 - weight))


def test_kernel_may_use_squared_distances():
    memory = memory_of(KNOWN)
    # Squared distances 1 and 4: weights 4/5 and 1/5.
    value = read(memory, lookup(memory, column(1.0), 2, squared=True))[0]
    assert value == pytest.approx(16.0, rel=1e-3)


def test_read_with_use_max_is_the_maximum_of_the_neighbours():
    memory = memory_of(KNOWN)
    near = lookup(memory, column(1.0, 98.0), 2)
    assert read(memory, near, use_max=True).tolist() == [40.0, 40.0]
    assert read(memory, lookup(memory, column(98.0), 1), jnp.array(True)).tolist() == [7.0]


def test_maximum_ignores_empty_slots_even_if_all_values_are_negative():
    memory = memory_of([(0.0, -5.0), (1.0, -9.0)])
    assert read(memory, lookup(memory, column(0.4), 3), use_max=True).tolist() == [-5.0]


def test_empty_memory_reads_zero():
    memory = init_memory(8, 1)._replace(values=jnp.full(8, 77.0))  # in slots never written
    near = lookup(memory, column(1.0), 3)
    assert read(memory, near).tolist() == [0.0]
    assert read(memory, near, use_max=True).tolist() == [0.0]
    assert near.weights.tolist() == [[0.0, 0.0, 0.0]]


def test_mean_value_counts_filled_slots_only():
    assert mem.mean_value(init_memory(8, 1)._replace(values=jnp.full(8, 77.0))) == 0
    assert mem.mean_value(memory_of(KNOWN)) == pytest.approx(19.0)


def test_memory_with_fewer_than_k_keys_reads_only_those():
    values = jnp.array([10.0, 40.0, *[1e6] * 6])
    memory = memory_of(KNOWN[:2])._replace(values=values)
    near = lookup(memory, column(1.0), 5)
    assert read(memory, near)[0] == pytest.approx(20.0, rel=1e-3)
    assert read(memory, near, use_max=True)[0] == 40.0


def test_weights_of_the_nearest_k_are_normalized_again():
    memory = memory_of(KNOWN)
    three = lookup(memory, column(1.0), 3)
    two = lookup(memory, column(1.0), 2)
    assert float(jnp.sum(three.weights)) == pytest.approx(1)
    nearest_two = mem.nearest(three, 2)
    np.testing.assert_array_equal(nearest_two.slots, two.slots)
    np.testing.assert_allclose(nearest_two.weights, two.weights, rtol=1e-6)


# Writing


def test_write_moves_neighbours_in_proportion_to_their_weight():
    memory = put(memory_of(KNOWN), [(1.0, 100.0)], k=2)
    # Weights 2/3 and 1/3, write_lr 1/2: 10 + 90/3 and 40 + 60/6; then the new key.
    keys, values = zip(*stored(memory), strict=True)
    assert keys == (0.0, 3.0, 99.0, 1.0)
    assert values == pytest.approx((40.0, 50.0, 7.0, 100.0), rel=1e-3)


def test_a_new_key_is_not_its_own_neighbour():
    memory = put(init_memory(4, 1), [(5.0, 100.0)])
    assert stored(memory) == [(5.0, 100.0)]  # a neighbour of value 0 would have moved to 50


def test_a_stored_key_is_updated_and_not_inserted_again():
    memory = put(put(init_memory(4, 1), [(5.0, 100.0)], k=1), [(5.0, 0.0)], k=1)
    assert stored(memory) == [(5.0, 50.0)]
    assert int(memory.num_inserted) == 1


def test_equal_keys_of_one_batch_are_inserted_once():
    pairs = [(5.0, 1.0), (6.0, 2.0), (5.0, 3.0)]
    assert stored(put(init_memory(4, 1), pairs)) == [(5.0, 1.0), (6.0, 2.0)]
    # Of the two equal keys only the second is masked in.
    memory = put(init_memory(4, 1), pairs, mask=[False, True, True])
    assert stored(memory) == [(6.0, 2.0), (5.0, 3.0)]


def test_masked_writes_change_nothing():
    memory = memory_of(KNOWN)
    after = put(memory, [(1.0, 100.0), (50.0, 3.0)], mask=[False, False])
    for old, new in zip(memory, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_refine_moves_values_and_inserts_nothing():
    memory = memory_of(KNOWN)
    near = lookup(memory, column(1.0), 2)
    after = refine(memory, near, jnp.array([100.0]), 0.5)
    assert after.values[:3].tolist() == pytest.approx([40.0, 50.0, 7.0], rel=1e-3)
    assert int(after.num_inserted) == 3
    np.testing.assert_array_equal(after.keys, memory.keys)
    masked = refine(memory, near, jnp.array([100.0]), 0.5, jnp.array([False]))
    np.testing.assert_array_equal(masked.values, memory.values)


def test_queries_refine_in_order_and_never_overshoot():
    memory = memory_of([(0.0, 0.0)])
    near = lookup(memory, column(0.0, 0.0, 0.0), 1)
    # 0 -> 50 -> 75 -> 87.5; all at once it would be 150.
    assert refine(memory, near, jnp.full(3, 100.0), 0.5).values[0] == 87.5
    assert refine(memory, near, jnp.array([100.0, 0.0, 100.0]), 0.5).values[0] == 62.5


def test_a_full_fifo_memory_replaces_its_earliest_keys():
    memory = init_memory(3, 1)
    for key in range(5):
        memory = put(memory, [(10.0 * key, float(key))], write_lr=0.0)
    assert stored(memory) == [(30.0, 3.0), (40.0, 4.0), (20.0, 2.0)]
    memory = put(memory, [(1.0, 1.0), (2.0, 2.0)], write_lr=0.0)
    assert stored(memory) == [(2.0, 2.0), (40.0, 4.0), (1.0, 1.0)]


def test_a_full_lru_memory_replaces_its_least_recently_used_keys():
    memory = init_memory(3, 1)
    for step, key in enumerate((0.0, 10.0, 20.0), start=1):
        memory = put(memory, [(key, key)], write_lr=0.0, step=step, eviction="lru")
    # The key 0.0 is used again, so 10.0 is now the oldest.
    memory = touch(memory, lookup(memory, column(1.0), 1), jnp.int32(4))
    assert memory.last_used.tolist() == [4, 2, 3]
    memory = put(memory, [(30.0, 30.0)], write_lr=0.0, step=5, eviction="lru")
    assert stored(memory) == [(0.0, 0.0), (30.0, 30.0), (20.0, 20.0)]
    memory = put(memory, [(40.0, 40.0), (50.0, 50.0)], write_lr=0.0, step=6, eviction="lru")
    assert stored(memory) == [(50.0, 50.0), (30.0, 30.0), (40.0, 40.0)]


def test_an_lru_write_fills_the_last_free_slot_before_it_replaces_another():
    memory = put(init_memory(3, 1), [(0.0, 0.0)], write_lr=0.0, step=2, eviction="lru")
    memory = put(memory, [(10.0, 10.0)], write_lr=0.0, step=1, eviction="lru")
    memory = put(memory, [(20.0, 20.0), (30.0, 30.0)], write_lr=0.0, step=3, eviction="lru")
    assert stored(memory) == [(0.0, 0.0), (30.0, 30.0), (20.0, 20.0)]


def test_touch_ignores_missing_neighbours():
    memory = memory_of(KNOWN[:2])
    touched = touch(memory, lookup(memory, column(1.0), 4), jnp.int32(9))
    assert touched.last_used.tolist() == [9, 9, 0, 0, 0, 0, 0, 0]


def test_insert_skips_masked_keys_and_moves_no_neighbour():
    insert = jax.jit(mem.insert)

    def put(memory, keys, values, mask, step=0):
        return insert(memory, column(*keys), jnp.array(values), jnp.array(mask), step)

    memory = put(init_memory(3, 1), (0, 3, 4), (10.0, 40.0, 9.0), (True, True, False))
    memory = put(memory, (1, 2, 4), (7.0, 8.0, 9.0), (False, True, False))
    assert memory.keys[:, 0].tolist() == [0.0, 3.0, 2.0]
    assert memory.values.tolist() == [10.0, 40.0, 8.0]
    memory = put(memory, (1, 5, 4), (7.0, 0.0, 9.0), (True, False, True), step=6)
    assert memory.keys[:, 0].tolist() == [1.0, 4.0, 2.0]
    assert memory.last_used.tolist() == [6, 6, 0]
    assert int(memory.num_inserted) == 5


def test_a_memory_knows_the_step_that_each_key_came_from():
    memory = init_memory(3, 1, has_source=True)
    recall_and_write = jax.jit(
        lambda memory, tau, mask, source: write(
            memory, lookup(memory, tau, 1), tau, tau[:, 0], 0.5, mask, source=source
        )
    )
    for keys, mask, source in (
        ((1.0, 2.0), (True, False), (10, 11)),
        ((1.0, 3.0), (True, True), (12, 13)),  # the first is stored already
        ((4.0, 5.0), (True, True), (14, 15)),  # the last replaces the earliest
    ):
        arrays = jnp.array(mask), jnp.array(source, jnp.int32)
        memory = recall_and_write(memory, column(*keys), *arrays)
    assert memory.keys[:, 0].tolist() == [5.0, 3.0, 4.0]
    assert memory.source.tolist() == [15, 13, 14]


def test_masked_keys_are_equal_to_no_key():
    tau, mask = column(1.0, 2.0, 1.0, 1.0), jnp.array([False, True, True, True])
    equal = mem.equal_keys(tau, mask).astype(int)
    assert equal.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert mem.is_first(tau, mask).tolist() == [True, True, True, False]


# Against a memory that is a plain list


class ListMemory:
    """The same operators over a list of [key, value], in double precision."""

    def __init__(self, memory_size):
        self.memory_size = memory_size
        self.items = []
        self.num_inserted = 0

    def neighbours(self, key, k):
        order = sorted(range(len(self.items)), key=lambda i: abs(self.items[i][0] - key))[:k]
        kernel = [1 / (abs(self.items[i][0] - key) + 1e-3) for i in order]
        return [(i, weight / sum(kernel)) for i, weight in zip(order, kernel, strict=True)]

    def read(self, key, k, use_max):
        near = self.neighbours(key, k)
        if use_max:
            return max((self.items[i][1] for i, _ in near), default=0.0)
        return sum(weight * self.items[i][1] for i, weight in near)

    def refine(self, key, value, k, write_lr):
        for i, weight in self.neighbours(key, k):
            self.items[i][1] += write_lr * weight * (value - self.items[i][1])

    def write(self, key, value, k, write_lr):
        is_stored = any(key == own for own, _ in self.items)
        self.refine(key, value, k, write_lr)
        if is_stored:
            return
        if self.num_inserted < self.memory_size:
            self.items.append([key, value])
        else:
            self.items[self.num_inserted % self.memory_size] = [key, value]
        self.num_inserted += 1


# Keys on a line whose distances are all different, so that there are no ties.
KEYS = [0.0, 1.0, 3.0, 7.0, 15.5, 33.25, 70.125, 150.0]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "refine", "read", "read_max"]),
        st.sampled_from(KEYS),
        st.integers(-50, 50),
    ),
    max_size=30,
)


@cache
def operators(k, write_lr):
    def with_recall(operator):
        return jax.jit(
            lambda memory, tau, value: operator(memory, lookup(memory, tau, k), tau, value)
        )

    return {
        "write": with_recall(lambda *args: write(*args, write_lr)),
        "refine": with_recall(lambda memory, near, _, value: refine(memory, near, value, write_lr)),
        "read": with_recall(lambda memory, near, *_: read(memory, near)[0]),
        "read_max": with_recall(lambda memory, near, *_: read(memory, near, use_max=True)[0]),
    }


@settings(max_examples=60)
@given(operations=OPERATIONS, memory_size=st.sampled_from([1, 5]), k=st.sampled_from([1, 3]))
def test_any_sequence_of_operations_agrees_with_a_list(operations, memory_size, k):
    memory, expected, write_lr = init_memory(memory_size, 1), ListMemory(memory_size), 0.3
    jitted = operators(k, write_lr)
    for name, key, value in operations:
        tau = np.full((1, 1), key, np.float32)
        result = jitted[name](memory, tau, np.full(1, value, np.float32))
        if name in ("read", "read_max"):
            value = expected.read(key, k, name == "read_max")
            assert float(result) == pytest.approx(value, rel=1e-4, abs=1e-4)
            continue
        memory = result
        getattr(expected, name)(key, float(value), k, write_lr)
        assert [key for key, _ in stored(memory)] == [key for key, _ in expected.items]
        values, expected_values = (
            [v for _, v in items] for items in (stored(memory), expected.items)
        )
        np.testing.assert_allclose(values, expected_values, rtol=1e-4, atol=1e-4)
    assert int(memory.num_inserted) == expected.num_inserted


# Convergence of writing (Section 3.2 and the paper's figure on convergence)


def test_writing_noisy_returns_converges_to_their_mean():
    rng, write_lr, mean, std = np.random.default_rng(0), 0.1, 3.0, 2.0
    returns = rng.normal(mean, std, 2000).astype(np.float32)
    recall_and_write = jitted_write(1, write_lr)

    def step(memory, value):
        mask = jnp.array([True])
        memory = recall_and_write(memory, column(1.0), value[None], mask, jnp.int32(0))
        return memory, memory.values[0]

    memory, values = jax.jit(lambda x: jax.lax.scan(step, init_memory(4, 1), x))(returns)
    converged = np.asarray(values)[200:]
    assert int(memory.num_inserted) == 1
    # A constant rate a leaves a variance of a / (2 - a) times that of the returns.
    expected_std = std * np.sqrt(write_lr / (2 - write_lr))
    assert converged.std() == pytest.approx(expected_std, rel=0.2)
    assert converged.mean() == pytest.approx(mean, abs=0.15)
    assert np.abs(converged - mean).max() < 5 * expected_std
    assert np.maximum.accumulate(returns)[-1] > mean + 3 * std  # the value that MFEC would keep


def test_more_neighbours_average_the_noise_of_returns():
    """If every key is new, as in a noisy task, a read with K = 8 has less error than K = 1."""
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(300, 2)).astype(np.float32)
    returns = rng.normal(3.0, 2.0, 300).astype(np.float32)

    def error(k):
        def step(memory, pair):
            key, value = pair
            near = lookup(memory, key[None], k)
            return write(memory, near, key[None], value[None], 0.5), None

        memory, _ = jax.jit(lambda: jax.lax.scan(step, init_memory(300, 2), (keys, returns)))()
        values = read(memory, lookup(memory, 0.3 * keys[:50], k))
        return float(jnp.sqrt(jnp.mean((values - 3.0) ** 2)))

    assert error(8) < 0.6 * error(1)
