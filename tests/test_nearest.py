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

from engram import gpu, native
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
    (3000, 16, 6, 7),  # three rounds of eight stretches of 128
]
KINDS = ["spread", "grid", "twins", "cluster", "stored", "far", "apart"]


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
    if kind == "far":  # so far from 0 that a product of two loses all digits of their distance
        keys, queries = 1000 + 1e-3 * keys, 1000 + 1e-3 * queries
    if kind == "apart":  # and so on either side of 0 that no centre helps
        keys, queries = (300 * random.choice([-1, 1], (len(x), 1)) + x for x in (keys, queries))
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


@settings(max_examples=50)
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


kernels = partial(gpu.few, interpret=True)


def in_order(keys, filled, queries, k):
    """Squared distances and slots by brute force, for numbers whose squares and sums float32 holds exactly: equals as they are stored."""
    with np.errstate(all="ignore"):
        squares = np.sum((queries[:, None] - keys[None, :filled]) ** 2, axis=-1, dtype=np.float32)
    squares = np.where(np.isnan(squares), np.inf, squares)
    slots = np.argsort(squares, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(squares, slots, axis=1), slots


def agree_in_order(keys, filled, queries, k, squares, slots):
    expected, order = in_order(keys, filled, queries, k)
    found = expected.shape[1]
    np.testing.assert_array_equal(squares[:, :found], expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.asarray(slots)[:, :found][finite], order[finite])
    assert np.isposinf(squares[:, found:]).all()


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), filled=st.integers(0, 3000), scale=st.sampled_from([-60, 0, 50]), away=st.sampled_from([0, 512]))
@example(seed=0, filled=3000, scale=50, away=512)
@example(seed=1, filled=0, scale=0, away=0)
def test_of_equals_the_lower_slot_comes_first_in_whatever_stretch_it_lies(seed, filled, scale, away):
    random = np.random.default_rng(seed)
    keys, queries = (random.integers(-2, 3, (size, 3)) + away * random.choice([-1, 1], (size, 1)) for size in (3000, 6))
    keys, queries = (2.0**scale * x.astype(np.float32) for x in (keys, queries))
    agree_in_order(keys, filled, queries, 7, *search(7, kernels)(keys, jnp.int32(filled), queries))


def test_numbers_too_large_to_be_squared_hide_no_neighbour():
    random = np.random.default_rng(7)
    keys = random.integers(-2, 3, (3000, 3)).astype(np.float32)
    keys[random.integers(0, 3000, 900)] *= 2.0**62  # some of whose squares are numbers, and some not
    keys[random.integers(0, 3000, 300)] *= 2.0**64
    keys[[5, 700, 1400, 2999]] = np.array([np.nan, np.inf, np.finfo(np.float32).max, -np.inf])[:, None]
    queries = np.concatenate([keys[:: 3000 // 20], np.full((1, 3), np.nan, np.float32)])
    for asked in (queries, np.abs(queries), np.where(np.abs(queries) < 3, queries, 0)):
        agree_in_order(keys, 3000, asked, 7, *search(7, kernels)(keys, jnp.int32(3000), asked))
    keys[:], asked[:] = 0, 0
    keys[:1024:128, 0] = 2.0**64 * 0.21875  # in the stretches looked at first
    keys[1024::128, 0] = 2.0**64 * 1.25  # nearer, and nearer than it is long
    asked[:, 0] = 2.0**64 * 0.75 * np.where(np.arange(len(asked)) % 2, 1, -1)
    agree_in_order(keys, 3000, asked, 7, *search(7, kernels)(keys, jnp.int32(3000), asked))


@pytest.mark.parametrize("dim", [5, 16])
def test_errors_of_tensor_cores_as_large_as_they_can_be_hide_no_neighbour(monkeypatch, dim):
    random, slack, exact = np.random.default_rng(8), gpu._slack(dim), gpu._product

    def inexact(queries, keys):
        product = exact(queries, keys)
        lengths = jnp.sqrt(jnp.sum(queries**2, axis=1))[:, None] * jnp.sqrt(jnp.sum(keys**2, axis=1))
        error = 0.7 * slack * lengths  # more than the products' share of the slack
        return product + jnp.where(jnp.sin(1e4 * product[:, :1]) > 0, error, -error)  # one way in a stretch

    keys, queries = (30 * random.choice([-1, 1], (size, 1)) + 0.5 * random.normal(size=(size, dim)) for size in (3000, 40))
    keys, queries = keys.astype(np.float32), queries.astype(np.float32)
    true = np.sort(distances_by_hand(keys, queries), axis=1)[:, :7]
    monkeypatch.setattr(gpu, "_product", inexact)
    agree(keys, 3000, queries, 7, *two_kernels(keys, jnp.int32(3000), queries, 7, interpret=True))
    monkeypatch.setattr(gpu, "_slack", lambda _: 0.0)  # these keys can tell: who trusts the products misses neighbours
    assert not np.allclose(two_kernels(keys, jnp.int32(3000), queries, 7, interpret=True)[0], true, rtol=1e-5)


@pytest.mark.parametrize("shape", [{"tiles": 2}, {"asked": 16}, {"tiles": 4, "asked": 128}])
def test_kernels_of_other_shapes_find_the_same(shape):
    keys, queries = table("spread", (1000, 8, 70, 7), np.random.default_rng(9))
    way = partial(kernels, **shape)
    for filled in (130, 1000):
        squares, slots = search(7, way)(keys, jnp.int32(filled), queries)
        agree(keys, filled, queries, 7, np.sqrt(squares), slots)


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
