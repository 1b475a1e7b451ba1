"""Layouts of mazes: the samples are the paper's, random ones are perfect, drawings come back."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.envs.maze import jax_env
from engram.envs.maze.config import MazeConfig
from engram.envs.maze.gym_env import make_config
from engram.envs.maze.layout import (
    MOVES,
    check_layout,
    distances,
    draw,
    make_layout,
    parse,
    random_layout,
    sample_layout,
)
from engram.errors import EngramError

NORTH, SOUTH, EAST, WEST = range(4)
SIZES = range(2, 9)


def error_of(function, *arguments):
    """The one sentence of an EngramError."""
    with pytest.raises(EngramError) as caught:
        function(*arguments)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def num_passages(layout):
    return int(layout[:, :, [SOUTH, EAST]].sum())


def reachable(layout, start=(0, 0)):
    """All cells that a walk can reach, by its own search."""
    found, front = {start}, [start]
    while front:
        x, y = front.pop()
        for action in np.flatnonzero(layout[x, y]):
            dx, dy = MOVES[action]
            cell = int(x + dx), int(y + dy)
            if cell not in found:
                found.add(cell)
                front.append(cell)
    return found


def assert_is_maze(layout):
    """Passages are mutual, borders closed, and all cells connected."""
    size = len(layout)
    assert layout.shape == (size, size, 4)
    assert layout.dtype == bool
    assert not layout[:, 0, NORTH].any()
    assert not layout[:, -1, SOUTH].any()
    assert not layout[-1, :, EAST].any()
    assert not layout[0, :, WEST].any()
    np.testing.assert_array_equal(layout[:, :-1, SOUTH], layout[:, 1:, NORTH])
    np.testing.assert_array_equal(layout[:-1, :, EAST], layout[1:, :, WEST])
    assert len(reachable(layout)) == size**2


# Samples

# Cells [x][y] of gym-maze, N = 1, E = 2, S = 4, W = 8; a passage is open if either cell says so.
SAMPLE_BITS = {
    3: [[2, 1, 1], [2, 2, 8], [4, 8, 8]],
    5: [[2, 4, 1, 2, 1], [4, 4, 8, 4, 2], [8, 1, 1, 1, 1], [2, 4, 4, 4, 8], [4, 8, 1, 1, 1]],
}


@pytest.mark.parametrize(("size", "shortest"), [(3, 4), (5, 14)])
def test_the_samples_are_gym_mazes_with_their_shortest_paths(size, shortest):
    layout, bits = sample_layout(size), np.array(SAMPLE_BITS[size])
    is_open = {"N": bits & 1, "E": bits & 2, "S": bits & 4, "W": bits & 8}
    for x in range(size):
        for y in range(size):
            to_east = x < size - 1 and (is_open["E"][x, y] or is_open["W"][x + 1, y])
            to_south = y < size - 1 and (is_open["S"][x, y] or is_open["N"][x, y + 1])
            assert (layout[x, y, EAST], layout[x, y, SOUTH]) == (bool(to_east), bool(to_south))
    assert_is_maze(layout)
    assert distances(layout)[0, 0] == shortest


def test_there_is_no_sample_of_another_size():
    assert "no sample maze of size 4: choose size 3 or 5" in error_of(sample_layout, 4)


def test_the_sample_of_size_3_looks_like_this():
    drawing = """
        +---+---+---+
        |           |
        +   +---+   +
        |   |       |
        +   +---+---+
        |         G |
        +---+---+---+"""
    assert "\n".join(line.strip() for line in drawing.split("\n")[1:]) == draw(sample_layout(3))


# Random mazes


@pytest.mark.parametrize("size", SIZES)
def test_random_mazes_have_one_path_between_any_two_cells(size):
    for seed in range(20):
        layout = make_layout(size, seed)
        assert_is_maze(layout)
        assert num_passages(layout) == size**2 - 1  # connected, with so few: a tree


def test_the_largest_maze_is_perfect_too():
    layout = make_layout(100, 1)
    assert_is_maze(layout)
    assert num_passages(layout) == 100**2 - 1


def test_the_same_seed_makes_the_same_maze_and_another_seed_another():
    layouts = [make_layout(5, seed) for seed in range(50)]
    for seed, layout in enumerate(layouts):
        np.testing.assert_array_equal(layout, make_layout(5, seed))
    assert len({layout.tobytes() for layout in layouts}) > 45


def test_both_mazes_of_size_2_that_a_walk_can_make_are_drawn():
    layouts = [make_layout(2, seed).tobytes() for seed in range(200)]
    counts = [layouts.count(layout) for layout in set(layouts)]
    # The walk goes around the four cells, first to the east or to the south.
    assert len(counts) == 2
    assert min(counts) > 70


def test_loops_open_walls_at_their_rate_and_rate_1_all_inner_walls():
    size = 20
    num_walls = 2 * size * (size - 1) - (size**2 - 1)  # inner walls of a perfect maze
    perfect = make_layout(size, 3)
    for rate in (0.1, 0.5):
        layout = make_layout(size, 3, rate)
        assert_is_maze(layout)
        assert np.all(layout >= perfect)
        share = (num_passages(layout) - num_passages(perfect)) / num_walls
        assert share == pytest.approx(rate, abs=4 * (rate * (1 - rate) / num_walls) ** 0.5)
    for size in SIZES:
        layout = make_layout(size, 3, 1.0)
        assert_is_maze(layout)
        assert num_passages(layout) == 2 * size * (size - 1)
        assert distances(layout)[0, 0] == 2 * (size - 1)


@pytest.mark.parametrize("loop_rate", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_jax_and_numpy_make_the_same_maze_of_the_same_numbers(size, loop_rate):
    rng = np.random.default_rng(size)
    uniforms = rng.random((30, 2 * size**2, 4), np.float32)
    loops = rng.random((30, size, size, 4), np.float32)
    make = jax.jit(jax.vmap(lambda a, b: jax_env.random_layout(a, b, loop_rate)))
    layouts = np.asarray(make(uniforms, loops))
    expected = [random_layout(a, b, loop_rate) for a, b in zip(uniforms, loops, strict=True)]
    np.testing.assert_array_equal(layouts, expected)
    assert len({layout.tobytes() for layout in layouts}) > (loop_rate < 1)


# Distances


def test_distances_are_lengths_of_shortest_paths():
    np.testing.assert_array_equal(distances(sample_layout(3)), [[4, 3, 2], [5, 8, 1], [6, 7, 0]])


def test_cells_that_cannot_reach_the_goal_have_distance_minus_1():
    layout = np.zeros((2, 2, 4), bool)
    layout[0, 1, EAST] = layout[1, 1, WEST] = True
    np.testing.assert_array_equal(distances(layout), [[-1, 1], [-1, 0]])


# Drawings


@st.composite
def layouts(draw_value):
    size = draw_value(st.integers(2, 7))
    seed = draw_value(st.integers(0, 2**32 - 1))
    return make_layout(size, seed, draw_value(st.sampled_from([0.0, 0.3, 1.0])))


@settings(max_examples=50)
@given(layouts(), st.booleans(), st.data())
def test_a_drawing_comes_back_with_whatever_marks_and_indent(layout, has_marks, data):
    cells = st.tuples(*[st.integers(0, len(layout) - 1)] * 2)
    marks = (data.draw(cells), data.draw(cells)) if has_marks else ()
    drawing = draw(layout, *marks)
    np.testing.assert_array_equal(parse(drawing), layout)
    indented = "\n" + "".join(f"    {line}  \n" for line in drawing.split("\n")) + "    "
    np.testing.assert_array_equal(parse(indented), layout)


def test_agent_trap_and_goal_are_drawn_in_their_cells():
    lines = draw(sample_layout(3), agent=(2, 0), trap=(1, 2)).split("\n")
    assert [line[2::4] for line in lines[1::2]] == ["  A", "   ", " TG"]


OPEN = """
+---+---+
| A     |
+   +   +
|     G |
+---+---+
"""


def changed(line, text):
    """The drawing of four open cells with another line, counted from 1."""
    lines = OPEN.strip().split("\n")
    return "\n".join([*lines[: line - 1], text, *lines[line:]])


@pytest.mark.parametrize(
    ("drawing", "cause"),
    [
        (changed(2, "| A   "), "lines of 4 n + 1 characters"),
        (changed(2, "| A       |"), "lines of 4 n + 1 characters"),
        (changed(1, ""), "must have 2 n + 1 lines"),
        (OPEN + "+---+---+", "must have 2 n + 1 lines"),
        ("+---+\n| G |\n+---+", "with n from 2 to 100"),
        ("+", "with n from 2 to 100"),
        ("", "with n from 2 to 100"),
        (
            changed(3, "+   #   +"),
            "Line 3 of the drawing of a maze is '+   #   +', but must be like",
        ),
        (changed(3, "+  -+   +"), "Line 3 "),
        (changed(3, "+-- +   +"), "Line 3 "),
        (changed(2, "| A x   |"), "Line 2 "),
        (changed(1, "+   +---+"), "must be like '+---+---+': draw it as `env.render()`"),
        (changed(4, "|     G :"), "Line 4 "),
        (changed(3, "+---+---+"), "goal of this maze cannot be reached"),
    ],
)
def test_a_drawing_that_is_no_maze_is_refused_in_one_sentence(drawing, cause):
    np.testing.assert_array_equal(parse(OPEN), make_layout(2, 0, loop_rate=1.0))
    assert cause in error_of(parse, drawing)


# Layouts that are given


def test_a_layout_that_is_given_is_copied():
    layout = sample_layout(5)
    checked = check_layout(layout, 5)
    np.testing.assert_array_equal(checked, layout)
    layout[:] = False
    assert checked.any()
    np.testing.assert_array_equal(check_layout(checked.tolist(), 5), checked)


def one_way():
    layout = make_layout(3, 0, loop_rate=1.0)
    layout[1, 1, NORTH] = False
    return layout


def outwards():
    layout = sample_layout(3)
    layout[2, 2, EAST] = True
    return layout


def unreachable():
    layout = make_layout(3, 0, loop_rate=1.0)
    layout[2, 2] = layout[2, 1, SOUTH] = layout[1, 2, EAST] = False
    return layout


@pytest.mark.parametrize(
    ("layout", "cause"),
    [
        (sample_layout(5), "of size 3 must be an array of bool of shape (3, 3, 4), not of bool of"),
        (sample_layout(3)[0], "not of bool of shape (3, 4)"),
        (sample_layout(3).astype(int), "not of int64 of shape (3, 3, 4)"),
        ([[1, 2], [3]], "of shape (3, 3, 4), not of object of shape ()"),
        (draw(sample_layout(3)), "of shape (3, 3, 4), not of <U"),
        (one_way(), "open each passage from both of its sides"),
        (outwards(), "and none to the outside"),
        (unreachable(), "goal of this maze cannot be reached"),
    ],
)
def test_a_layout_that_is_no_maze_of_the_size_is_refused_in_one_sentence(layout, cause):
    assert cause in error_of(check_layout, layout, 3)


# Configurations


def test_without_a_name_the_maze_is_the_sample_where_there_is_one():
    for size in SIZES:
        layout = MazeConfig(size, maze_seed=7).layout
        expected = sample_layout(size) if size in (3, 5) else make_layout(size, 7)
        np.testing.assert_array_equal(layout, expected)
        random = MazeConfig(size, maze="random", maze_seed=7, loop_rate=0.5).layout
        np.testing.assert_array_equal(random, make_layout(size, 7, 0.5))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 0), "A maze cannot have size 1"),
        ((3, -1), "seed must be at least 0"),
        ((3, 0, 7), "loop_rate must be between 0 and 1"),
    ],
)
def test_a_random_maze_has_a_size_a_seed_and_a_rate(arguments, words):
    assert words in error_of(lambda: make_layout(*arguments))


def test_a_drawing_is_a_text():
    assert "A drawing of a maze must be a text, not 3" in error_of(lambda: parse(3))


def test_a_drawn_maze_has_the_size_of_the_drawing():
    for options in ({}, {"size": 2}):
        config = MazeConfig(maze=OPEN, **options)
        assert (config.size, config.goal, config.step_reward) == (2, (1, 1), -0.025)
        assert config.image_shape == (22, 22, 3)
    for size in (3, 4):
        sentence = error_of(lambda size=size: make_config({"size": size, "maze": OPEN}))
        assert sentence.startswith(
            f"The drawn maze has 2 rows but size is {size}: set size to 2 or"
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": "7"}, "A maze cannot have size '7': give a whole number from 2 to 100."),
        ({"size": 1}, "A maze cannot have size 1: give a whole number from 2 to 100."),
        ({"size": 101}, "A maze cannot have size 101: give a whole number from 2 to 100."),
        ({"size": 3.0}, "A maze cannot have size 3.0: give a whole number from 2 to 100."),
        ({"size": True}, "A maze cannot have size True: give a whole number from 2 to 100."),
        ({"size": None}, "A maze cannot have size None: give a whole number from 2 to 100."),
        ({"maze": 3}, "maze must be sample, random, dynamic, a drawing or None, not 3."),
        ({"maze": "maze"}, "There is no maze 'maze': choose sample, random or dynamic, or"),
        ({"maze": ""}, "There is no maze ''"),
        ({"maze": "sample", "size": 4}, "There is no sample maze of size 4"),
        ({"maze": OPEN, "size": 5}, "The drawn maze has 2 rows but size is 5"),
        ({"maze": "+--+"}, "A drawing of a maze with n rows must have"),
        ({"maze_seed": -1}, "maze_seed must be at least 0, but is -1."),
        ({"maze_seed": 1.5}, "maze_seed must be a whole number, not 1.5."),
        ({"maze_seed": "a"}, "maze_seed must be a whole number, not 'a'."),
        ({"loop_rate": 1.1}, "loop_rate must be between 0 and 1, but is 1.1."),
        ({"loop_rate": float("nan")}, "loop_rate must be between 0 and 1, but is nan."),
        ({"observation": "pixels"}, "one of position, image, features, not 'pixels'."),
        ({"trap": "yes"}, "trap must be True or False, not 'yes'."),
        ({"trap": 1}, "trap must be True or False, not 1."),
        ({"dropout_rate": "x"}, "dropout_rate must be a number, not 'x'."),
        ({"dropout_rate": -0.1}, "dropout_rate must be between 0 and 1, but is -0.1."),
        ({"dropout_rate": 1.0, "observation": "features"}, "dropout_rate must be below 1"),
        ({"dropout_rate": 0.5}, "dropout_rate is for image features: set observation to"),
        ({"features": "squeezenet"}, "features is for image features: set observation to"),
        ({"features": None}, "features must be a string, random, squeezenet or the path"),
        ({"observation": "features", "trap": True}, "Image features need one maze without a"),
        ({"observation": "features", "maze": "dynamic"}, "Image features need one maze"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(arguments, sentence):
    assert sentence in error_of(lambda: MazeConfig(**arguments))


def test_numbers_of_numpy_become_those_of_python():
    config = MazeConfig(np.int64(4), loop_rate=np.float32(0.5), maze_seed=np.uint8(3))
    assert [type(x) for x in (config.size, config.loop_rate, config.maze_seed)] == [int, float, int]
    assert hash(config) == hash(MazeConfig(4, loop_rate=0.5, maze_seed=3))
