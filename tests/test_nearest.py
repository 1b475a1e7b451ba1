"""The search finds what brute force finds."""

import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engram import native
from engram.nearest import blockwise, nearest, portable, two_kernels

pytestmark = pytest.mark.usefixtures("optimised")

# N, H, Q, k: around one block of 16, around where blocks pay (2 * 16 * k), and k above N
SHAPES = [
    (1, 1, 1, 1),
    (3, 2, 1, 5),
    (15, 3, 2, 2),
    (16, 3, 2, 1),
    (17, 1, 3, 4),
    (159, 4, 2, 1),
    (161, 4, 2, 1),
    (600, 16, 4, 15),
    (513, 5, 3, 3),
    (2048, 2, 2, 3),
]
KINDS = ["spread", "grid", "twins", "cluster", "stored"]


WAYS = [portable, partial(blockwise, interpret=True), partial(two_kernels, interpret=True)] + [native.nearest] * native.is_available()


@cache
def search(k, way=nearest):
    return jax.jit(lambda keys, filled, queries: way(keys, filled, queries, k))


def table(kind, shape, random):
    """Keys and queries of one kind."""
    size, dim, count, _ = shape
    keys, queries = random.normal(size=(size, dim)), random.normal(size=(count, dim))
    if kind == "grid":  # many exact ties
        keys, queries = np.round(keys), np.round(queries)
    if kind == "twins":  # every key several times
        keys = keys[random.integers(0, max(1, size // 3), size)]
    if kind == "cluster":  # close together and far from 0
        centre = 30 * random.normal(size=dim)
        keys, queries = centre + 0.3 * keys, centre + 0.3 * queries
    if kind == "stored":
        queries = keys[random.integers(0, size, count)]
    return keys.astype(np.float32), queries.astype(np.float32)


def distances_by_hand(keys, queries):
    return np.sqrt(((queries[:, None].astype(np.float64) - keys[None].astype(np.float64)) ** 2).sum(-1))


def agree(keys, filled, queries, k, distances, slots):
    distances, slots = np.asarray(distances), np.asarray(slots)
    assert distances.shape == slots.shape == (len(queries), k)
    found = min(k, filled)
    assert np.isfinite(distances[:, :found]).all()
    assert np.isposinf(distances[:, found:]).all()
    assert (np.diff(distances[:, :found]) >= 0).all()
    assert ((slots >= 0) & (slots < len(keys))).all()
    true = distances_by_hand(keys, queries)[:, :filled]
    for row, near, exact in zip(distances[:, :found], slots[:, :found], true, strict=True):
        assert (near < filled).all()
        assert len(set(near)) == found
        np.testing.assert_allclose(row, exact[near], rtol=2e-6, atol=1e-30)
        np.testing.assert_allclose(row, np.sort(exact)[:found], rtol=2e-6, atol=1e-30)


@settings(max_examples=120)
@given(
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from(KINDS),
    part=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@example(shape=SHAPES[7], kind="spread", part=0.0, seed=0)
@example(shape=SHAPES[7], kind="twins", part=0.005, seed=1)
@example(shape=SHAPES[9], kind="stored", part=1.0, seed=2)
def test_it_finds_what_brute_force_finds(shape, kind, part, seed):
    keys, queries = table(kind, shape, np.random.default_rng(seed))
    filled = round(part * len(keys))
    for way in WAYS:
        agree(keys, filled, queries, shape[3], *search(shape[3], way)(keys, jnp.int32(filled), queries))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1.0, 1e3])
def test_a_stored_key_is_at_distance_exactly_0_and_comes_first(way, spread):
    random = np.random.default_rng(0)
    for centre in (0.0, 1.0):  # close together and far from 0, a matrix product could not tell them apart
        keys = (centre + spread * random.normal(size=(600, 16))).astype(np.float32)
        chosen = random.integers(0, 600, 32)
        distances, slots = search(15, way)(keys, jnp.int32(600), keys[chosen])
        assert (np.asarray(distances)[:, 0] == 0).all()
        assert (np.asarray(slots)[:, 0] == chosen).all()


@pytest.mark.parametrize("filled", [0, 1, 127, 128, 129, 511, 512, 513, 2047, 2048])
def test_every_prefix_gives_the_right_answer(filled):
    keys, queries = table("spread", (2048, 2, 2, 3), np.random.default_rng(3))
    for way in WAYS:
        agree(keys, filled, queries, 3, *search(3, way)(keys, jnp.int32(filled), queries))


@pytest.mark.parametrize("way", WAYS)
def test_runs_with_memories_of_different_size_are_searched_together_as_alone(way):
    random = np.random.default_rng(4)
    keys, queries = (random.normal(size=shape).astype(np.float32) for shape in ((4, 2048, 2), (4, 5, 2)))
    filled = np.array([0, 2, 130, 2048], np.int32)
    distances, slots = jax.jit(jax.vmap(lambda *x: way(*x, 3)))(keys, filled, queries)
    for run in range(4):
        agree(keys[run], int(filled[run]), queries[run], 3, distances[run], slots[run])
        alone = search(3, way)(keys[run], filled[run], queries[run])
        np.testing.assert_array_equal(alone[0], distances[run])
        finite = np.isfinite(alone[0])
        np.testing.assert_array_equal(np.asarray(alone[1])[finite], np.asarray(slots[run])[finite])


@pytest.mark.parametrize("way", WAYS)
def test_a_query_that_is_no_number_finds_nothing_and_disturbs_no_other(way):
    keys, queries = table("spread", (600, 16, 4, 15), np.random.default_rng(6))
    asked = queries.copy()
    asked[1:3] = np.nan
    distances, slots = search(15, way)(keys, jnp.int32(500), asked)
    assert np.isposinf(np.asarray(distances)[1:3]).all()
    assert (np.asarray(slots)[1:3] == 0).all()
    agree(keys, 500, queries[[0, 3]], 15, distances[jnp.array([0, 3])], slots[jnp.array([0, 3])])


def test_runs_may_share_their_keys_or_their_queries():
    random = np.random.default_rng(5)
    keys, queries = random.normal(size=(40, 2)).astype(np.float32), random.normal(size=(3, 5, 2)).astype(np.float32)
    shared = jax.vmap(lambda q: nearest(keys, jnp.int32(30), q, 3))(queries)
    for run in range(3):
        agree(keys, 30, queries[run], 3, shared[0][run], shared[1][run])


def test_no_gradient_flows_through_the_search():
    keys, queries = jnp.arange(40.0).reshape(20, 2), jnp.ones((3, 2))

    def total(keys, queries):
        return jnp.sum(nearest(keys, jnp.int32(20), queries, 2)[0])

    for gradient in jax.jit(jax.grad(total, argnums=(0, 1)))(keys, queries):
        assert (np.asarray(gradient) == 0).all()

    def through_slots(keys):
        _, slots = nearest(keys, jnp.int32(20), queries, 1)
        return jnp.sum(keys[slots[:, 0]])

    assert jax.grad(through_slots)(keys)[0].tolist() == [3.0, 3.0]  # all three queries lie nearest to the first key


def test_a_machine_without_a_compiler_does_without_the_kernel(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(native, "_cache", lambda: Path(tempfile.mkdtemp()))
    native.is_available.cache_clear()
    try:
        assert not native.is_available()
    finally:
        native.is_available.cache_clear()


def test_this_machine_has_the_kernel_if_it_has_a_compiler():
    assert native.is_available() == (shutil.which("c++") is not None or shutil.which("g++") is not None)
