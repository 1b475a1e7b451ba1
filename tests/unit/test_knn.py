"""All implementations of the K nearest neighbours agree with brute force."""

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

from engram.episodic.knn import (
    cpp,
    few_neighbours,
    many_neighbours,
    nearest_neighbours,
    pallas,
    portable_knn,
)

pytestmark = pytest.mark.usefixtures("optimized")

# N, H, Q, k: around one block of 16, around the size where blocks pay (2 * 16 * k), k above N
SHAPES = [
    (3, 2, 1, 5),
    (17, 1, 3, 4),
    (161, 4, 2, 1),
    (600, 16, 4, 15),
    (2048, 2, 2, 3),
    (3000, 16, 6, 7),  # three rounds of eight segments of 128
]
DISTRIBUTIONS = ["normal", "ties", "duplicates", "cluster", "stored", "far", "two_clusters"]
IMPLEMENTATIONS = {
    "portable": portable_knn,
    "many": partial(many_neighbours, interpret=True),
    "few": partial(few_neighbours, interpret=True),
}
if cpp.is_available():
    IMPLEMENTATIONS["cpp"] = cpp.nearest_neighbours

FEW_NEAREST = partial(pallas.few_nearest, interpret=True)


@cache
def jitted(k, search):
    return jax.jit(lambda keys, size, queries: search(keys, size, queries, k))


@pytest.fixture(params=IMPLEMENTATIONS)
def search(request):
    return IMPLEMENTATIONS[request.param]


def random_keys(distribution, shape, rng):
    """Keys and queries of a distribution that is hard for some implementation."""
    size, dim, count, _ = shape
    keys, queries = rng.normal(size=(size, dim)), rng.normal(size=(count, dim))
    if distribution == "ties":
        keys, queries = np.round(keys), np.round(queries)
    if distribution == "duplicates":
        keys = keys[rng.integers(0, max(1, size // 3), size)]
    if distribution == "cluster":  # close together and far from 0
        centre = 30 * rng.normal(size=dim)
        keys, queries = centre + 0.3 * keys, centre + 0.3 * queries
    if distribution == "far":  # so far that a matrix product loses all digits of a distance
        keys, queries = 1000 + 1e-3 * keys, 1000 + 1e-3 * queries
    if distribution == "two_clusters":  # on either side of 0, so that no centre helps
        keys, queries = (300 * rng.choice([-1, 1], (len(x), 1)) + x for x in (keys, queries))
    if distribution == "stored":
        queries = keys[rng.integers(0, size, count)]
    return keys.astype(np.float32), queries.astype(np.float32)


def brute_force(keys, queries):
    difference = queries[:, None].astype(np.float64) - keys[None].astype(np.float64)
    return np.sqrt((difference**2).sum(-1))


def assert_nearest(keys, size, queries, k, distances, slots):
    """Distances and slots are those of the nearest keys, missing ones at infinity."""
    distances, slots = np.asarray(distances), np.asarray(slots)
    assert distances.shape == slots.shape == (len(queries), k)
    count = min(k, size)
    assert np.isfinite(distances[:, :count]).all()
    assert np.isposinf(distances[:, count:]).all()
    assert (np.diff(distances[:, :count]) >= 0).all()
    assert ((slots >= 0) & (slots < len(keys))).all()
    expected = brute_force(keys, queries)[:, :size]
    for row, near, exact in zip(distances[:, :count], slots[:, :count], expected, strict=True):
        assert (near < size).all()
        assert len(set(near)) == count
        np.testing.assert_allclose(row, exact[near], rtol=2e-6, atol=1e-30)
        np.testing.assert_allclose(row, np.sort(exact)[:count], rtol=2e-6, atol=1e-30)


@settings(max_examples=20)
@given(
    shape=st.sampled_from(SHAPES),
    distribution=st.sampled_from(DISTRIBUTIONS),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@example(shape=(600, 16, 4, 15), distribution="normal", share=0.0, seed=0)
@example(shape=(600, 16, 4, 15), distribution="duplicates", share=0.005, seed=1)
@example(shape=(2048, 2, 2, 3), distribution="stored", share=1.0, seed=2)
def test_all_implementations_agree_with_brute_force(shape, distribution, share, seed):
    keys, queries = random_keys(distribution, shape, np.random.default_rng(seed))
    size, k = round(share * len(keys)), shape[3]
    for search in IMPLEMENTATIONS.values():
        answer = jitted(k, search)(keys, np.int32(size), queries)
        assert_nearest(keys, size, queries, k, *answer)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 511, 512, 513, 2047, 2048])
def test_partly_filled_memories_agree_with_brute_force(size):
    shape = 2048, 2, 2, 3
    keys, queries = random_keys("normal", shape, np.random.default_rng(3))
    for search in IMPLEMENTATIONS.values():
        answer = jitted(3, search)(keys, np.int32(size), queries)
        assert_nearest(keys, size, queries, 3, *answer)


@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1.0, 1e3])
def test_a_stored_key_has_distance_0_and_comes_first(search, spread):
    rng = np.random.default_rng(0)
    for centre in (0.0, 1.0):  # far from 0 a matrix product could not tell close keys apart
        keys = (centre + spread * rng.normal(size=(600, 16))).astype(np.float32)
        for chosen in rng.integers(0, 600, (8, 4)):
            distances, slots = jitted(15, search)(keys, np.int32(600), keys[chosen])
            assert (np.asarray(distances)[:, 0] == 0).all()
            assert (np.asarray(slots)[:, 0] == chosen).all()


def test_runs_of_different_size_are_searched_together_as_alone(search):
    rng = np.random.default_rng(4)
    keys = rng.normal(size=(4, 2048, 2)).astype(np.float32)
    queries = rng.normal(size=(4, 2, 2)).astype(np.float32)
    sizes = np.array([0, 2, 130, 2048], np.int32)
    distances, slots = jax.jit(jax.vmap(partial(search, k=3)))(keys, sizes, queries)
    for run, size in enumerate(sizes):
        assert_nearest(keys[run], size, queries[run], 3, distances[run], slots[run])
        alone = jitted(3, search)(keys[run], size, queries[run])
        np.testing.assert_array_equal(alone[0], distances[run])
        finite = np.isfinite(alone[0])
        np.testing.assert_array_equal(np.asarray(alone[1])[finite], np.asarray(slots[run])[finite])


def test_a_nan_query_has_no_neighbours_and_does_not_affect_others(search):
    shape = 600, 16, 4, 15
    keys, queries = random_keys("normal", shape, np.random.default_rng(6))
    with_nan = queries.copy()
    with_nan[1:3] = np.nan
    distances, slots = map(np.asarray, jitted(15, search)(keys, np.int32(500), with_nan))
    assert np.isposinf(distances[1:3]).all()
    assert (slots[1:3] == 0).all()
    assert_nearest(keys, 500, queries[[0, 3]], 15, distances[[0, 3]], slots[[0, 3]])


def test_runs_may_share_keys():
    rng = np.random.default_rng(5)
    keys = rng.normal(size=(40, 2)).astype(np.float32)
    queries = rng.normal(size=(3, 5, 2)).astype(np.float32)
    search = jax.vmap(lambda queries: nearest_neighbours(keys, jnp.int32(30), queries, 3))
    distances, slots = search(queries)
    for run in range(3):
        assert_nearest(keys, 30, queries[run], 3, distances[run], slots[run])


def test_no_gradient_flows_through_the_search_but_through_the_slots():
    keys, queries = jnp.arange(40.0).reshape(20, 2), jnp.ones((3, 2))

    def total_distance(keys, queries):
        return jnp.sum(nearest_neighbours(keys, jnp.int32(20), queries, 2)[0])

    for gradient in jax.jit(jax.grad(total_distance, argnums=(0, 1)))(keys, queries):
        assert (np.asarray(gradient) == 0).all()

    def total_of_nearest(keys):
        _, slots = nearest_neighbours(keys, jnp.int32(20), queries, 1)
        return jnp.sum(keys[slots[:, 0]])

    # All three queries are nearest to the first key.
    assert jax.grad(total_of_nearest)(keys)[0].tolist() == [3.0, 3.0]


# The kernels for few neighbours


def assert_nearest_in_order(keys, size, queries, k, squared, slots):
    """Ties are in the order of slots; squared distances must be exact in float32."""
    with np.errstate(all="ignore"):
        difference = queries[:, None] - keys[None, :size]
        exact = np.sum(difference**2, axis=-1, dtype=np.float32)
    exact = np.where(np.isnan(exact), np.inf, exact)
    order = np.argsort(exact, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(exact, order, axis=1)
    count = expected.shape[1]
    np.testing.assert_array_equal(squared[:, :count], expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.asarray(slots)[:, :count][finite], order[finite])
    assert np.isposinf(squared[:, count:]).all()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(0, 3000),
    exponent=st.sampled_from([-60, 0, 50]),
    offset=st.sampled_from([0, 512]),
    k=st.sampled_from([7, 15]),
)
@example(seed=0, size=3000, exponent=50, offset=512, k=7)
@example(seed=1, size=0, exponent=0, offset=0, k=15)
def test_ties_are_broken_by_the_lower_slot(seed, size, exponent, offset, k):
    rng = np.random.default_rng(seed)

    def integers(count):
        numbers = rng.integers(-2, 3, (count, 3)) + offset * rng.choice([-1, 1], (count, 1))
        return 2.0**exponent * numbers.astype(np.float32)

    keys, queries = integers(3000), integers(21)
    answer = jitted(k, FEW_NEAREST)(keys, np.int32(size), queries)
    assert_nearest_in_order(keys, size, queries, k, *answer)


def test_keys_too_large_to_be_squared_hide_no_neighbour():
    rng, search, size = np.random.default_rng(7), jitted(7, FEW_NEAREST), np.int32(3000)
    keys = rng.integers(-2, 3, (3000, 3)).astype(np.float32)
    keys[rng.integers(0, 3000, 900)] *= 2.0**62  # whose squares overflow in part
    keys[rng.integers(0, 3000, 300)] *= 2.0**64
    special = np.array([np.nan, np.inf, np.finfo(np.float32).max, -np.inf])
    keys[[5, 700, 1400, 2999]] = special[:, None]
    queries = np.concatenate([keys[:: 3000 // 20], np.full((1, 3), np.nan, np.float32)])
    for x in (queries, np.abs(queries), np.where(np.abs(queries) < 3, queries, 0)):
        assert_nearest_in_order(keys, 3000, x, 7, *search(keys, size, x))
    keys[:], queries[:] = 0, 0
    keys[:1024:128, 0] = 2.0**64 * 0.21875  # in the segments that are searched first
    keys[1024::128, 0] = 2.0**64 * 1.25  # nearer, and nearer than its norm
    queries[:, 0] = 2.0**64 * 0.75 * np.where(np.arange(len(queries)) % 2, 1, -1)
    assert_nearest_in_order(keys, 3000, queries, 7, *search(keys, size, queries))


@pytest.mark.parametrize("dim", [5, 16])
def test_the_largest_errors_of_tensor_cores_hide_no_neighbour(monkeypatch, dim):
    rng, slack, exact_product = np.random.default_rng(8), pallas._slack(dim), pallas._product

    def inexact_product(queries, keys):
        product = exact_product(queries, keys)
        query_norms, key_norms = (jnp.sqrt(jnp.sum(x**2, axis=1)) for x in (queries, keys))
        # More than the products' share of the slack, with one sign per segment.
        error = 0.7 * slack * query_norms[:, None] * key_norms
        return product + jnp.where(jnp.sin(1e4 * product[:, :1]) > 0, error, -error)

    def two_clusters(count):
        centre = 30 * rng.choice([-1, 1], (count, 1))
        return (centre + 0.5 * rng.normal(size=(count, dim))).astype(np.float32)

    keys, queries, size = two_clusters(3000), two_clusters(40), jnp.int32(3000)
    expected = np.sort(brute_force(keys, queries), axis=1)[:, :7]
    monkeypatch.setattr(pallas, "_product", inexact_product)
    answer = few_neighbours(keys, size, queries, 7, interpret=True)
    assert_nearest(keys, 3000, queries, 7, *answer)
    # Without slack the errors do hide neighbours of these keys.
    monkeypatch.setattr(pallas, "_slack", lambda _: 0.0)
    distances, _ = few_neighbours(keys, size, queries, 7, interpret=True)
    assert not np.allclose(distances, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"query_block": 16},
        pytest.param({"tiles": 2}, marks=pytest.mark.slow),
        pytest.param({"tiles": 4, "query_block": 128}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_shape_of_the_kernels_does_not_change_the_answer(options):
    keys, queries = random_keys("normal", (1000, 8, 70, 7), np.random.default_rng(9))
    search = jitted(7, partial(FEW_NEAREST, **options))
    for size in (130, 1000):
        squared, slots = search(keys, np.int32(size), queries)
        assert_nearest(keys, size, queries, 7, np.sqrt(squared), slots)


# The kernel in C++


def test_without_a_compiler_the_cpp_kernel_is_not_available(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(cpp, "_cache_dir", lambda: Path(tempfile.mkdtemp()))
    cpp.is_available.cache_clear()
    try:
        assert not cpp.is_available()
    finally:
        cpp.is_available.cache_clear()


def test_with_a_compiler_the_cpp_kernel_is_available():
    has_compiler = shutil.which("c++") is not None or shutil.which("g++") is not None
    assert cpp.is_available() == has_compiler
