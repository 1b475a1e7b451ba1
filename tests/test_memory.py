"""The memory's operators agree with numbers worked out by hand, and with a memory that is a plain list."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import memory as mem
from engram.memory import empty, read, recall, refine, touch, write


def column(*numbers):
    return jnp.array(numbers, jnp.float32)[:, None]


def remember(pairs, slots=8):
    """A memory of one-dimensional keys, inserted as they are."""
    memory = empty(slots, 1)
    keys, values = zip(*pairs, strict=True)
    return memory._replace(
        keys=memory.keys.at[: len(keys), 0].set(jnp.array(keys)),
        values=memory.values.at[: len(keys)].set(jnp.array(values)),
        written=jnp.int32(len(keys)),
    )


@cache
def writer(k, rate, forget="earliest"):
    @jax.jit
    def put(memory, tau, value, when, step):
        return write(memory, recall(memory, tau, k), tau, value, rate, when, step, forget)

    return put


def put(memory, pairs, k=3, rate=0.5, when=True, step=0, forget="earliest"):
    """Writes pairs of a number as key and a value, all at once."""
    keys, values = zip(*pairs, strict=True)
    when = jnp.broadcast_to(jnp.array(when), len(pairs))
    return writer(k, rate, forget)(memory, column(*keys), jnp.array(values, jnp.float32), when, jnp.int32(step))


def stored(memory):
    """Its pairs in the order of the slots."""
    filled = int(memory.filled)
    return list(zip(memory.keys[:filled, 0].tolist(), memory.values[:filled].tolist(), strict=True))


THREE = [(0.0, 10.0), (3.0, 40.0), (99.0, 7.0)]

# Reading


def test_read_weighs_neighbours_by_inverse_distance():
    memory = remember(THREE)
    # from 1.0 the two nearest are 1 and 2 away: weights 2/3 and 1/3
    assert read(memory, recall(memory, column(1.0), 2))[0] == pytest.approx(20.0, rel=1e-3)


def test_the_kernel_adds_eps_to_the_distance():
    memory = remember(THREE)
    # with eps = 1 the kernel is 1/2 and 1/3: weights 3/5 and 2/5
    assert read(memory, recall(memory, column(1.0), 2, eps=1.0))[0] == pytest.approx(0.6 * 10 + 0.4 * 40)
    # at a key itself the kernel is 1 / 0.001, at the other one 1 / 3.001
    weight = 1000 / (1000 + 1 / 3.001)
    assert read(memory, recall(memory, column(0.0), 2))[0] == pytest.approx(10 * weight + 40 * (1 - weight))


def test_the_kernel_may_take_the_squared_distance():
    memory = remember(THREE)
    # 1 and 4: weights 4/5 and 1/5
    assert read(memory, recall(memory, column(1.0), 2, squared=True))[0] == pytest.approx(16.0, rel=1e-3)


def test_an_optimistic_read_takes_the_best_neighbour():
    memory = remember(THREE)
    near = recall(memory, column(1.0, 98.0), 2)
    assert read(memory, near, True).tolist() == [40.0, 40.0]
    assert read(memory, recall(memory, column(98.0), 1), jnp.array(True)).tolist() == [7.0]


def test_the_best_neighbour_may_be_worth_less_than_an_empty_slot():
    memory = remember([(0.0, -5.0), (1.0, -9.0)])
    assert read(memory, recall(memory, column(0.4), 3), True).tolist() == [-5.0]


def test_an_empty_memory_reads_0():
    memory = empty(8, 1)._replace(values=jnp.full(8, 77.0))  # whatever lies in slots never written
    near = recall(memory, column(1.0), 3)
    assert read(memory, near).tolist() == [0.0]
    assert read(memory, near, True).tolist() == [0.0]
    assert near.weights.tolist() == [[0.0, 0.0, 0.0]]


def test_with_fewer_than_k_memories_only_those_are_read():
    memory = remember(THREE[:2])._replace(values=jnp.array([10.0, 40.0, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6]))
    near = recall(memory, column(1.0), 5)
    assert read(memory, near)[0] == pytest.approx(20.0, rel=1e-3)
    assert read(memory, near, True)[0] == 40.0


def test_the_weights_of_the_first_neighbours_are_normalised_again():
    memory = remember(THREE)
    first, two = mem.first(recall(memory, column(1.0), 3), 2), recall(memory, column(1.0), 2)
    np.testing.assert_array_equal(first.slots, two.slots)
    np.testing.assert_allclose(first.weights, two.weights, rtol=1e-6)
    assert float(jnp.sum(recall(memory, column(1.0), 3).weights)) == pytest.approx(1)


# Writing


def test_neighbours_move_towards_what_is_written_the_nearer_the_faster():
    memory = put(remember(THREE), [(1.0, 100.0)], k=2)
    # weights 2/3 and 1/3, rate 1/2: 10 + 90/3 and 40 + 60/6; then the new key
    assert [key for key, _ in stored(memory)] == [0.0, 3.0, 99.0, 1.0]
    assert [value for _, value in stored(memory)] == pytest.approx([40.0, 50.0, 7.0, 100.0], rel=1e-3)


def test_a_new_key_is_not_its_own_neighbour():
    memory = put(empty(4, 1), [(5.0, 100.0)], k=3)
    assert stored(memory) == [(5.0, 100.0)]  # had it been there already, half of the way from 0 would be 50


def test_a_stored_key_is_updated_and_not_inserted_twice():
    memory = put(put(empty(4, 1), [(5.0, 100.0)], k=1), [(5.0, 0.0)], k=1)
    assert stored(memory) == [(5.0, 50.0)]
    assert int(memory.written) == 1


def test_two_equal_keys_of_one_batch_are_inserted_once():
    memory = put(empty(4, 1), [(5.0, 1.0), (6.0, 2.0), (5.0, 3.0)])
    assert stored(memory) == [(5.0, 1.0), (6.0, 2.0)]
    # of two equal keys only the second is to be written
    memory = put(empty(4, 1), [(5.0, 1.0), (6.0, 2.0), (5.0, 3.0)], when=[False, True, True])
    assert stored(memory) == [(6.0, 2.0), (5.0, 3.0)]


def test_what_is_not_due_leaves_no_trace():
    memory = remember(THREE)
    after = put(memory, [(1.0, 100.0), (50.0, 3.0)], when=[False, False])
    for old, new in zip(memory, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_refining_inserts_nothing():
    memory = remember(THREE)
    after = refine(memory, recall(memory, column(1.0), 2), jnp.array([100.0]), 0.5)
    assert after.values[:3].tolist() == pytest.approx([40.0, 50.0, 7.0], rel=1e-3)
    assert int(after.written) == 3
    np.testing.assert_array_equal(after.keys, memory.keys)
    same = refine(memory, recall(memory, column(1.0), 2), jnp.array([100.0]), 0.5, jnp.array([False]))
    np.testing.assert_array_equal(same.values, memory.values)


def test_queries_take_their_turn_and_never_overshoot():
    memory = put(empty(4, 1), [(0.0, 0.0)], k=1)
    near = recall(memory, column(0.0, 0.0, 0.0), 1)
    # 0 -> 50 -> 75 -> 87.5; all at once it would be 150
    assert refine(memory, near, jnp.full(3, 100.0), 0.5).values[0] == 87.5
    assert refine(memory, near, jnp.array([100.0, 0.0, 100.0]), 0.5).values[0] == 62.5


def test_a_full_memory_forgets_its_earliest_key():
    memory = empty(3, 1)
    for key in range(5):
        memory = put(memory, [(10.0 * key, float(key))], rate=0.0)
    assert stored(memory) == [(30.0, 3.0), (40.0, 4.0), (20.0, 2.0)]
    memory = put(memory, [(1.0, 1.0), (2.0, 2.0)], rate=0.0)
    assert stored(memory) == [(2.0, 2.0), (40.0, 4.0), (1.0, 1.0)]


def test_a_full_memory_may_forget_what_was_used_longest_ago():
    memory = empty(3, 1)
    for step, key in enumerate((0.0, 10.0, 20.0), start=1):
        memory = put(memory, [(key, key)], rate=0.0, step=step, forget="unused")
    memory = touch(memory, recall(memory, column(1.0), 1), jnp.int32(4))  # 0.0 is used again, so 10.0 is now the oldest
    assert memory.used.tolist() == [4, 2, 3]
    memory = put(memory, [(30.0, 30.0)], rate=0.0, step=5, forget="unused")
    assert stored(memory) == [(0.0, 0.0), (30.0, 30.0), (20.0, 20.0)]
    memory = put(memory, [(40.0, 40.0), (50.0, 50.0)], rate=0.0, step=6, forget="unused")
    assert stored(memory) == [(50.0, 50.0), (30.0, 30.0), (40.0, 40.0)]


def test_the_last_empty_slot_and_a_forgotten_one_are_not_the_same():
    memory = put(empty(3, 1), [(0.0, 0.0)], rate=0.0, step=2, forget="unused")
    memory = put(memory, [(10.0, 10.0)], rate=0.0, step=1, forget="unused")
    memory = put(memory, [(20.0, 20.0), (30.0, 30.0)], rate=0.0, step=3, forget="unused")
    assert stored(memory) == [(0.0, 0.0), (30.0, 30.0), (20.0, 20.0)]


def test_missing_neighbours_are_not_touched():
    memory = remember(THREE[:2])
    assert touch(memory, recall(memory, column(1.0), 4), jnp.int32(9)).used.tolist() == [9, 9, 0, 0, 0, 0, 0, 0]


# A memory that is a plain list


class Listed:
    """The same operators over a list of [key, value], in double precision."""

    def __init__(self, slots):
        self.slots, self.items, self.written = slots, [], 0

    def near(self, key, k):
        order = sorted(range(len(self.items)), key=lambda i: abs(self.items[i][0] - key))[:k]
        kernel = [1 / (abs(self.items[i][0] - key) + 1e-3) for i in order]
        return [(i, weight / sum(kernel)) for i, weight in zip(order, kernel, strict=True)]

    def read(self, key, k, optimistic):
        near = self.near(key, k)
        if optimistic:
            return max((self.items[i][1] for i, _ in near), default=0.0)
        return sum(weight * self.items[i][1] for i, weight in near)

    def refine(self, key, value, k, rate):
        for i, weight in self.near(key, k):
            self.items[i][1] += rate * weight * (value - self.items[i][1])

    def write(self, key, value, k, rate):
        is_stored = any(key == own for own, _ in self.items)
        self.refine(key, value, k, rate)
        if is_stored:
            return
        if self.written < self.slots:
            self.items.append([key, value])
        else:
            self.items[self.written % self.slots] = [key, value]
        self.written += 1


# Keys on a line whose distances are all different, so that ties cannot be broken in two ways
KEYS = [0.0, 1.0, 3.0, 7.0, 15.5, 33.25, 70.125, 150.0]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "refine", "read", "best"]), st.sampled_from(KEYS), st.integers(-50, 50)), max_size=30
)


@cache
def operators(k, rate):
    def with_recall(operator):
        return jax.jit(lambda memory, tau, value: operator(memory, recall(memory, tau, k), tau, value))

    return {
        "write": with_recall(lambda memory, near, tau, value: write(memory, near, tau, value, rate)),
        "refine": with_recall(lambda memory, near, tau, value: refine(memory, near, value, rate)),
        "read": with_recall(lambda memory, near, tau, value: read(memory, near)[0]),
        "best": with_recall(lambda memory, near, tau, value: read(memory, near, True)[0]),
    }


@settings(max_examples=80)
@given(operations=OPERATIONS, slots=st.sampled_from([1, 5]), k=st.sampled_from([1, 3]))
def test_any_sequence_of_operations_is_that_of_a_list(operations, slots, k):
    memory, listed, rate = empty(slots, 1), Listed(slots), 0.3
    do = operators(k, rate)
    for name, key, value in operations:
        answer = do[name](memory, column(key), jnp.array([float(value)]))
        if name in ("read", "best"):
            assert float(answer) == pytest.approx(listed.read(key, k, name == "best"), rel=1e-4, abs=1e-4)
            continue
        memory = answer
        getattr(listed, name)(key, float(value), k, rate)
        assert [key for key, _ in stored(memory)] == [key for key, _ in listed.items]
        np.testing.assert_allclose([v for _, v in stored(memory)], [v for _, v in listed.items], rtol=1e-4, atol=1e-4)
    assert int(memory.written) == listed.written


# What writing converges to (Section 3.2 and the paper's Figure on convergence)


def test_writing_noisy_returns_converges_near_their_mean_where_a_maximum_overestimates():
    random, rate, mean, deviation = np.random.default_rng(0), 0.1, 3.0, 2.0
    returns = random.normal(mean, deviation, 2000).astype(np.float32)
    put_one = writer(1, rate)

    def step(memory, value):
        memory = put_one(memory, column(1.0), value[None], jnp.array([True]), jnp.int32(0))
        return memory, memory.values[0]

    memory, values = jax.jit(lambda x: jax.lax.scan(step, empty(4, 1), x))(returns)
    settled = np.asarray(values)[200:]
    assert int(memory.written) == 1
    # a constant rate a leaves a variance of a / (2 - a) times that of the returns
    expected = deviation * np.sqrt(rate / (2 - rate))
    assert settled.std() == pytest.approx(expected, rel=0.2)
    assert settled.mean() == pytest.approx(mean, abs=0.15)
    assert np.abs(settled - mean).max() < 5 * expected
    assert np.maximum.accumulate(returns)[-1] > mean + 3 * deviation  # what MFEC would keep


def test_several_neighbours_average_the_noise_of_returns_seen_once_each():
    """Every key is new, as in a noisy task: with K = 8 a read is nearer to the mean than with K = 1."""
    random = np.random.default_rng(1)
    keys, returns = random.normal(size=(300, 2)).astype(np.float32), random.normal(3.0, 2.0, 300).astype(np.float32)

    def error(k):
        def step(memory, pair):
            key, value = pair
            return write(memory, recall(memory, key[None], k), key[None], value[None], 0.5), None

        memory, _ = jax.jit(lambda: jax.lax.scan(step, empty(300, 2), (keys, returns)))()
        read_back = read(memory, recall(memory, jnp.zeros((1, 2)) + 0.3 * keys[:50], k))
        return float(jnp.sqrt(jnp.mean((read_back - 3.0) ** 2)))

    assert error(8) < 0.6 * error(1)
