"""The command line: what it prints, writes, and answers to mistakes."""

import csv
import json
import math
import re
import sys

import numpy as np
import pytest

import engram
from engram import screen
from engram.agents import AGENTS, PRESETS, make, usual
from engram.cli import main, parse, switched


def complaint(capsys, *arguments):
    """The one line that a mistake gets, after the check that it is one, with exit code 2."""
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    assert exit.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("engram: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian dqn cartpole", "no command 'trian'. Did you mean train?"),
        ("train mbek cartpole", "no agent 'mbek'. Did you mean mbec"),
        ("train dqn cartpole-gausian", "no task 'cartpole-gausian'. Did you mean cartpole-gaussian"),
        ("train dqn cartpole --hiden 3", "no option --hiden. Did you mean --hidden"),
        ("train dqn", "The form is `engram train AGENT TASK [options]`"),
        ("train dqn cartpole --seeds some", "--seeds takes a whole number, not 'some'"),
        ("train dqn cartpole --steps 1.5", "--steps takes a whole number, not '1.5'"),
        ("train dqn cartpole --gamma x", "--gamma takes a number, not 'x'"),
        ("train dqn cartpole --steps 0", "steps must be at least 1, but is 0"),
        ("train dqn cartpole --seeds -1", "seeds must be at least 1, but is -1"),
        ("train dqn cartpole --envs 0", "envs must be at least 1, but is 0"),
        ("train mbec++ cartpole --neighbours 0", "neighbours must be at least 1, but is 0"),
        ("train mbec++ cartpole --slots 0", "slots must be at least 1, but is 0"),
        ("train mbec++ cartpole --neighbours 20 --slots 10", "neighbours (20) must not exceed slots (10)"),
        ("train mbec++ cartpole --p-read 1.5", "p_read must be between 0 and 1, but is 1.5"),
        ("train dqn cartpole --learning-rate inf", "learning_rate must be a finite number"),
        ("train dqn cartpole --learning-rate nan", "learning_rate must be greater than 0, but is nan"),
        ("train mbec++ cartpole --forget all", "'earliest', 'unused'"),
        ("train ppo cartpole --recurrent maybe", "--recurrent takes True or False, or nothing for True, not 'maybe'"),
        (
            "train ppo cartpole --envs 8 --rollout 4",
            "rollout (4) must hold a step of each of the 8 environments: raise rollout to at least 8.",
        ),
        ("train ppo cartpole --recurrent --rollout 64 --sequence 100", "raise rollout to at least 100 or lower sequence."),
        ("train dqn cartpole --preset papper", "no preset 'papper'. Did you mean paper?"),
        ("train dqn cartpole --device abacus", "no device 'abacus' here: choose cpu"),
        ("train dqn gym:Pendulum-v1", "action_space is continuous"),
        ("train dqn gym:NoSuchThing-v0", "Gymnasium has no 'NoSuchThing-v0'"),
        ("show dqm", "no agent 'dqm'. Did you mean dqn"),
        ("resume nowhere", "nowhere is not a run folder"),
        ("eval nowhere", "nowhere is not a run folder"),
        ("eval nowhere --episodes 0", "episodes must be at least 1"),
        ("eval nowhere --video film.avi", "let its name end in .gif, .webp or .mp4"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(capsys, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in complaint(capsys, *arguments.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--anneal", "--anneal"),
        ("--anneal --batch 3", "--anneal --batch 3"),
        ("--anneal True", "--anneal"),
        ("--anneal=false --batch 3", "--no-anneal --batch 3"),
        ("--no-anneal", "--no-anneal"),
        ("--time-limit-ends", "--time-limit-ends True"),
        ("--no-time-limit-ends", "--time-limit-ends False"),
        ("--time_limit_ends False", "--time-limit-ends False"),
    ],
)
def test_a_switch_may_be_spelt_as_one_likes(given, wanted):
    fields = {"anneal": bool, "time_limit_ends": bool | None, "batch": int}
    assert switched(given.split(), fields) == wanted.split()


@pytest.mark.parametrize("agent", AGENTS)
def test_what_show_prints_of_a_preset_can_be_typed(capsys, agent):
    main(["show", agent])
    lines = [line.split(": ", 1) for line in re.split(r"\n(?=--preset )", capsys.readouterr().out)[1:]]
    assert len(lines) == sum(bool(overlays.get(agent)) for _, overlays in PRESETS.values())
    for preset, flags in lines:
        typed = parse(AGENTS[agent], flags.split(), AGENTS[agent](), "train")
        assert typed == make(agent, preset.split()[1])


def test_a_preset_that_changes_nothing_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["train", "random", "cartpole", "--preset", "tuned", "--seeds", "1", "--steps", "50"])
    assert "The preset tuned changes nothing for random." in capsys.readouterr().err


OWN = """
import gymnasium as gym
import numpy as np


class Pictures(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (6, 5, 3), np.uint8), gym.spaces.Discrete(2)

    def __init__(self):
        self.age = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.low + np.uint8(9), {}

    def step(self, action):
        self.age += 1
        return self.observation_space.high, 1.0, self.age == 5, False, {}


gym.register("Pictures-v0", Pictures)
"""


def test_a_module_in_the_folder_where_one_is_is_found(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_pictures.py").write_text(OWN)
    small = ["--hidden", "8", "--slots", "64", "--neighbours", "3", "--seeds", "1", "--steps", "60", "--envs", "2"]
    main(["train", "mbec++", "gym:own_pictures:Pictures-v0", *small, "--out", "run"])
    assert str(tmp_path) not in sys.path
    assert "begin with nothing above 9, where their space allows 255, and may hardly be seen" in capsys.readouterr().err
    main(["eval", "run", "--episodes", "3"])
    sentence = complaint(capsys, "eval", "run", "--video", "one.gif")
    assert sentence == "engram: gym:own_pictures:Pictures-v0 cannot be shown: its __init__ takes no render_mode.\n"


def test_lists_have_no_options(capsys):
    assert complaint(capsys, "list", "--nonsense") == "engram: `engram list` has no options.\n"
    assert complaint(capsys, "show", "dqn", "--hidden", "3") == "engram: `engram show AGENT` has no options.\n"


def test_a_campaign_that_is_refused_writes_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "No run of the plan has 'tetris' in its name" in complaint(capsys, "campaign", "atari", "--only", "tetris")
    assert "minutes must be greater than 0" in complaint(capsys, "campaign", "atari", "--minutes", "-1")
    assert not list(tmp_path.iterdir())


def test_a_run_in_which_no_network_learns_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    short = ["train", "dqn", "cartpole", "--preset", "debug", "--seeds", "1", "--steps", "50", "--learn-start"]
    main([*short, "50"])
    assert "No network will learn in 50 steps: they begin after 50, which --learn-start lowers." in capsys.readouterr().err
    main([*short, "49", "--envs", "4"])
    assert "No network will learn" in capsys.readouterr().err
    main([*short, "49"])
    assert "No network will learn" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "arcade", "preset"),
    [("mbec++", False, "engram"), ("mbec++", True, "atari"), ("dqn", False, "paper"), ("dqn", True, "atari"), ("ppo", True, "paper")],
)
def test_who_names_no_preset_gets_the_usual_one(agent, arcade, preset):
    assert usual(agent, arcade) == preset
    assert arcade or make(agent) == make(agent, preset)


class Begun(Exception):
    """Ends a training where it would compile."""


def test_the_command_line_and_python_have_the_same_usual_preset(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def start(driver):
        raise Begun

    monkeypatch.setattr("engram.loop.Scan.start", start)
    with pytest.raises(Begun):
        main(["train", "mbec++", "cartpole", "--seeds", "1", "--steps", "40", "--out", "run"])
    with pytest.raises(Begun):
        engram.train("mbec++", "cartpole", seeds=1, steps=40, out=tmp_path / "other")
    one, other = (json.loads((tmp_path / run / "config.json").read_text())["options"] for run in ("run", "other"))
    assert one == other
    assert one["multi_step"] == make("mbec++", "engram").multi_step != make("mbec++", "paper").multi_step


def test_the_help_fits_one_screen(capsys):
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_list_names_everything_and_show_explains_every_option(capsys):
    main(["list"])
    listed = capsys.readouterr().out
    for name in ("mbec++", "dqn", "random", "cartpole-bernoulli", "lunarlander-transition", "gym:ID", "authors", "paper"):
        assert name in listed
    main(["show", "mbec++"])
    shown = capsys.readouterr().out
    for option in ("--neighbours", "--write-neighbours", "--fixed-beta", "--trajectory-loss", "--no-discount-memory"):
        assert option in shown


def test_a_run_is_trained_kept_from_overwriting_and_played(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["train", "dqn", "cartpole", "--preset", "debug", "--seeds", "2", "--steps", "150", "--out", "run"])
    assert "Learning curve: run/curves.png" in capsys.readouterr().out
    folder = tmp_path / "run"
    assert {file.name for file in folder.iterdir()} >= {
        "config.json",
        "curves.csv",
        "metrics.csv",
        "summary.json",
        "curves.png",
        "checkpoint",
    }
    rows = list(csv.DictReader((folder / "curves.csv").open()))
    assert list(rows[0]) == ["seed", "step", "return"]
    assert sum(row["seed"] == "0" for row in rows) >= 100
    summary = json.loads((folder / "summary.json").read_text())
    assert {"agent", "task", "seeds", "steps", "final", "auc", "steps_per_second"} <= summary.keys()
    assert {"mean", "std", "iqm", "ci95", "per_seed"} <= summary["final"].keys()
    config = json.loads((folder / "config.json").read_text())
    assert config["options"]["hidden"] == 16  # the preset's
    before = (folder / "config.json").read_bytes()
    assert "already holds a run" in complaint(capsys, *["train", "random", "cartpole", "--out", "run"])
    assert (folder / "config.json").read_bytes() == before
    main(["eval", "run", "--episodes", "3", "--video", "film.gif"])
    assert "dqn on cartpole: 3 greedy episodes of each seed" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "film.gif").read_bytes()[:3] == b"GIF"


def test_without_a_name_a_second_run_gets_a_folder_of_its_own(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main(["train", "random", "cartpole", "--seeds", "1", "--steps", "30"])
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {"random-cartpole", "random-cartpole-2"}


def test_an_environment_that_breaks_while_it_is_played_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["train", "random", "cartpole", "--seeds", "1", "--steps", "30", "--out", "run"])
    capsys.readouterr()

    def fail(*_):
        raise RuntimeError("out of fuel")

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.step", fail)
    assert "The environment cartpole is at fault in step: it raised RuntimeError (out of fuel)" in complaint(capsys, "eval", "run")


# What is shown while a training runs


@pytest.mark.parametrize(
    ("curve", "line"),
    [([], ""), ([math.nan], ""), ([3.0], "▁"), ([0.0, 7.0], "▁█"), ([math.nan, 0.0, 1.0, 7.0], "▁▂█"), ([0.0, 0.0, 7.0, 7.0], "▁█")],
)
def test_a_curve_fits_into_a_line(curve, line):
    assert screen.sparkline(np.array(curve), width=2 if len(curve) == 4 and curve[0] == 0 else 16) == line


def test_tensorboard_sees_scores_and_metrics_of_every_seed(capsys, monkeypatch, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    main(["train", "dqn", "cartpole", "--preset", "debug", "--seeds", "2", "--steps", "150", "--out", "run", "--tensorboard"])
    curves = list(csv.DictReader((tmp_path / "run" / "curves.csv").open()))
    metrics = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    for seed in ("0", "1"):
        seen = EventAccumulator(str(tmp_path / "run" / "tensorboard" / f"seed-{seed}"), {"tensors": 0}).Reload()
        score = {event.step: event.tensor_proto.float_val[0] for event in seen.Tensors("score")}
        assert score == pytest.approx({int(r["step"]): float(r["return"]) for r in curves if r["seed"] == seed and r["return"] != "nan"})
        loss = {event.step: event.tensor_proto.float_val[0] for event in seen.Tensors("td_loss")}
        assert loss == pytest.approx({int(r["step"]): float(r["td_loss"]) for r in metrics if r["seed"] == seed})


def test_without_tensorboard_its_option_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    said = complaint(capsys, *["train", "dqn", "cartpole", "--preset", "debug", "--seeds", "1", "--steps", "50", "--tensorboard"])
    assert "TensorBoard is not installed: pip install tensorboard, or leave it out." in said
    assert not (tmp_path / "runs").exists()
