"""Time limits, wrappers, parts of dictionaries and combined actions, from the command line on."""

import json
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from training_helpers import DQN_SMALL, error_of

import engram
from engram.cli import main
from engram.env_report import report
from engram.envs import get_task
from engram.envs.spaces import MAX_COMBINATIONS, split_action
from engram.errors import EngramError, EngramWarning

MODULE = '''
import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Parts(gym.Env):
    """An image, a number and a text; the episode never ends."""

    def __init__(self):
        image = spaces.Box(0, 9, (5, 5), np.uint8)
        self.observation_space = spaces.Dict(
            image=image, number=spaces.Discrete(3), text=spaces.Text(5)
        )
        self.action_space = spaces.Discrete(2)

    def observe(self):
        return {"image": np.full((5, 5), 9, np.uint8), "number": 2, "text": "far"}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 1.0, False, False, {}


class Ten(gym.RewardWrapper):
    def reward(self, reward):
        return 10 * reward


class AddOne(gym.RewardWrapper):
    def reward(self, reward):
        return reward + 1


class Broken(gym.Wrapper):
    def __init__(self, env):
        raise OSError("no more tape")


gym.register("Parts-v0", entry_point="parts_module:Parts")
'''
ID = "gym:parts_module:Parts-v0"


@pytest.fixture
def in_folder(monkeypatch, tmp_path):
    """A working directory with the module above, which is forgotten at the end."""
    (tmp_path / "parts_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("parts_module", None)
    gym.registry.pop("Parts-v0", None)


def train(words, *options):
    main(f"train random {ID} --seeds 2 --steps 40 {words} --out run".split() + list(options))


def test_a_part_a_limit_and_wrappers_are_kept_with_the_run(in_folder, capsys):
    wrappers = "--wrapper parts_module:Ten --wrapper parts_module:AddOne"
    train(f"--observe image --max-episode-steps 4 {wrappers}")
    config = json.loads((in_folder / "run" / "config.json").read_text())
    assert config["env_kwargs"] == {"max_episode_steps": 4}
    assert config["observe"] == ["image"]
    assert config["wrappers"] == ["parts_module:Ten", "parts_module:AddOne"]  # innermost first
    assert config["spec"]["shape"] == [5, 5]
    out = capsys.readouterr().out
    assert f"{ID} --env-kwargs max_episode_steps=4 --wrapper parts_module:Ten" in out
    summary = json.loads((in_folder / "run" / "summary.json").read_text())
    assert summary["final"]["mean"] == 4 * (10 * 1 + 1)
    returns = engram.evaluate("run", episodes=3)
    assert returns[1].tolist() == [44.0] * 3
    main(["resume", "run"])
    # The policy takes the environment's whole observation.
    observation = {"image": np.zeros((5, 5), np.uint8), "number": 1, "text": ""}
    assert engram.load("run").act(observation) in (0, 1)
    assert engram.load("run").act(observation["image"]) in (0, 1)


def test_of_several_parts_agents_see_a_vector(in_folder):
    task = get_task(ID, observe=["number"])
    spec = task.inspect()
    assert (spec.shape, spec.obs_path) == ((3,), ("number",))
    env = task.make()
    assert env.reset()[0].tolist() == [0, 0, 1]
    sentence = error_of(lambda: get_task(ID).inspect())
    assert "--observe NAME" in sentence
    assert "['image'] an image" in sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observe": ["picture"]}, "no part 'picture': choose of image, number, text."),
        ({"observe": ["image", "text"]}, "['image'] an image"),
        ({"observe": "image"}, "observe must be a list of names, not 'image'"),
        ({"observe": [["image"]]}, "observe must be a list of names, not [['image']]"),
        ({"observe": ["image", "image"]}, "observe names a part twice"),
        ({"wrappers": [".parts_module:Ten"]}, "cannot be imported (TypeError"),
        ({"wrappers": ["parts_module:Nine"]}, "no wrapper 'Nine'"),
        ({"wrappers": ["parts_module:Parts"]}, "no wrapper 'Parts'"),
        ({"wrappers": ["nowhere:Ten"]}, "cannot be imported"),
        ({"wrappers": ["Ten"]}, "its name module:Class, not 'Ten'"),
        ({"wrappers": ["parts_module:Broken"], "observe": ["image"]}, "OSError (no more tape)"),
    ],
)
def test_what_cannot_be_observed_or_wrapped_is_told_in_a_sentence(in_folder, options, words):
    def inspect():
        get_task(ID, **({"observe": ["image"]} | options)).inspect()

    assert words in error_of(inspect)


@pytest.mark.parametrize("task", ["cartpole", "maze3", lambda: gym.make("CartPole-v1")])
@pytest.mark.parametrize("options", [{"wrappers": ["a:B"]}, {"observe": ["image"]}])
def test_only_gymnasium_ids_have_wrappers_and_parts(task, options):
    assert "gym:ID" in error_of(lambda: get_task(task, **options))


def test_a_limit_is_for_gymnasium_ids(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["train", "random", "cartpole", "--max-episode-steps", "5", "--steps", "10"])
    assert exited.value.code == 2
    assert "cartpole has a limit of its own" in capsys.readouterr().err


def test_a_run_without_ends_is_told_after_a_tenth(in_folder):
    steps = []

    class Steps(engram.Hook):
        def on_log(self, run, progress):
            steps.append(progress.step)

    with pytest.warns(EngramWarning, match="No episode of .* has ended in 200 steps") as caught:
        engram.train("random", ID, seeds=1, steps=2_000, observe=["image"], hooks=[Steps()])
    assert len(caught) == 1
    assert steps[-1] == 2_000


# Combinations of choices


class Choices(gym.Env):
    """The reward is 1 if the last choice, or combination, is the largest one."""

    def __init__(self, action_space):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space
        self.taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        self.taken.append(np.ravel(action).tolist())
        return np.zeros(2, np.float32), 0.0, self.t == 3, False, {}


@pytest.mark.parametrize(
    ("space", "count", "second", "last"),
    [
        (spaces.MultiDiscrete([3, 4]), 12, [0, 1], [2, 3]),
        (spaces.MultiDiscrete([3, 4], start=[1, -2]), 12, [1, -1], [3, 1]),
        (spaces.MultiDiscrete([[2, 2], [2, 3]]), 24, [0, 0, 0, 1], [1, 1, 1, 2]),
        (spaces.MultiBinary(3), 8, [0, 0, 1], [1, 1, 1]),
        (spaces.MultiBinary((2, 2)), 16, [0, 0, 0, 1], [1, 1, 1, 1]),
    ],
)
def test_combinations_are_numbered_and_the_last_choice_varies_fastest(space, count, second, last):
    task = get_task(lambda: Choices(space))
    spec = task.inspect()
    assert spec.num_actions == count
    env = task.make()
    env.reset()
    for action in range(count):
        env.step(action)
    taken = env.unwrapped.taken
    assert (taken[1], taken[-1]) == (second, last)
    assert len(np.unique(taken, axis=0)) == count
    numbers = np.arange(count)
    split = split_action(spec.action_nvec, spec.action_start, numbers)
    assert split.tolist() == taken


def test_a_policy_gives_the_environments_own_actions(tmp_path):
    def make():
        return Choices(spaces.MultiBinary((2, 2)))

    engram.train(DQN_SMALL, make, seeds=1, steps=40, out=tmp_path / "run")
    policy = engram.load(tmp_path / "run")
    space = make().action_space
    assert space.contains(policy.act(np.zeros(2, np.float32)).astype(space.dtype))
    assert policy.act(np.zeros((5, 2), np.float32)).shape == (5, 2, 2)


def test_too_many_combinations_are_refused():
    sentence = error_of(lambda: get_task(lambda: Choices(spaces.MultiBinary(13))).inspect())
    assert f"only up to {MAX_COMBINATIONS:,}" in sentence
    assert get_task(lambda: Choices(spaces.MultiBinary(12))).inspect().num_actions == 4_096


# engram check


def test_check_tells_what_agents_see(in_folder, capsys):
    main(["check", ID, "--observe", "image", "--max-episode-steps", "7"])
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "images of 5 x 5 with 1 channels, bytes up to 9 (the part image)",
        "time limit 7 steps, bootstrapped",
        "rewards 1 to 1 at random",
        "of 7 steps in the mean",
        "seeds repeat an episode",
        "in JAX no",
    ):
        assert words in out


def test_a_report_tells_of_chance_choices_and_unending_episodes(in_folder):
    class Chance(Choices):
        def reset(self, **options):
            super().reset(**options)
            return np.random.default_rng().normal(size=2).astype(np.float32), {}

    found = report(get_task(lambda: Chance(spaces.MultiDiscrete([3, 4]))), seconds=0.05)
    assert found["actions"] == "12, the combinations of 3 x 4"
    assert found["observations"] == "2 numbers, float32, from -1 to 1"
    assert "do not repeat" in found["seeds"]
    endless = report(get_task(ID, observe=["number"]), seconds=0.05)
    assert endless["episodes"].startswith("none has ended in ")
    assert endless["time limit"].startswith("none: give one")
    assert endless["observations"].endswith("(the part number; one-hot codes of 3 values)")


def test_a_fault_in_later_steps_is_found_by_check():
    class Faulty(Choices):
        def step(self, action):
            *result, info = super().step(action)
            return (*result[:1], float("nan") if len(self.taken) > 50 else 0.0, *result[2:], info)

    with pytest.raises(EngramError, match="is at fault in step: reward is nan"):
        report(get_task(lambda: Faulty(spaces.Discrete(2))), seconds=1.0)
