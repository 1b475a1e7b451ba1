"""The room with objects to pick up: rules by hand, and the same as those of MiniWorld."""

import math
import sys
from dataclasses import replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from record_pickup import CONFIG, load
from scipy import stats

import engram
from engram.envs import get_task
from engram.envs.pickup import config as constants
from engram.envs.pickup import miniworld, ray_caster
from engram.envs.pickup.config import (
    BACK,
    BALL,
    BOX,
    FORWARD,
    KEY,
    PICKUP,
    TURN_LEFT,
    TURN_RIGHT,
    PickupConfig,
    max_objects,
)
from engram.envs.pickup.gym_env import PickupEnv
from engram.envs.pickup.jax_env import JaxPickup, PickupState
from engram.errors import EngramError
from engram.paper.miniworld import compare_frames, compare_transitions
from engram.runners.autoreset import FrameStackAutoreset

ID = "engram/Pickup-v0"
RED, YELLOW = 4, 5
ROOM = JaxPickup(PickupConfig(size=12, num_objs=1))
step = jax.jit(lambda state, action: ROOM.step((), state, action))
draw = jax.jit(lambda state: ROOM.draw((), state))


@pytest.fixture(scope="module")
def recorded():
    return load()


def make_state(position=(6.0, 6.0), heading=0.0, objects=((BALL, RED, (10.0, 10.0), 0.0),)):
    """A state with objects of a kind, color, place and direction."""
    kind, color, places, directions = zip(*objects, strict=True)
    count = len(kind)
    return PickupState(
        position=jnp.array(position),
        heading=jnp.float32(heading),
        kind=jnp.array(kind),
        color=jnp.array(color),
        places=jnp.array(places),
        directions=jnp.array(directions),
        present=jnp.ones(count, bool),
        in_hand=jnp.zeros(count, bool),
        episode_step=jnp.int32(0),
    )


def walk(state, actions):
    for action in actions:
        state, result = step(state, jnp.int32(action))
    return state, result


def error_of(function, *arguments, **options):
    """The one sentence of an EngramError."""
    with pytest.raises(EngramError) as caught:
        function(*arguments, **options)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence


# Rules by hand


@pytest.mark.parametrize(
    ("heading", "action", "change"),
    [
        (0.0, FORWARD, (0.15, 0.0)),
        (0.0, BACK, (-0.15, 0.0)),
        (math.pi / 2, FORWARD, (0.0, -0.15)),
        (math.pi, FORWARD, (-0.15, 0.0)),
        (0.0, TURN_LEFT, (0.0, 0.0)),
        (0.0, PICKUP, (0.0, 0.0)),
    ],
)
def test_a_step_is_15_centimeters_along_the_heading(heading, action, change):
    state, _ = walk(make_state(heading=heading), [action])
    np.testing.assert_allclose(state.position - 6.0, change, atol=1e-6)


def test_24_turns_are_a_circle_and_left_undoes_right():
    assert float(walk(make_state(), [TURN_LEFT])[0].heading) == pytest.approx(math.pi / 12)
    assert float(walk(make_state(), [TURN_LEFT] * 24)[0].heading) == pytest.approx(2 * math.pi)
    assert float(walk(make_state(), [TURN_LEFT, TURN_RIGHT])[0].heading) == pytest.approx(0)


@pytest.mark.parametrize("heading", [0, 1, 2, 3])
def test_walls_stop_the_agent_at_its_radius(heading):
    ahead = heading * math.pi / 2
    state, _ = walk(make_state(heading=ahead, objects=[(BALL, RED, (1, 1), 0)]), [FORWARD] * 60)
    from_wall = np.min([state.position, 12 - state.position])
    assert 0.4 <= from_wall < 0.4 + 0.15


@pytest.mark.parametrize(("kind", "radius"), [(BALL, 0.6376853), (BOX, 0.6363961), (KEY, 0.429069)])
def test_objects_stop_the_agent_where_the_circles_meet(kind, radius):
    for start, moves in ((0.4 + radius + 0.16, True), (0.4 + radius + 0.14, False)):
        state = make_state(position=(8 - start, 6.0), objects=[(kind, RED, (8.0, 6.0), 0.3)])
        after, _ = walk(state, [FORWARD])
        assert (float(after.position[0]) > float(state.position[0])) == moves


@pytest.mark.parametrize(("kind", "radius"), [(BALL, 0.6376853), (BOX, 0.6363961), (KEY, 0.429069)])
def test_an_object_is_picked_up_within_reach_before_the_agent_only(kind, radius):
    reach = 0.6 + 0.48 + radius
    for distance, heading, reward in (
        (reach - 0.01, 0.0, 1.0),
        (reach + 0.01, 0.0, 0.0),
        (reach - 0.01, math.pi, 0.0),
    ):
        objects = [(kind, RED, (6.0 + distance, 6.0), 0.0)]
        state, result = walk(make_state(heading=heading, objects=objects), [PICKUP])
        assert float(result.reward) == reward
        assert bool(result.terminated) == bool(reward)
        assert bool(state.present[0]) != bool(reward)


def test_of_two_objects_within_reach_the_first_is_picked_up():
    room = JaxPickup(PickupConfig(num_objs=2))
    objects = [(KEY, RED, (7.2, 6.3), 0.0), (KEY, YELLOW, (7.0, 6.0), 0.0)]
    state, result = room.step((), make_state(objects=objects), jnp.int32(PICKUP))
    assert state.present.tolist() == [False, True]
    assert (float(result.reward), bool(result.terminated)) == (1.0, False)
    state, result = room.step((), state, jnp.int32(PICKUP))
    assert (float(result.reward), bool(result.terminated)) == (1.0, True)


def test_nothing_is_picked_up_through_or_at_a_wall():
    objects = [(KEY, RED, (11.0, 7.0), 0.0)]
    state = make_state(position=(11.55, 6.1), heading=-math.pi / 2, objects=objects)
    assert float(walk(state, [PICKUP])[1].reward) == 0.0  # the hand's circle touches the wall
    state = state._replace(position=jnp.array([11.2, 6.1]))
    assert float(walk(state, [PICKUP])[1].reward) == 1.0


def test_an_episode_is_truncated_after_400_steps():
    state = make_state()._replace(episode_step=jnp.int32(398))
    assert [bool(walk(state, [PICKUP] * n)[1].truncated) for n in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("size", "num_objs"),
    [(5, max_objects(5)), (12, 5), pytest.param(20, 30, marks=pytest.mark.slow)],
)
def test_nothing_touches_at_the_start_of_an_episode(size, num_objs):
    room = JaxPickup(PickupConfig(size=size, num_objs=num_objs))
    state, _ = jax.vmap(room.reset, (None, 0))((), jax.random.split(jax.random.key(0), 300))
    radii = np.array(constants.RADII)[np.asarray(state.kind)]
    radii = np.append(radii, np.full((300, 1), 0.4), axis=1)
    places = np.append(state.places, state.position[:, None], axis=1)
    gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    gaps += 1e6 * np.eye(num_objs + 1) + 1e-5
    assert np.all(gaps >= radii[:, :, None] + radii[:, None])
    assert np.all((places >= radii[..., None] - 1e-5) & (places <= size - radii[..., None] + 1e-5))


# As MiniWorld


def test_transitions_are_those_of_miniworld(recorded):
    transitions, _, _ = recorded
    found = compare_transitions(CONFIG, transitions)
    assert found["differing"] == 0
    assert found["largest_gap_in_meters"] < 1e-5
    for event in ("objects_picked_up", "steps_into_walls_and_objects", "terminated", "truncated"):
        assert found[event] > 20


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated", "position", "present"])
def test_the_comparison_sees_a_transition_that_differs(recorded, name):
    transitions, _, _ = recorded
    other = np.array(getattr(transitions, name))
    other[7] = ~other[7] if other.dtype == bool else other[7] + 2e-4
    found = compare_transitions(CONFIG, transitions._replace(**{name: other}))
    assert found["differing"] == 1


def test_episodes_start_as_those_of_miniworld(recorded):
    theirs = recorded[2]
    keys = jax.random.split(jax.random.key(1), 2_000)
    ours, _ = jax.vmap(JaxPickup(CONFIG).reset, (None, 0))((), keys)
    for x, y in ((ours, theirs), (theirs, ours)):
        assert stats.chisquare(np.bincount(np.ravel(x.kind), minlength=3)).pvalue > 1e-3
        assert stats.chisquare(np.bincount(np.ravel(x.color), minlength=6)).pvalue > 1e-3
        assert np.max(np.abs(y.heading)) <= math.pi
    for measure in (
        lambda s: np.asarray(s.heading),
        lambda s: np.ravel(s.directions),
        lambda s: np.asarray(s.position)[:, 0],
        lambda s: np.asarray(s.places)[:, 0, 1],
        lambda s: np.asarray(s.places)[:, -1, 0],
        lambda s: np.min(np.linalg.norm(s.places - s.position[:, None], axis=-1), axis=1),
        lambda s: np.linalg.norm(s.places[:, 0] - s.places[:, 1], axis=-1),
    ):
        assert stats.ks_2samp(measure(ours), measure(theirs)).pvalue > 1e-3


def test_frames_resemble_those_of_miniworld(recorded):
    _, frames, _ = recorded
    found = compare_frames(CONFIG, frames)
    assert found["mean_difference"] < 4
    assert found["share_of_pixels_that_differ_by_48"] < 0.005
    assert found["correlation"] > 0.99
    assert found["overlap_of_objects"] > 0.95


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s._replace(heading=s.heading + math.radians(1.5)),
        lambda s: s._replace(position=s.position + 0.1),
        lambda s: s._replace(places=s.places + 0.05),
        lambda s: s._replace(kind=(s.kind + 1) % 3),
    ],
    ids=["turned by 1.5 degrees", "10 cm aside", "objects 5 cm aside", "other kinds"],
)
def test_frames_of_other_states_resemble_them_less(recorded, change):
    _, frames, _ = recorded
    assert (
        compare_frames(CONFIG, frames._replace(state=change(frames.state)))["overlap_of_objects"]
        < 0.95
    )


def test_frames_with_other_colors_resemble_them_less(recorded):
    _, frames, _ = recorded
    other = frames._replace(state=frames.state._replace(color=(frames.state.color + 1) % 6))
    few, many = (compare_frames(CONFIG, x) for x in (frames, other))
    name = "share_of_pixels_that_differ_by_48"
    assert many[name] > 5 * few[name]


def test_miniworld_itself_steps_where_it_can_draw():
    pytest.importorskip("pyglet")
    task = get_task("pickup3")
    try:
        spec = task.inspect()
    except EngramError as error:
        pytest.skip(str(error))
    assert spec == get_task("pickup3-jax").inspect()
    env = miniworld.make(replace(CONFIG, num_objs=3))
    frame, _ = env.reset(seed=3)
    assert (frame.shape, frame.dtype) == (constants.FRAME_SHAPE, np.uint8)
    assert frame.std() > 5
    assert env.step(FORWARD)[1:4] == (0, False, False)
    env.close()


@pytest.mark.parametrize("module", ["pyglet", "miniworld"])
def test_without_miniworld_the_remedy_is_named(monkeypatch, module):
    pytest.importorskip("pyglet")
    monkeypatch.setitem(sys.modules, module, None)
    sentence = error_of(get_task("pickup3").make)
    assert sentence.startswith("MiniWorld ")
    assert sentence.endswith("pip install miniworld==2.1.0 pyglet==1.5.31.")


def test_another_miniworld_is_refused(monkeypatch):
    pytest.importorskip("pyglet")
    monkeypatch.setattr(miniworld, "version", lambda name: "2.0.0")
    assert "MiniWorld must be 2.1.0, and not 2.0.0" in error_of(get_task("pickup3").make)


def test_another_pyglet_is_refused(monkeypatch):
    pyglet = pytest.importorskip("pyglet")
    monkeypatch.setattr(pyglet, "version", "2.0.1")
    assert "pyglet 1.5 and not 2.0.1" in error_of(get_task("pickup3").make)


# Frames by hand


def pixel(state, row, column):
    return np.asarray(draw(state)[row, column], int)


def test_the_horizon_is_where_a_wall_of_2_74_meters_ends():
    state = make_state(position=(6.0, 6.0), objects=[(BALL, RED, (1.0, 1.0), 0.0)])
    column = np.asarray(draw(state)[:, 40], int)
    half_height = 6.0 * math.tan(math.radians(30))
    top = 30 - 30 * (constants.WALL_HEIGHT - 1.5) / half_height
    bottom = 30 + 30 * 1.5 / half_height
    sky, floor = (63, 209, 255), (108, 109, 111)
    is_sky = np.max(np.abs(column - sky), axis=1) < 3
    is_floor = np.max(np.abs(column - floor), axis=1) < 3
    assert is_sky.tolist() == [row + 1 < top + 0.5 for row in range(60)]
    assert is_floor.tolist() == [row > bottom - 0.1 for row in range(60)]


def test_a_ball_is_a_circle_of_its_size_and_color():
    state = make_state(objects=[(BALL, RED, (9.0, 6.0), 0.0)])
    frame = np.asarray(draw(state), int)
    is_red = (frame[..., 0] > 100) & (frame[..., 1:] < 5).all(-1)
    rows, columns = np.nonzero(is_red)
    pixels_per_meter = 30 / math.tan(math.radians(30)) / 3.0
    width = 2 * 0.45 * pixels_per_meter
    assert columns.max() - columns.min() + 1 == pytest.approx(width, abs=2)
    assert columns.mean() == pytest.approx(39.5, abs=0.5)
    assert rows.mean() == pytest.approx(30 + 1.05 * pixels_per_meter, abs=1.5)
    assert is_red.sum() == pytest.approx(math.pi * (width / 2) ** 2, rel=0.15)


def test_what_is_nearer_hides_what_is_behind():
    near, far = (BOX, YELLOW, (8.0, 6.0), 0.0), (BALL, RED, (9.5, 6.0), 0.0)
    room = JaxPickup(PickupConfig(num_objs=2))
    for objects in ([near, far], [far, near]):
        frame = np.asarray(room.draw((), make_state(objects=objects)), int)
        is_red = (frame[..., 0] > 60) & (frame[..., 1:] < 5).all(-1)
        is_yellow = (frame[..., :2] > 60).all(-1) & (frame[..., 2] < 5)
        assert is_yellow.sum() > 200
        assert is_red.sum() < 0.4 * is_yellow.sum()
        assert not (is_red[is_yellow.any(axis=1).argmax() + 2 :, 39]).any()


def test_what_is_behind_the_agent_is_not_seen():
    ahead, behind = (make_state(objects=[(KEY, RED, (x, 6.0), 0.0)]) for x in (8.0, 4.0))
    nothing = ahead._replace(present=jnp.zeros(1, bool))
    np.testing.assert_array_equal(draw(behind), draw(nothing))
    assert not np.array_equal(draw(ahead), draw(nothing))


def test_a_gpu_draws_what_a_cpu_does(monkeypatch):
    room = JaxPickup(PickupConfig(num_objs=3))
    states, _ = jax.vmap(lambda key: room.reset((), key))(jax.random.split(jax.random.key(0), 20))
    frames = []
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(ray_caster, "platform", lambda device=device: device)
        frames.append(np.asarray(jax.jit(jax.vmap(lambda s: room.draw((), s)))(states)))
    # Where a ray meets an edge, rounding decides.
    assert np.mean(frames[0] != frames[1]) < 1e-4


def test_an_object_is_seen_once_more_when_it_is_picked_up():
    state = make_state(objects=[(BALL, RED, (7.5, 6.0), 0.0)])
    picked, result = walk(state, [PICKUP])
    assert result.terminated
    nothing = draw(picked._replace(in_hand=jnp.zeros(1, bool)))
    assert not np.array_equal(draw(picked), nothing)
    np.testing.assert_array_equal(draw(walk(picked, [PICKUP])[0]), nothing)


# For agents


def test_frames_are_stacked_and_black_before_the_first():
    env = FrameStackAutoreset(JaxPickup(PickupConfig(size=6, num_objs=1)), 4)
    key = jax.random.key(0)
    state, frames = env.reset((), key)
    assert frames.shape == (4, 60, 80, 3)
    assert not np.any(frames[:3])
    first = frames[3]
    np.testing.assert_array_equal(first, env.env.draw((), state.env))
    state, (timestep, _) = env.step((), state, jnp.int32(TURN_LEFT), key, key)
    assert not np.any(timestep.observation[:2])
    np.testing.assert_array_equal(timestep.observation[2], first)
    np.testing.assert_array_equal(timestep.observation[3], env.env.draw((), state.env))
    last = state._replace(env=state.env._replace(episode_step=jnp.int32(399)))
    state, (timestep, _) = env.step((), last, jnp.int32(TURN_LEFT), key, jax.random.key(5))
    assert timestep.truncated
    assert not np.any(timestep.observation[:3])
    assert int(state.env.episode_step) == 0
    np.testing.assert_array_equal(timestep.observation[3], env.reset((), jax.random.key(5))[1][3])


def test_dtypes_hold_under_strict_promotion():
    room = JaxPickup(CONFIG)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        start, _ = jax.eval_shape(room.reset, (), jax.random.key(0))
        state, result = jax.eval_shape(room.step, (), start, jnp.int32(1))
    shapes = jax.tree.map(lambda array: (array.dtype, array.shape), (start, state))
    assert shapes[0] == shapes[1]
    dtypes = [array.dtype for array in result]
    assert dtypes == [jnp.uint8, jnp.float32, jnp.float32, jnp.bool_, jnp.bool_]


# In Gymnasium


def make_env(**arguments):
    return gym.make(ID, disable_env_checker=True, **arguments)


def test_gymnasiums_checker_finds_nothing():
    check_env(make_env(size=5, num_objs=1).unwrapped, skip_render_check=True)


def test_episodes_depend_on_the_seed_alone():
    env = make_env()
    frames = [env.reset(seed=seed)[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0], frames[2])
    assert not np.array_equal(env.reset()[0], frames[2])


def test_a_picture_shows_the_room_from_above_beside_the_view():
    env = make_env(render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(20):
        env.step(FORWARD)
    after = env.render()
    assert before.shape == after.shape == (480, 480 + 640, 3)
    assert before.dtype == np.uint8
    assert (before[:, :480] != after[:, :480]).any()


def test_actions_and_arguments_are_checked_in_one_sentence():
    env = make_env()
    assert "call reset before step" in error_of(env.unwrapped.step, 0)
    env.reset()
    assert "no action 5" in error_of(env.unwrapped.step, 5)
    for arguments, part in (
        ({"size": 3}, "choose from 5 to 50"),
        ({"size": 4.5}, "whole number"),
        ({"num_objs": 0}, "num_objs"),
        ({"num_objs": 40}, "choose at most 30."),
        ({"size": 50, "num_objs": 31}, "choose at most 30."),
        ({"size": 5, "num_objs": 3}, "or a larger size"),
        ({"num_obj": 3}, "num_objs"),
        ({"render_mode": "ascii"}, "rgb_array"),
    ):
        assert part in error_of(PickupEnv, **arguments)


@pytest.mark.parametrize("name", ["pickup3", "pickup5", "pickup3-jax", "pickup5-jax"])
def test_tasks_have_the_papers_objects_steps_and_stacks_of_frames(name):
    task = get_task(name)
    assert (task.steps, task.frame_stack, task.preset) == (2_000_000, 4, "pickup")
    assert task.in_workers == (task.jax_env is None) == (not name.endswith("-jax"))
    assert f"{name[6]} objects" in task.description
    if task.jax_env is not None:
        assert task.jax_env == JaxPickup(PickupConfig(num_objs=int(name[6])))
        spec = task.spec(num_envs=2)
        assert (spec.shape, spec.dtype) == ((4, 60, 80, 3), "uint8")
        assert (spec.num_actions, spec.max_episode_steps) == (5, 400)


def test_env_kwargs_are_arguments_of_the_room():
    task = get_task("pickup3-jax", env_kwargs={"size": 8, "num_objs": 2})
    assert task.jax_env == JaxPickup(PickupConfig(size=8, num_objs=2))
    assert "2 objects" in task.description
    assert "num_objs" in error_of(get_task, "pickup3", env_kwargs={"objects": 2})
    single = get_task("pickup3-jax", env_kwargs={"frame_stack": 1})
    assert single.inspect().shape == (1, 60, 80, 3)
    sentence = error_of(get_task, "pickup3-jax", env_kwargs={"frame_stack": 1000})
    assert sentence == "frame_stack must be between 1 and 16, but is 1000."


def test_truncation_cannot_be_bootstrapped_where_frames_are_stacked():
    agent = engram.DQN(truncation_is_terminal=False)
    sentence = error_of(engram.train, agent, "pickup3-jax", seeds=1, steps=40)
    assert "truncation_is_terminal cannot be off where frames are stacked" in sentence
