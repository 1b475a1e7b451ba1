"""Golden runs: a change that means to keep all numbers keeps every bit of short trainings.

`python -m tests.golden --record` records them anew after a change that means to alter numbers.
"""

import pytest

from tests import golden

FAST = ("dqn jax", "mfec jax", "mbec++ gym")

pytestmark = pytest.mark.usefixtures("optimized")


@pytest.fixture(scope="module")
def recorded():
    record = golden.recorded()
    if record["machine"] != golden.machine():
        pytest.skip("the golden runs were recorded by a JAX or on a CPU that rounds otherwise")
    return record["runs"]


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in golden.RUNS],
)
def test_every_bit_of_a_golden_run_is_kept(name, recorded):
    assert golden.run(name) == recorded[name]
