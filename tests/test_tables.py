"""The tables of MFEC and NEC agree with numbers worked out by hand, and with tables that are plain lists."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import memory as mem
from engram import tables as tb
from engram import waiting as wt
from engram.tables import Entry, Writing, empty, size, touch, write
from engram.types import Spec

RECALL = jax.jit(tb.recall, static_argnums=2)
MEAN, WEIGHTED = jax.jit(tb.read_mean), jax.jit(tb.read_weighted)


def column(*numbers):
    return jnp.array(numbers, jnp.float32)[:, None]


@cache
def writer(forget, rate):
    @jax.jit
    def put(tables, key, value, into, step):
        return write(tables, tb.recall(tables, key, 1), Writing(key, value, into), step, forget, rate)

    return put


def put(tables, *entries, step=0, forget="unused", rate=None):
    """Writes triples of a number as key, an action (or None, for what must not be written) and a return, all at once."""
    keys, actions, values = zip(*entries, strict=True)
    into = jnp.array([[a == own for own in actions] for a in range(tables.values.shape[0])])
    return writer(forget, rate)(tables, column(*keys), jnp.array(values, jnp.float32), into, jnp.int32(step))


def stored(tables, action):
    """An action's pairs in the order of the slots."""
    filled = int(tables.filled[action])
    return list(zip(tables.keys[action, :filled, 0].tolist(), tables.values[action, :filled].tolist(), strict=True))


def remember(*entries, slots=8, actions=2):
    tables = empty(actions, slots, 1)
    for step, entry in enumerate(entries):
        tables = put(tables, entry, step=step)
    return tables


# Writing the greatest return (MFEC, Eq. 1)


def test_a_new_key_is_inserted_in_the_table_of_its_action_alone():
    tables = put(empty(3, 4, 1), (5.0, 1, 10.0))
    assert [stored(tables, action) for action in range(3)] == [[], [(5.0, 10.0)], []]
    assert tables.written.tolist() == [0, 1, 0]


def test_a_known_key_keeps_the_greater_return():
    tables = put(remember((5.0, 0, 10.0)), (5.0, 0, 12.0))
    assert stored(tables, 0) == [(5.0, 12.0)]
    tables = put(tables, (5.0, 0, -3.0))
    assert stored(tables, 0) == [(5.0, 12.0)]
    assert tables.written.tolist() == [1, 0]


def test_a_negative_return_is_greater_than_no_entry():
    assert stored(put(empty(2, 8, 1), (5.0, 0, -3.0)), 0) == [(5.0, -3.0)]


def test_a_key_known_to_one_action_is_new_to_another():
    tables = put(remember((5.0, 0, 10.0)), (5.0, 1, 2.0))
    assert stored(tables, 0) == [(5.0, 10.0)]
    assert stored(tables, 1) == [(5.0, 2.0)]


def test_equal_keys_of_one_write_are_one_entry_with_the_greatest_return():
    entries = (5.0, 0, 1.0), (5.0, 0, 9.0), (5.0, 1, 100.0), (5.0, 0, 3.0)
    tables = put(empty(2, 8, 1), *entries)
    assert stored(tables, 0) == [(5.0, 9.0)]
    assert stored(tables, 1) == [(5.0, 100.0)]
    tables = put(remember((5.0, 0, 4.0)), *entries)
    assert stored(tables, 0) == [(5.0, 9.0)]


def test_what_must_not_be_written_leaves_no_trace():
    tables = remember((5.0, 0, 10.0), (6.0, 1, 7.0))
    after = put(tables, (5.0, None, 99.0), (8.0, None, 99.0), step=50)
    for old, new in zip(tables, after, strict=True):
        np.testing.assert_array_equal(old, new)
    after = put(tables, (5.0, None, 99.0), (5.0, 0, 11.0))  # nor does it stand in the way of its equal
    assert stored(after, 0) == [(5.0, 11.0)]


def test_a_full_table_forgets_the_key_used_longest_ago_and_an_update_is_a_use():
    tables = remember((0.0, 0, 1.0), (10.0, 0, 2.0), (20.0, 0, 3.0), slots=3)
    tables = put(tables, (0.0, 0, -5.0), step=3)  # it changes nothing, but 10.0 is now the oldest
    assert tables.used[0].tolist() == [3, 1, 2]
    tables = put(tables, (30.0, 0, 4.0), step=4)
    assert stored(tables, 0) == [(0.0, 1.0), (30.0, 4.0), (20.0, 3.0)]
    tables = put(tables, (40.0, 0, 5.0), (50.0, 0, 6.0), step=5)
    assert stored(tables, 0) == [(50.0, 6.0), (30.0, 4.0), (40.0, 5.0)]


def test_a_key_that_is_updated_is_not_forgotten_by_the_same_write():
    tables = remember((0.0, 0, 1.0), (10.0, 0, 2.0), (20.0, 0, 3.0), slots=3)
    tables = put(tables, (30.0, 0, 4.0), (0.0, 0, 7.0), step=5)
    assert stored(tables, 0) == [(0.0, 7.0), (30.0, 4.0), (20.0, 3.0)]


def test_what_a_decision_reads_may_count_as_a_use():
    tables = remember((0.0, 0, 1.0), (10.0, 0, 2.0), (0.0, 1, 1.0), slots=3)
    tables = touch(tables, RECALL(tables, column(1.0), 1), jnp.int32(9))
    assert tables.used.tolist() == [[9, 1, 0], [9, 0, 0]]


@pytest.mark.parametrize(
    ("slots", "envs", "expected"), [(1000, 1, (100, "earliest")), (99, 1, (99, "unused")), (200, 2, (200, "earliest"))]
)
def test_a_table_that_cannot_be_full_is_as_long_as_the_run(slots, envs, expected):
    assert size(slots, Spec((2,), 2, envs=envs, iterations=100)) == expected


def test_equal_keys_count_only_where_they_are_to_be_written():
    tau, when = column(1.0, 2.0, 1.0, 1.0), jnp.array([False, True, True, True])
    assert mem.equal(tau, when).astype(int).tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert mem.is_first(tau, when).tolist() == [True, True, True, False]


def test_an_insertion_skips_what_is_not_due_and_moves_no_neighbour():
    insert = jax.jit(mem.insert)
    memory = mem.empty(3, 1)
    memory = insert(memory, column(0.0, 3.0, 4.0), jnp.array([10.0, 40.0, 9.0]), jnp.array([True, True, False]))
    memory = insert(memory, column(1.0, 2.0, 4.0), jnp.array([7.0, 8.0, 9.0]), jnp.array([False, True, False]))
    assert memory.keys[:, 0].tolist() == [0.0, 3.0, 2.0]
    assert memory.values.tolist() == [10.0, 40.0, 8.0]
    memory = insert(memory, column(1.0, 5.0, 4.0), jnp.array([7.0, 0.0, 9.0]), jnp.array([True, False, True]), step=6)
    assert memory.keys[:, 0].tolist() == [1.0, 4.0, 2.0]
    assert (memory.used.tolist(), int(memory.written)) == ([6, 6, 0], 5)


# Writing at a rate (NEC, Eq. 4)


def test_the_value_of_a_known_key_moves_towards_the_return():
    tables = put(remember((5.0, 0, 10.0)), (5.0, 0, 20.0), rate=0.1)
    assert stored(tables, 0) == [(5.0, 11.0)]
    tables = put(tables, (5.0, 0, -9.0), rate=0.1)
    assert stored(tables, 0) == [(5.0, 9.0)]


def test_a_new_key_has_its_return_whatever_the_rate():
    tables = put(remember((5.0, 0, 10.0)), (6.0, 0, 20.0), rate=0.1)
    assert stored(tables, 0) == [(5.0, 10.0), (6.0, 20.0)]


def test_equal_keys_of_one_write_at_a_rate_count_as_their_mean():
    entries = (5.0, 0, 20.0), (5.0, 0, 40.0), (5.0, 1, 99.0)
    assert stored(put(remember((5.0, 0, 10.0)), *entries, rate=0.1), 0) == [(5.0, 12.0)]
    assert stored(put(empty(2, 8, 1), *entries, rate=0.1), 0) == [(5.0, 30.0)]


# Reading


def test_a_known_state_has_its_own_value_and_not_the_mean():
    tables = remember((0.0, 0, 10.0), (1.0, 0, 40.0), (3.0, 0, 100.0), (0.0, 1, -2.0))
    near = RECALL(tables, column(0.0, 1.0), 2)
    assert MEAN(tables, near).tolist() == [[10.0, -2.0], [40.0, -2.0]]


def test_a_new_state_has_the_mean_of_its_neighbours_however_far_each():
    tables = remember((0.0, 0, 10.0), (1.0, 0, 40.0), (30.0, 0, 100.0), (0.0, 1, -2.0))
    assert MEAN(tables, RECALL(tables, column(0.9), 2)).tolist() == [[25.0, -2.0]]
    assert MEAN(tables, RECALL(tables, column(0.9), 3)).tolist() == [[50.0, -2.0]]


def test_with_fewer_than_k_entries_the_mean_is_of_those():
    tables = remember((0.0, 0, 10.0), (1.0, 0, 40.0))
    assert MEAN(tables, RECALL(tables, column(7.0), 5)).tolist() == [[25.0, 0.0]]


def test_an_empty_table_reads_0():
    tables = empty(2, 8, 1)._replace(values=jnp.full((2, 8), 77.0))  # whatever lies in slots never written
    near = RECALL(tables, column(0.0, 3.0), 2)
    assert MEAN(tables, near).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert WEIGHTED(tables, near).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_weighted_read_has_the_kernel_of_nec():
    tables = remember((0.0, 0, 10.0), (3.0, 0, 40.0), (99.0, 0, 7.0), (2.0, 1, 6.0))
    # from 1.0 squared distances are 1 and 4; with delta = 2 the kernel is 1/3 and 1/6: weights 2/3 and 1/3
    q = WEIGHTED(tables, RECALL(tables, column(1.0), 2, 2.0))
    np.testing.assert_allclose(q, [[20.0, 6.0]], rtol=1e-6)
    # at a key itself the kernel is 1/2, and 1/11 of the other: the stored value counts for most, but not alone
    q = WEIGHTED(tables, RECALL(tables, column(0.0), 2, 2.0))
    np.testing.assert_allclose(q[0, 0], (10 / 2 + 40 / 11) / (1 / 2 + 1 / 11), rtol=1e-6)


def test_a_search_in_some_tables_finds_nothing_in_the_others():
    tables = remember((0.0, 0, 10.0), (3.0, 0, 40.0), (2.0, 1, 6.0))
    some = RECALL(tables, column(1.0, 2.0), 2, 1e-3, jnp.array([[True, False], [False, True]]))
    every = RECALL(tables, column(1.0, 2.0), 2)
    for action, query in ((0, 0), (1, 1)):
        np.testing.assert_array_equal(some.slots[action, query], every.slots[action, query])
        np.testing.assert_array_equal(some.weights[action, query], every.weights[action, query])
    assert some.weights[0, 1].tolist() == some.weights[1, 0].tolist() == [0.0, 0.0]
    assert some.exact.tolist() == [[False, False], [False, True]]


def test_a_part_of_a_search_is_the_search_for_a_part():
    tables = remember((0.0, 0, 10.0), (3.0, 0, 40.0), (2.0, 1, 6.0))
    all_four, two = RECALL(tables, column(0.0, 1.0, 2.0, 3.0), 2), RECALL(tables, column(1.0, 2.0), 2)
    for part, own in zip(tb.split(all_four, (1, 2, 1))[1], two, strict=True):
        np.testing.assert_array_equal(part, own)


def test_what_is_ready_goes_into_the_tables_of_its_actions():
    what = Entry(jnp.arange(4.0).reshape(2, 2, 1), jnp.array([[0, 1], [2, 1]]))
    ready = wt.Ready(what, jnp.array([[5.0, 6.0], [7.0, 8.0]]), jnp.array([[True, False], [True, True]]))
    new = tb.writing(ready, 3)
    assert new.key[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert new.value.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert new.into.astype(int).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


# Tables that are plain lists


class Listed:
    """The same writes over a list of [key, value, last use] for each action."""

    def __init__(self, actions, slots):
        self.tables, self.slots = [[] for _ in range(actions)], slots

    def write(self, entries, step, rate):
        for action, table in enumerate(self.tables):
            returns = {}
            for key, own, value in entries:
                if own == action:
                    returns.setdefault(key, []).append(value)
            known = {key: slot for slot, (key, _, _) in enumerate(table)}
            for key in returns.keys() & known.keys():
                value, row = returns[key], table[known[key]]
                row[1] = max(row[1], *value) if rate is None else row[1] + rate * (np.mean(value) - row[1])
                row[2] = step
            # slots that are free, then those used longest ago, the lower first
            order = sorted(range(len(table)), key=lambda slot: (table[slot][2], slot))
            for key in [key for key in returns if key not in known]:
                value = max(returns[key]) if rate is None else np.mean(returns[key])
                if len(table) < self.slots:
                    table.append([key, value, step])
                else:
                    table[order.pop(0)] = [key, value, step]


ENTRY = st.tuples(st.integers(0, 5), st.sampled_from([0, 1, None]), st.integers(-20, 20))
WRITES = st.lists(st.tuples(*[ENTRY] * 3), max_size=12)


@settings(max_examples=60)
@given(writes=WRITES, slots=st.sampled_from([3, 8]), rate=st.sampled_from([None, 0.25]))
def test_any_sequence_of_writes_is_that_of_a_list(writes, slots, rate):
    tables, listed = empty(2, slots, 1), Listed(2, slots)
    for step, entries in enumerate(writes, start=1):
        entries = [(float(key), action, value) for key, action, value in entries]
        tables = put(tables, *entries, step=step, rate=rate)
        listed.write(entries, step, rate)
        for action in range(2):
            # which of the keys written together has which slot is no matter
            assert sorted(key for key, _ in stored(tables, action)) == sorted(key for key, _, _ in listed.tables[action])
            expected = {key: value for key, value, _ in listed.tables[action]}
            assert dict(stored(tables, action)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
