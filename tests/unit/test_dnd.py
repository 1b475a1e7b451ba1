"""The memories of MFEC and NEC agree with numbers computed by hand, and with plain lists."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.episodic import dnd
from engram.episodic.accumulator import ClosedReturns
from engram.episodic.dnd import Entry, Writes, capacity, init_dnd
from engram.types import Spec

LOOKUP = jax.jit(dnd.lookup, static_argnums=2)
READ_MEAN = jax.jit(dnd.read_mean)
READ_WEIGHTED = jax.jit(dnd.read_weighted)


def column(*numbers):
    return np.array(numbers, np.float32)[:, None]


@cache
def jitted_write(eviction, write_lr):
    @jax.jit
    def recall_and_write(memories, key, value, mask, step):
        near = dnd.lookup(memories, key, 1)
        return dnd.write(memories, near, Writes(key, value, mask), step, eviction, write_lr)

    return recall_and_write


def put(memories, *entries, step=0, eviction="lru", write_lr=None):
    """Writes triples of key, action and return in one call; an action None is masked out."""
    keys, actions, values = zip(*entries, strict=True)
    mask = np.array([[a == own for own in actions] for a in range(memories.values.shape[0])])
    recall_and_write = jitted_write(eviction, write_lr)
    values = np.array(values, np.float32)
    return recall_and_write(memories, column(*keys), values, mask, np.int32(step))


def stored(memories, action):
    """An action's pairs of key and value in the order of the slots."""
    arrays = memories.size, memories.keys, memories.values
    size, keys, values = (np.asarray(x)[action] for x in arrays)
    return list(zip(keys[:size, 0].tolist(), values[:size].tolist(), strict=True))


def memories_of(*entries, memory_size=8):
    """The memories of two actions after one write per entry."""
    memories = init_dnd(2, memory_size, 1)
    for step, entry in enumerate(entries):
        memories = put(memories, entry, step=step)
    return memories


# Writing the maximum of returns (MFEC, Eq. 1)


def test_a_new_key_is_inserted_in_the_memory_of_its_action_alone():
    memories = put(init_dnd(3, 4, 1), (5.0, 1, 10.0))
    assert [stored(memories, action) for action in range(3)] == [[], [(5.0, 10.0)], []]
    assert memories.num_inserted.tolist() == [0, 1, 0]


def test_a_known_key_keeps_the_maximum_of_its_returns():
    memories = put(memories_of((5.0, 0, 10.0)), (5.0, 0, 12.0))
    assert stored(memories, 0) == [(5.0, 12.0)]
    memories = put(memories, (5.0, 0, -3.0))
    assert stored(memories, 0) == [(5.0, 12.0)]
    assert memories.num_inserted.tolist() == [1, 0]


def test_the_first_return_of_a_key_may_be_negative():
    assert stored(put(init_dnd(2, 8, 1), (5.0, 0, -3.0)), 0) == [(5.0, -3.0)]


def test_a_key_known_to_one_action_is_new_to_another():
    memories = put(memories_of((5.0, 0, 10.0)), (5.0, 1, 2.0))
    assert stored(memories, 0) == [(5.0, 10.0)]
    assert stored(memories, 1) == [(5.0, 2.0)]


def test_equal_keys_of_one_write_count_once_by_their_maximum():
    entries = (5.0, 0, 1.0), (5.0, 0, 9.0), (5.0, 1, 100.0), (5.0, 0, 3.0)
    memories = put(init_dnd(2, 8, 1), *entries)
    assert stored(memories, 0) == [(5.0, 9.0)]
    assert stored(memories, 1) == [(5.0, 100.0)]
    memories = put(memories_of((5.0, 0, 4.0)), *entries)
    assert stored(memories, 0) == [(5.0, 9.0)]


def test_masked_entries_change_nothing():
    memories = memories_of((5.0, 0, 10.0), (6.0, 1, 7.0))
    after = put(memories, (5.0, None, 99.0), (8.0, None, 99.0), step=50)
    for old, new in zip(memories, after, strict=True):
        np.testing.assert_array_equal(old, new)
    # Nor does a masked entry suppress an equal one.
    after = put(memories, (5.0, None, 99.0), (5.0, 0, 11.0))
    assert stored(after, 0) == [(5.0, 11.0)]


def test_a_full_memory_replaces_its_least_recently_used_key_and_an_update_is_a_use():
    memories = memories_of((0.0, 0, 1.0), (10.0, 0, 2.0), (20.0, 0, 3.0), memory_size=3)
    memories = put(memories, (0.0, 0, -5.0), step=3)  # keeps its value, but 10.0 is now the oldest
    assert memories.last_used[0].tolist() == [3, 1, 2]
    memories = put(memories, (30.0, 0, 4.0), step=4)
    assert stored(memories, 0) == [(0.0, 1.0), (30.0, 4.0), (20.0, 3.0)]
    memories = put(memories, (40.0, 0, 5.0), (50.0, 0, 6.0), step=5)
    assert stored(memories, 0) == [(50.0, 6.0), (30.0, 4.0), (40.0, 5.0)]


def test_a_key_that_is_updated_is_not_replaced_by_the_same_write():
    memories = memories_of((0.0, 0, 1.0), (10.0, 0, 2.0), (20.0, 0, 3.0), memory_size=3)
    memories = put(memories, (30.0, 0, 4.0), (0.0, 0, 7.0), step=5)
    assert stored(memories, 0) == [(0.0, 7.0), (30.0, 4.0), (20.0, 3.0)]


def test_touch_marks_the_neighbours_in_every_memory():
    memories = memories_of((0.0, 0, 1.0), (10.0, 0, 2.0), (0.0, 1, 1.0), memory_size=3)
    memories = dnd.touch(memories, LOOKUP(memories, column(1.0), 1), jnp.int32(9))
    assert memories.last_used.tolist() == [[9, 1, 0], [9, 0, 0]]


@pytest.mark.parametrize(
    ("memory_size", "num_envs", "expected"),
    [(1000, 1, (100, "fifo")), (99, 1, (99, "lru")), (200, 2, (200, "fifo"))],
)
def test_a_memory_that_cannot_be_full_has_the_size_of_the_run(memory_size, num_envs, expected):
    assert capacity(memory_size, Spec((2,), 2, num_envs=num_envs, num_iterations=100)) == expected


# Writing with a learning rate (NEC, Eq. 4)


def test_write_lr_moves_the_value_of_a_known_key_towards_the_return():
    memories = put(memories_of((5.0, 0, 10.0)), (5.0, 0, 20.0), write_lr=0.1)
    assert stored(memories, 0) == [(5.0, 11.0)]
    memories = put(memories, (5.0, 0, -9.0), write_lr=0.1)
    assert stored(memories, 0) == [(5.0, 9.0)]


def test_a_new_key_has_its_return_whatever_write_lr():
    memories = put(memories_of((5.0, 0, 10.0)), (6.0, 0, 20.0), write_lr=0.1)
    assert stored(memories, 0) == [(5.0, 10.0), (6.0, 20.0)]


def test_with_write_lr_equal_keys_of_one_write_count_once_by_their_mean():
    entries = (5.0, 0, 20.0), (5.0, 0, 40.0), (5.0, 1, 99.0)
    memories = put(memories_of((5.0, 0, 10.0)), *entries, write_lr=0.1)
    assert stored(memories, 0) == [(5.0, 12.0)]
    assert stored(put(init_dnd(2, 8, 1), *entries, write_lr=0.1), 0) == [(5.0, 30.0)]


# Reading


def test_read_mean_of_a_known_key_is_its_own_value():
    memories = memories_of((0.0, 0, 10.0), (1.0, 0, 40.0), (3.0, 0, 100.0), (0.0, 1, -2.0))
    near = LOOKUP(memories, column(0.0, 1.0), 2)
    assert READ_MEAN(memories, near).tolist() == [[10.0, -2.0], [40.0, -2.0]]


def test_read_mean_of_a_new_key_is_the_unweighted_mean_of_its_neighbours():
    memories = memories_of((0.0, 0, 10.0), (1.0, 0, 40.0), (30.0, 0, 100.0), (0.0, 1, -2.0))
    assert READ_MEAN(memories, LOOKUP(memories, column(0.9), 2)).tolist() == [[25.0, -2.0]]
    assert READ_MEAN(memories, LOOKUP(memories, column(0.9), 3)).tolist() == [[50.0, -2.0]]


def test_read_mean_with_fewer_than_k_keys_is_the_mean_of_those():
    memories = memories_of((0.0, 0, 10.0), (1.0, 0, 40.0))
    assert READ_MEAN(memories, LOOKUP(memories, column(7.0), 5)).tolist() == [[25.0, 0.0]]


def test_an_empty_memory_reads_zero():
    memories = init_dnd(2, 8, 1)._replace(values=jnp.full((2, 8), 77.0))  # in slots never written
    near = LOOKUP(memories, column(0.0, 3.0), 2)
    assert READ_MEAN(memories, near).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert READ_WEIGHTED(memories, near).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_read_weighted_uses_the_kernel_of_nec():
    memories = memories_of((0.0, 0, 10.0), (3.0, 0, 40.0), (99.0, 0, 7.0), (2.0, 1, 6.0))
    # Squared distances of 1.0 are 1 and 4; with delta = 2 the kernel is 1/3 and 1/6.
    q = READ_WEIGHTED(memories, LOOKUP(memories, column(1.0), 2, 2.0))
    np.testing.assert_allclose(q, [[20.0, 6.0]], rtol=1e-6)
    # At a stored key the kernel is 1/2, and 1/11 for the other one.
    q = READ_WEIGHTED(memories, LOOKUP(memories, column(0.0), 2, 2.0))
    np.testing.assert_allclose(q[0, 0], (10 / 2 + 40 / 11) / (1 / 2 + 1 / 11), rtol=1e-6)


def test_masked_recall_searches_only_the_named_memories():
    memories = memories_of((0.0, 0, 10.0), (3.0, 0, 40.0), (2.0, 1, 6.0))
    mask = jnp.array([[True, False], [False, True]])
    some = LOOKUP(memories, column(1.0, 2.0), 2, 1e-3, mask)
    every = LOOKUP(memories, column(1.0, 2.0), 2)
    for action, query in ((0, 0), (1, 1)):
        np.testing.assert_array_equal(some.slots[action, query], every.slots[action, query])
        np.testing.assert_array_equal(some.weights[action, query], every.weights[action, query])
    assert some.weights[0, 1].tolist() == some.weights[1, 0].tolist() == [0.0, 0.0]
    assert some.exact.tolist() == [[False, False], [False, True]]


def test_split_gives_each_group_of_queries_its_own_neighbours():
    memories = memories_of((0.0, 0, 10.0), (3.0, 0, 40.0), (2.0, 1, 6.0))
    all_four = LOOKUP(memories, column(0.0, 1.0, 2.0, 3.0), 2)
    middle = LOOKUP(memories, column(1.0, 2.0), 2)
    for part, expected in zip(dnd.split(all_four, (1, 2, 1))[1], middle, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_closed_returns_are_written_to_the_memories_of_their_actions():
    entry = Entry(jnp.arange(4.0).reshape(2, 2, 1), jnp.array([[0, 1], [2, 1]]))
    returns = jnp.array([[5.0, 6.0], [7.0, 8.0]])
    is_closed = jnp.array([[True, False], [True, True]])
    writes = dnd.make_writes(ClosedReturns(entry, returns, is_closed), 3)
    assert writes.key[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert writes.value.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert writes.mask.astype(int).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


# Against memories that are plain lists


class ListMemories:
    """The same writes over a list of [key, value, last use] for each action."""

    def __init__(self, num_actions, memory_size):
        self.memories = [[] for _ in range(num_actions)]
        self.memory_size = memory_size

    def write(self, entries, step, write_lr):
        for action, memory in enumerate(self.memories):
            returns = {}
            for key, own, value in entries:
                if own == action:
                    returns.setdefault(key, []).append(value)
            known = {key: slot for slot, (key, _, _) in enumerate(memory)}
            for key in returns.keys() & known.keys():
                item = memory[known[key]]
                if write_lr is None:
                    item[1] = max(item[1], *returns[key])
                else:
                    item[1] += write_lr * (np.mean(returns[key]) - item[1])
                item[2] = step
            # Free slots first, then the least recently used, of equals the lower one.
            order = sorted(range(len(memory)), key=lambda slot: (memory[slot][2], slot))
            for key in [key for key in returns if key not in known]:
                value = max(returns[key]) if write_lr is None else np.mean(returns[key])
                if len(memory) < self.memory_size:
                    memory.append([key, value, step])
                else:
                    memory[order.pop(0)] = [key, value, step]


ENTRY = st.tuples(st.integers(0, 5), st.sampled_from([0, 1, None]), st.integers(-20, 20))
WRITES = st.lists(st.tuples(*[ENTRY] * 3), max_size=12)


@settings(max_examples=50)
@given(writes=WRITES, memory_size=st.sampled_from([3, 8]), write_lr=st.sampled_from([None, 0.25]))
def test_any_sequence_of_writes_agrees_with_a_list(writes, memory_size, write_lr):
    memories, expected = init_dnd(2, memory_size, 1), ListMemories(2, memory_size)
    for step, entries in enumerate(writes, start=1):
        entries = [(float(key), action, value) for key, action, value in entries]
        memories = put(memories, *entries, step=step, write_lr=write_lr)
        expected.write(entries, step, write_lr)
        for action in range(2):
            # Keys of one write may share out their slots in any order.
            pairs = stored(memories, action)
            items = {key: value for key, value, _ in expected.memories[action]}
            assert len(pairs) == len(items)
            assert dict(pairs) == pytest.approx(items, rel=1e-5, abs=1e-5)
