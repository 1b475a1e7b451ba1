"""The maze: rewards by hand, and the one in JAX equals Gymnasium's step by step."""

import subprocess
import sys
import warnings

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from engram.envs import get_task
from engram.envs.maze.config import AGENT, GOAL, PALETTE, TRAP, WALL, MazeConfig, draw_image
from engram.envs.maze.image_features import maze_features
from engram.envs.maze.jax_env import JaxMaze, MazeParams
from engram.envs.maze.layout import draw, make_layout, parse, sample_layout
from engram.errors import EngramError

ID = "engram/Maze-v0"
KEY = jax.random.key(0)
NORTH, SOUTH, EAST, WEST = range(4)
CHI_SQUARED_6 = 22.5
"""which a chi-squared number of 6 degrees of freedom exceeds with probability 0.001"""


def make_env(**arguments):
    """As users do, but Gymnasium warns that the features have no upper bound."""
    return gym.make(ID, disable_env_checker=True, **arguments)


def make_jax_env(**arguments):
    return JaxMaze(MazeConfig(**arguments))


def walk(env, actions):
    """Rewards, terminated and truncated of some steps."""
    return [env.step(action)[1:4] for action in actions]


def error_of(function, *arguments, **options):
    """The one sentence of an EngramError."""
    with pytest.raises(EngramError) as caught:
        function(*arguments, **options)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence


# Rewards by hand

STEP = -0.1 / 9


def test_a_step_costs_0_1_by_the_number_of_cells_and_the_goal_gives_1():
    env = make_env()
    env.reset()
    steps = [(SOUTH, STEP, False), (SOUTH, STEP, False), (EAST, STEP, False), (EAST, 1.0, True)]
    for action, reward, terminated in steps:
        assert walk(env, [action]) == [(reward, terminated, False)]
    assert env.unwrapped.path == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    env = make_env(size=8)
    env.reset()
    open_actions = np.flatnonzero(env.unwrapped.layout[0, 0])
    assert walk(env, open_actions[:1]) == [(-0.1 / 64, False, False)]


def test_a_wall_costs_1_and_the_agent_stays():
    env = make_env()
    env.reset()
    env.step(SOUTH)
    for action in (EAST, WEST):  # a wall inside, and the border
        observation, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_array_equal(observation, [0, 1])
        assert (reward, terminated, truncated, info) == (-1.0, False, False, {})
    assert env.unwrapped.path == [(0, 0), (0, 1)]


def test_the_trap_costs_2_on_entering_but_not_on_bumping_into_a_wall_inside_it():
    env = make_env(trap=True)
    env.reset(options={"trap": (0, 1)})
    actions = [SOUTH, EAST, WEST, NORTH, SOUTH, SOUTH, EAST, EAST]
    rewards = [-2.0, -1.0, -1.0, STEP, -2.0, STEP, STEP, 1.0]
    steps = walk(env, actions)
    assert [reward for reward, *_ in steps] == rewards
    assert [terminated for _, terminated, _ in steps] == [False] * 7 + [True]


def test_the_position_comes_before_that_of_the_trap():
    env = make_env(size=4, trap=True, maze="random", loop_rate=1.0)
    observation, info = env.reset(options={"trap": (3, 1)})
    np.testing.assert_array_equal(observation, [0, 0, 3, 1])
    assert info == {}
    env.step(EAST)
    np.testing.assert_array_equal(env.step(SOUTH)[0], [1, 1, 3, 1])
    np.testing.assert_array_equal(env.step(EAST)[0], [2, 1, 3, 1])


def test_the_image_has_agent_goal_trap_and_walls_in_their_places():
    env = make_env(observation="image", trap=True)
    env.reset(options={"trap": (1, 2)})
    image = env.step(SOUTH)[0]
    assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
    middle = {(x, y): image[10 * y + 6, 10 * x + 6] for x in range(3) for y in range(3)}
    colours = {(0, 1): AGENT, (2, 2): GOAL, (1, 2): TRAP}
    for cell, colour in middle.items():
        np.testing.assert_array_equal(colour, PALETTE[colours.get(cell, 0)])
    np.testing.assert_array_equal(image[16, 10], PALETTE[WALL])  # east of (0, 1)
    np.testing.assert_array_equal(image[26, 10], PALETTE[0])  # east of (0, 2)
    np.testing.assert_array_equal(image[10, 6], PALETTE[0])  # north of (0, 1)
    np.testing.assert_array_equal(image[10, 16], PALETTE[WALL])  # north of (1, 1)
    border = np.concatenate([image[:2].reshape(-1, 3), image[:, -2:].reshape(-1, 3)])
    assert np.all(border == PALETTE[WALL])


# JAX and Gymnasium

KINDS = {
    "position": {},
    "trap": {"trap": True},
    "image": {"observation": "image"},
    "dynamic image with trap": {"observation": "image", "maze": "dynamic", "trap": True},
    "features": {"observation": "features"},
}


def rollout(jax_env, actions):
    """All steps in JAX with a reset after each episode, and what each reset would give."""

    def step(state, inputs):
        action, key = inputs
        step_key, reset_key = jax.random.split(key)
        state, env_step = jax_env.step(MazeParams(), state, action, step_key)
        first = jax_env.reset(MazeParams(), reset_key)
        done = env_step.terminated | env_step.truncated
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), first[0], state)
        return state, (env_step, first)

    first = jax_env.reset(MazeParams(), KEY)
    keys = jax.random.split(KEY, len(actions))
    steps = jax.lax.scan(step, first[0], (actions, keys))[1]
    return first, steps


def options_of(state):
    """Layout and trap of a state in JAX, for `reset` of Gymnasium's maze."""
    options = {"layout": state.layout, "trap": state.trap}
    return {name: np.asarray(value) for name, value in options.items() if value is not None}


KINDS_AND_SIZES = [
    (kind, size) for kind in KINDS for size in ((2, 5) if "dynamic" in kind else (2, 3, 5, 8))
]


@pytest.mark.parametrize(("kind", "size"), KINDS_AND_SIZES)
def test_every_step_and_reset_in_jax_equals_gymnasiums(kind, size):
    arguments = {"size": size, "maze": "random", "maze_seed": size, "loop_rate": 0.6} | KINDS[kind]
    if size in (3, 5) and "image" not in kind:
        arguments |= {"maze": "sample", "loop_rate": 0.0}
    num_steps = 300 if "image" in kind else 1_500
    actions = np.random.default_rng(size).choice(4, num_steps, p=[0.15, 0.35, 0.35, 0.15])
    jax_env, env = make_jax_env(**arguments), make_env(**arguments)
    run = jax.jit(lambda actions: rollout(jax_env, actions))
    (first, first_obs), (steps, (states, reset_obs)) = jax.device_get(run(actions))
    np.testing.assert_array_equal(env.reset(options=options_of(first))[0], first_obs)
    results = []
    for t, action in enumerate(actions):
        results.append(env.step(action)[:4])
        if any(results[-1][2:]):
            state = jax.tree.map(lambda x, t=t: x[t], states)
            np.testing.assert_array_equal(env.reset(options=options_of(state))[0], reset_obs[t])
    observations, rewards, terminated, truncated = zip(*results, strict=True)
    np.testing.assert_array_equal(steps.terminated, terminated)
    np.testing.assert_array_equal(steps.truncated, truncated)
    np.testing.assert_allclose(steps.reward, rewards, rtol=1e-6)
    np.testing.assert_array_equal(steps.true_reward, steps.reward)
    np.testing.assert_array_equal(steps.observation, observations)
    assert steps.observation.dtype == observations[0].dtype
    assert any(terminated)
    assert {-1.0, 1.0} <= set(rewards)
    assert (-2.0 in rewards) == ("trap" in arguments)


@pytest.mark.parametrize("arguments", [{}, {"size": 4, "trap": True}])
def test_an_episode_is_truncated_after_exactly_1000_steps_in_both(arguments):
    _, (steps, _) = jax.jit(lambda a: rollout(make_jax_env(**arguments), a))(np.zeros(2_500, int))
    env = make_env(**arguments)
    env.reset()
    truncated = []
    for _ in range(2_500):
        truncated.append(env.step(NORTH)[3])
        if truncated[-1]:
            env.reset()
    assert list(np.flatnonzero(truncated)) == [999, 1_999]
    np.testing.assert_array_equal(steps.truncated, truncated)
    assert not steps.terminated.any()


def test_the_goal_at_the_last_step_is_terminated_and_truncated_in_both():
    jax_env, env = make_jax_env(), make_env()
    actions = [NORTH] * 996 + [SOUTH, SOUTH, EAST, EAST]
    _, (steps, _) = jax.jit(lambda a: rollout(jax_env, a))(np.array(actions))
    env.reset()
    last = walk(env, actions)[-1]
    assert last == (1.0, True, True)
    assert (steps.reward[-1], steps.terminated[-1], steps.truncated[-1]) == last


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_hold_under_strict_promotion(kind):
    jax_env = make_jax_env(**{"maze": "random"} | KINDS[kind], loop_rate=0.5)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        params = MazeParams(jnp.float32(0.0))
        start, observation = jax_env.reset(params, KEY)
        state, env_step = jax_env.step(params, start, jnp.int32(1), KEY)
    kinds = jax.tree.map(lambda array: (array.dtype, array.shape), (start, state))
    assert kinds[0] == kinds[1]  # or `scan` would refuse to carry it
    dtype = jnp.uint8 if "image" in kind else jnp.float32
    expected = [dtype, jnp.float32, jnp.float32, jnp.bool_, jnp.bool_]
    assert [array.dtype for array in env_step] == expected
    assert observation.dtype == dtype


# Dropout


def features_in_gymnasium(rate, num_steps):
    env = make_env(observation="features", dropout_rate=rate)
    observations = [env.reset(seed=0)[0]]
    observations += [env.step(NORTH)[0] for _ in range(num_steps - 1)]
    return np.array(observations)[:, 2:]


def features_in_jax(rate, num_steps):
    jax_env, params = make_jax_env(observation="features"), MazeParams(rate)
    keys = jax.random.split(KEY, num_steps)
    state, _ = jax_env.reset(params, KEY)
    step = jax.vmap(lambda key: jax_env.step(params, state, jnp.int32(NORTH), key)[1].observation)
    first = jax.vmap(lambda key: jax_env.reset(params, key)[1])(keys[:1])
    return np.concatenate([first, jax.jit(step)(keys[1:])])[:, 2:]


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("observe", [features_in_gymnasium, features_in_jax])
def test_dropout_sets_its_share_of_features_to_0_and_scales_the_others(observe, rate):
    full = maze_features(MazeConfig())[0, 0]
    is_active = full > 0
    observed = observe(rate, 400)[:, is_active]
    is_zero = observed == 0
    assert is_active.sum() > 100
    assert is_zero.mean() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / is_zero.size) ** 0.5)
    scaled = np.broadcast_to(full[is_active] / (1 - rate), observed.shape)
    np.testing.assert_allclose(observed[~is_zero], scaled[~is_zero], rtol=1e-5)
    # Each feature and each step draws for itself.
    for axis in (0, 1):
        deviation = (rate * (1 - rate) / is_zero.shape[axis]) ** 0.5
        assert is_zero.mean(axis).std() == pytest.approx(deviation, rel=0.35)


def test_positions_are_not_dropped_out():
    env = make_env(observation="features", dropout_rate=0.99)
    env.reset(seed=0)
    assert [tuple(env.step(a)[0][:2]) for a in (SOUTH, SOUTH, EAST)] == [(0, 1), (0, 2), (1, 2)]


def test_the_seed_of_reset_seeds_dropout_traps_and_mazes():
    for arguments in (
        {"observation": "features", "dropout_rate": 0.5},
        {"size": 8, "trap": True},
        {"size": 6, "maze": "dynamic", "observation": "image"},
    ):
        env = make_env(**arguments)

        def observations(seed, env=env):
            first = [env.reset(seed=seed)[0], *(env.step(a)[0] for a in (0, 1, 2))]
            return np.array([*first, env.reset()[0]])  # without a seed it goes on

        first, again, other = observations(5), observations(5), observations(6)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first[0], other[0])
        assert not np.array_equal(first[0], first[-1])


def test_runs_with_different_dropout_rates_share_one_program():
    tasks = [get_task("maze3-noisy", env_kwargs={"dropout_rate": rate}) for rate in (0.1, 0.8)]
    assert tasks[0].jax_env == tasks[1].jax_env == get_task("maze3-noisy").jax_env
    assert hash(tasks[0].jax_env) == hash(tasks[1].jax_env)
    assert [task.env_params for task in tasks] == [MazeParams(0.1), MazeParams(0.8)]
    assert [task.make().unwrapped.config.dropout_rate for task in tasks] == [0.1, 0.8]
    observe = jax.vmap(lambda rate: tasks[0].jax_env.reset(MazeParams(rate), KEY)[1])
    features = np.asarray(observe(jnp.array([0.0, 0.1, 0.8])))[:, 2:]
    shares = (features == 0)[:, features[0] > 0].mean(axis=1)
    assert shares == pytest.approx([0.0, 0.1, 0.8], abs=0.08)
    others = [{"size": 4}, {"maze": "random"}, {"trap": True, "observation": "position"}]
    for env_kwargs in others:
        other = get_task("maze3-noisy", env_kwargs={"dropout_rate": 0.0} | env_kwargs)
        assert other.jax_env != tasks[0].jax_env


# Traps and dynamic mazes


def assert_uniform_without_start_and_goal(traps, size, chi_squared):
    cells = traps[:, 0] * size + traps[:, 1]
    counts = np.bincount(cells, minlength=size**2)
    assert counts[0] == counts[-1] == 0
    counts, expected = counts[1:-1], len(traps) / (size**2 - 2)
    assert np.sum((counts - expected) ** 2 / expected) < chi_squared


def test_traps_are_uniform_over_all_cells_but_start_and_goal():
    for size, chi_squared in ((3, CHI_SQUARED_6), (2, 10.8)):
        env = make_env(size=size, trap=True)
        env.reset(seed=1)
        traps = np.array([env.reset()[0][2:] for _ in range(2_100)], int)
        assert_uniform_without_start_and_goal(traps, size, chi_squared)
        keys = jax.random.split(KEY, 7_000)
        jax_env = make_jax_env(size=size, trap=True)
        _, observed = jax.vmap(lambda key, env=jax_env: env.reset(MazeParams(), key))(keys)
        observed_traps = np.asarray(observed, int)[:, 2:]
        assert_uniform_without_start_and_goal(observed_traps, size, chi_squared)


def test_the_trap_stays_within_an_episode():
    env = make_env(trap=True)
    trap = tuple(env.reset(seed=3)[0][2:])
    assert {tuple(env.step(a)[0][2:]) for a in (SOUTH, NORTH, EAST, EAST)} == {trap}


def test_a_dynamic_maze_is_new_in_every_episode_and_the_same_for_the_same_seed():
    env = make_env(size=6, maze="dynamic")

    def mazes(seed):
        env.reset(seed=seed)
        first = [env.unwrapped.layout.tobytes()]
        for _ in range(20):
            env.step(SOUTH)
            assert env.unwrapped.layout.tobytes() == first[-1]
            env.reset()
            first.append(env.unwrapped.layout.tobytes())
        return first

    assert len(set(mazes(1))) == 21
    assert mazes(1) == mazes(1)
    assert not set(mazes(1)) & set(mazes(2))


def test_a_dynamic_maze_in_jax_is_new_in_every_episode_and_perfect():
    jax_env = make_jax_env(size=6, maze="dynamic")
    keys = jax.random.split(KEY, 30)
    state, _ = jax.vmap(lambda key: jax_env.reset(MazeParams(), key))(keys)
    layouts = np.asarray(state.layout)
    assert len({layout.tobytes() for layout in layouts}) == 30
    for layout in layouts:
        np.testing.assert_array_equal(parse(draw(layout)), layout)
        assert layout.sum() == 2 * (6**2 - 1)


def test_one_random_maze_is_the_same_in_all_episodes_whatever_the_seed_of_reset():
    env = make_env(size=6, maze="random", maze_seed=4)
    for seed in (None, 1, 2):
        env.reset(seed=seed)
        np.testing.assert_array_equal(env.unwrapped.layout, make_layout(6, 4))


# Options of reset


def test_a_layout_is_for_one_episode():
    env, other = make_env(), make_layout(3, 8)
    env.reset(options={"layout": other})
    np.testing.assert_array_equal(env.unwrapped.layout, other)
    env.reset()
    np.testing.assert_array_equal(env.unwrapped.layout, sample_layout(3))
    env = make_env(maze="dynamic", size=5)
    env.reset(seed=0, options={"layout": sample_layout(5)})
    np.testing.assert_array_equal(env.unwrapped.layout, sample_layout(5))
    env.reset()
    assert not np.array_equal(env.unwrapped.layout, sample_layout(5))


def test_a_layout_is_walked_and_seen():
    layout = parse("+---+---+\n|       |\n+---+   +\n|     G |\n+---+---+")
    env = make_env(size=2, observation="image", maze_seed=3)
    observation, _ = env.reset(options={"layout": layout})
    np.testing.assert_array_equal(observation, draw_image(MazeConfig(2), layout, (0, 0)))
    assert [reward for reward, *_ in walk(env, [SOUTH, EAST, SOUTH])] == [-1.0, -0.025, 1.0]


def test_a_trap_is_for_one_episode():
    env = make_env(size=20, trap=True)
    first, _ = env.reset(seed=0, options={"trap": np.array([7, 9])})
    np.testing.assert_array_equal(first, [0, 0, 7, 9])
    second, _ = env.reset()
    assert tuple(second[2:]) != (7, 9)
    np.testing.assert_array_equal(
        env.reset(seed=0, options={"trap": None})[0], env.reset(seed=0)[0]
    )


@pytest.mark.parametrize(
    "trap", [(0, 0), (2, 2), (3, 0), (0, -1), (1,), (1, 1, 1), 4, "ab", (1.5, 0), (None, 1)]
)
def test_a_trap_at_start_or_goal_or_no_cell_is_refused_in_one_sentence(trap):
    env = make_env(trap=True)
    sentence = error_of(env.reset, options={"trap": trap})
    expected = "give x and y from 0 to 2, of a cell other than start and goal."
    assert sentence == f"The trap cannot be at {trap!r}: {expected}"


def test_options_that_the_maze_cannot_follow_are_refused_in_one_sentence():
    env = make_env(observation="features")
    sentence = error_of(env.reset, options={"layout": make_layout(3, 8)})
    assert "Image features are those of one maze: give it as the argument maze" in sentence
    sentence = error_of(make_env().reset, options={"trap": (1, 1)})
    assert "This maze has no trap: make it with trap=True, or leave the option" in sentence
    sentence = error_of(make_env().reset, options={"layout": sample_layout(5)})
    assert "of size 3 must be an array of bool of shape (3, 3, 4)" in sentence


def test_refused_options_leave_the_episode_as_it_is():
    env = make_env(trap=True, size=4)
    env.reset(seed=1)
    env.step(SOUTH)
    before = env.unwrapped.position, env.unwrapped.trap, env.unwrapped.layout.tobytes()
    generator = env.unwrapped.np_random.bit_generator.state
    options = {"layout": make_layout(4, 8), "trap": (0, 0)}
    error_of(env.reset, seed=2, options=options)
    unwrapped = env.unwrapped
    assert before == (unwrapped.position, unwrapped.trap, unwrapped.layout.tobytes())
    assert generator == unwrapped.np_random.bit_generator.state


# Gymnasium


@pytest.mark.parametrize("arguments", [*KINDS.values(), {"maze": "dynamic", "size": 6}])
def test_gymnasiums_checker_finds_nothing_but_that_features_have_no_upper_bound(arguments):
    env = make_env(**arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
    messages = [str(warning.message) for warning in caught]
    if arguments.get("observation") == "features":
        assert len(messages) == 1
        assert "maximum value is infinity" in messages[0]
    else:
        assert not messages


@pytest.mark.parametrize(
    ("arguments", "shape", "high"),
    [
        ({"size": 4}, (2,), 3),
        ({"size": 4, "trap": True}, (4,), 3),
        ({"size": 4, "observation": "image"}, (42, 42, 3), 255),
        ({"observation": "features", "dropout_rate": 0.9}, (514,), np.inf),
    ],
)
def test_all_observations_are_in_the_observation_space(arguments, shape, high):
    env = make_env(**arguments)
    assert env.observation_space.shape == shape
    assert env.observation_space.high[-1].max() == high
    assert env.observation_space.low.max() == 0
    rng = np.random.default_rng(0)
    assert env.reset(seed=0)[0] in env.observation_space
    for action in rng.integers(4, size=200):
        observation, reward, terminated, _, _ = env.step(action)
        assert observation in env.observation_space
        assert type(reward) is float
        if terminated:
            env.reset()


@pytest.mark.parametrize("action", [1, np.int64(1), np.int32(1), np.array(1), np.uint8(1)])
def test_actions_may_be_any_whole_number_type(action):
    env = make_env()
    env.reset()
    assert env.step(action)[1] == STEP
    assert env.unwrapped.position == (0, 1)
    assert [type(number) for number in env.unwrapped.position] == [int, int]


@pytest.mark.parametrize("action", [-1, 4, 1.0, None, "south", np.array([1]), np.float32(1)])
def test_an_action_that_there_is_not_is_refused_in_one_sentence(action):
    env = make_env()
    env.reset()
    sentence = error_of(env.step, action)
    expected = "give 0, 1, 2 or 3 for north, south, east or west."
    assert sentence == f"A maze has no action {action!r}: {expected}"
    assert env.unwrapped.position == (0, 0)


def test_an_unknown_argument_or_render_mode_is_refused_in_one_sentence():
    sentence = error_of(make_env, sise=4)
    assert sentence == "A maze has no argument 'sise'. Did you mean size?"
    assert "Known are dropout_rate, features" in error_of(make_env, colour="red")
    with pytest.warns(UserWarning, match="render_mode='film'"):
        sentence = error_of(make_env, render_mode="film")
    assert "cannot be rendered as 'film': choose human, rgb_array, ansi." in sentence


def test_the_id_is_known_once_engram_envs_is_imported():
    program = (
        "import gymnasium as gym\n"
        f"assert '{ID}' not in gym.registry\n"
        f"first = gym.make('engram.envs:{ID}', size=4)\n"
        f"second = gym.make('{ID}', size=4)\n"
        "assert first.unwrapped.config.size == second.unwrapped.config.size == 4\n"
        "assert first.spec.max_episode_steps == second.spec.max_episode_steps == 1_000"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("id", [f"engram.envs:{ID}", ID])
def test_the_id_is_a_task_with_arguments(id):
    task = get_task(f"gym:{id}", env_kwargs={"size": 4, "trap": True})
    spec = task.inspect()
    assert (spec.shape, spec.num_actions, spec.max_episode_steps) == ((4,), 4, 1_000)
    assert spec.high == (3.0,) * 4
    assert task.jax_env is None
    task = get_task(f"gym:{id}", env_kwargs={"max_episode_steps": 7})
    assert task.spec().max_episode_steps == 7
    sentence = error_of(get_task(f"gym:{id}", env_kwargs={"size": 1}).inspect)
    assert "A maze cannot have size 1" in sentence


def test_options_of_reset_that_it_does_not_know_are_refused():
    env = gym.make(ID)
    assert "Did you mean layout?" in error_of(env.reset, options={"layuot": None})
    assert "must be a dictionary" in error_of(env.reset, options=[1])


def test_mazes_can_be_vectorized():
    envs = gym.make_vec(ID, num_envs=3, size=4, maze="random", loop_rate=1.0)
    observations, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(observations, np.zeros((3, 2)))
    observations, rewards, *_ = envs.step(np.array([SOUTH, EAST, WEST]))
    np.testing.assert_array_equal(observations, [[0, 1], [1, 0], [0, 0]])
    assert list(rewards) == pytest.approx([-0.1 / 16, -0.1 / 16, -1.0])
