"""The command line: what it prints and writes, and its answers to bad input."""

import csv
import json
import re
import subprocess
import sys

import pytest

import engram
from engram.agents import AGENTS, PRESETS, default_preset, make
from engram.cli import main
from engram.cli.arguments import option_types, read_options
from engram.cli.training import read_seeds, unused_path
from engram.envs import get_task
from engram.errors import EngramError, Interrupted


def error_line(capsys, arguments):
    """The one line on stderr for bad input, after the check that the exit code is 2."""
    with pytest.raises(SystemExit) as exit:
        main(arguments.split())
    assert exit.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith("engram: ")
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    return output.err


@pytest.fixture
def in_tmp_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train_calls(monkeypatch, in_tmp_path):
    """The options of each call of train, which then ends before it would compile."""
    calls = []

    def train(agent, task, **options):
        calls.append(options | {"agent": agent, "task": task.name})
        raise EngramError("not trained in this test")

    monkeypatch.setattr("engram.training.train", train)
    return calls


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian dqn cartpole", "no command 'trian'. Did you mean train?"),
        ("train mbek cartpole", "no agent 'mbek'. Did you mean mbec"),
        ("train dqn cartpole-gausian", "no task 'cartpole-gausian'. Did you mean cartpole-gaus"),
        (
            "train dqn cartpole --learnin-rate 3",
            "There is no option --learnin-rate. Did you mean --learning-rate?",
        ),
        ("train dqn cartpole --learnin_rate=3", "Did you mean --learning-rate?"),
        (
            "train dqn cartpole --xyz",
            "There is no option --xyz. See `engram train dqn cartpole --help`.",
        ),
        ("train dqn", "The form is `engram train AGENT TASK [options]`"),
        ("train dqn cartpole acrobot", "The form is `engram train AGENT TASK [options]`"),
        ("resume", "The form is `engram resume DIR [options]`"),
        ("train dqn cartpole --gamma 0.9 more", "'more' is neither an option nor its value"),
        ("train dqn cartpole --gamma", "--gamma takes a value"),
        ("train dqn cartpole --gamma --double-q", "--gamma takes a value"),
        ("train dqn cartpole --no-double-q=True", "--no-double-q takes no value"),
        ("train dqn cartpole --no-gamma", "There is no option --no-gamma"),
        ("train dqn cartpole --seeds some", "--seeds must be a whole number, not 'some'"),
        ("train dqn cartpole --seeds 1,x", "Each of --seeds must be a whole number, not 'x'"),
        ("train dqn cartpole --seeds 1,1", "different whole numbers"),
        ("train dqn cartpole --seed 1.5", "--seed must be a whole number, not '1.5'"),
        ("train dqn cartpole --seed -1", "--seed must be between 0 and"),
        ("train dqn cartpole --steps 1.5", "--steps must be a whole number, not '1.5'"),
        ("train dqn cartpole --steps 1e-5", "--steps must be a whole number, not '1e-5'"),
        ("train dqn cartpole --gamma x", "--gamma must be a number, not 'x'"),
        ("train dqn cartpole --steps 0", "--steps must be at least 1, but is 0"),
        ("train dqn cartpole --seeds -1", "--seeds must be at least 1, but is -1"),
        ("train dqn cartpole --num-envs 0", "--num-envs must be at least 1, but is 0"),
        (
            "train mbec++ cartpole --num-neighbours 0",
            "--num-neighbours must be at least 1, but is 0",
        ),
        ("train mbec++ cartpole --memory-size 0", "--memory-size must be at least 1, but is 0"),
        ("train mbec++ cartpole --num-neighbours 20 --memory-size 10", "(20) must not exceed"),
        ("train mbec++ cartpole --p-read 1.5", "--p-read must be between 0 and 1, but is 1.5"),
        ("train dqn cartpole --learning-rate inf", "--learning-rate must be a finite number"),
        ("train dqn cartpole --learning-rate nan", "must be greater than 0, but is nan"),
        (
            "train mbec++ cartpole --trajectory-loss x",
            "one of recall, prediction, none, not 'x'",
        ),
        ("train ppo cartpole --recurrent maybe", "must be True or False, not 'maybe'"),
        ("train ppo cartpole --num-envs 8 --num-steps 4", "to at least 8"),
        ("train ppo cartpole --recurrent --num-steps 64 --sequence-length 100", "to at least 100"),
        ("train dqn cartpole --preset papper", "no preset 'papper'. Did you mean paper?"),
        ("train dqn cartpole --device abacus", "no device 'abacus' here: choose cpu"),
        ("train dqn gym:Pendulum-v1", "continuous"),
        ("train dqn gym:NoSuchThing-v0", "Gymnasium has no 'NoSuchThing-v0'"),
        ("train dqn maze3 --env-kwargs", "--env-kwargs takes a value"),
        ("train dqn maze3 --env-kwargs size", "words like size=7 or trap=true, not 'size'"),
        ("train dqn maze3 --env-kwargs size=7 more", "words like size=7 or trap=true, not 'more'"),
        ("train dqn maze3 --env-kwargs sise=7", "no argument 'sise'. Did you mean size?"),
        ("train dqn maze3 --env-kwargs size=1", "A maze cannot have size 1: give a whole number"),
        ("train dqn maze3 --env-kwargs trap=yes", "trap must be True or False, not 'yes'"),
        ("train dqn maze3 --env-kwargs dropout_rate=0.5", "set observation to features"),
        ("train dqn maze3-noisy --env-kwargs dropout_rate=x", "must be a number, not 'x'"),
        ("train dqn maze3-noisy --env-kwargs features=no.pth", "There is no file no.pth"),
        ("train dqn maze5 --env-kwargs maze=sample size=4", "no sample maze of size 4"),
        ("train dqn cartpole --env-kwargs size=7", "cartpole takes no env_kwargs"),
        ("train dqn gym:engram/Maze-v0 --env-kwargs size=1", "A maze cannot have size 1"),
        ("train dqn gym:engram/Mace-v0", "Gymnasium has no 'engram/Mace-v0'"),
        ("train dqn gym:CartPole-v1 --env-kwargs colour=red", "argument 'colour'"),
        ("show dqm", "no agent 'dqm'. Did you mean dqn"),
        ("show dqn --gamma 1", "There is no option --gamma"),
        ("list --nonsense", "There is no option --nonsense"),
        ("resume nowhere", "nowhere is not a run folder"),
        ("eval nowhere", "nowhere is not a run folder"),
        ("eval nowhere --episodes 0", "--episodes must be at least 1"),
        ("eval nowhere --video film.avi", "let its name end in .gif, .webp or .mp4"),
        ("export nowhere", "The form is `engram export DIR FILE [options]`"),
        ("export nowhere policy.npz", "nowhere is not a run folder"),
        ("export nowhere policy.pt", "choose a name that ends in .npz or .onnx"),
        ("plot", "The form is `engram plot DIR... [options]`"),
        ("plot nowhere", "nowhere is not a run folder"),
        ("plot nowhere --out curves.gif", "choose a name that ends in .png, .svg or .pdf"),
        ("plot nowhere --out no/curves.png", "There is no folder no"),
        ("plot nowhere --by seed", "--by must be one of task, agent, not 'seed'"),
        ("plot nowhere --smooth 0", "--smooth must be at least 1"),
        ("compare", "The form is `engram compare DIR... [options]`"),
        ("compare nowhere", "nowhere is not a run folder"),
        ("compare nowhere ./nowhere", "nowhere is named twice"),
        ("compare nowhere --html page.txt", "choose a name that ends in .html"),
        ("tune dqn", "The form is `engram tune AGENT TASK [options]`"),
        ("tune dqn cartpole --space n_stop=1,3", "DQN has no option 'n_stop'. Did you mean n_step"),
        ("tune dqn cartpole --space n_step=0..5", "n_step of the space must be at least 1"),
        ("tune dqn cartpole --space gamma --gamma 1", "gamma is given a value and searched too"),
        ("tune dqn cartpole --objective area", "--objective must be one of auc, final, not 'area'"),
        ("campaign chess", "no campaign 'chess': the only one is `engram campaign atari`"),
        ("campaign atari --only tetris", "No run of the plan has 'tetris' in its name"),
        ("campaign atari --minutes -1", "--minutes must be greater than 0"),
        ("reproduce noisy-contrl", "Did you mean noisy-control"),
        ("reproduce all --part 1", "--part needs one experiment"),
        ("report --results nowhere", "There is no folder nowhere"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(capsys, in_tmp_path, arguments, sentence):
    assert sentence in error_line(capsys, arguments)
    assert not list(in_tmp_path.iterdir())


def test_a_maze_whose_images_do_not_fit_into_memory_is_refused(capsys, monkeypatch, in_tmp_path):
    monkeypatch.setattr("engram.training.memory_size", lambda: 25 * 10**9)
    line = error_line(capsys, "train mbec maze3 --env-kwargs size=100 observation=image")
    assert "These 10 runs need" in line
    assert "or make images smaller" in line
    assert not list(in_tmp_path.iterdir())


def test_traceback_shows_where_an_error_arose(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["show", "--traceback", "dqm"])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert "EngramError: There is no agent 'dqm'" in error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("all is saved.")])
def test_an_interrupted_command_exits_with_130(capsys, monkeypatch, error):
    def interrupt():
        raise error

    monkeypatch.setattr("engram.loggers.console.print_agents_and_tasks", interrupt)
    with pytest.raises(SystemExit) as exit:
        main(["list"])
    assert exit.value.code == 130
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "--help"], []])
def test_version_and_help_do_not_import_jax(arguments):
    program = (
        "import sys; from engram.cli import main\n"
        f"try: main({arguments})\n"
        "finally: assert not {'jax', 'numpy', 'gymnasium'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("engram 0", "usage: engram"))


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "engram", "trian"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "engram: There is no command 'trian'. Did you mean train?\n"


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m engram --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_help_fits_one_screen(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    assert not exit.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines[1:])) <= 80  # the first one names all commands


def test_help_of_train_shows_the_options_of_the_agent_with_the_defaults_of_the_preset(capsys):
    with pytest.raises(SystemExit):
        main(["train", "mbec++", "cartpole", "--preset", "debug", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--num-envs" in text
    assert re.search(r"--memory-size INT [^-]*\(default: 64\)", text)
    assert "(default: debug)" in text


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("--anneal-lr", {"anneal_lr": True}),
        ("--anneal-lr --batch-size 3", {"anneal_lr": True, "batch_size": 3}),
        ("--anneal-lr True", {"anneal_lr": True}),
        ("--anneal-lr=false --batch-size 3", {"anneal_lr": False, "batch_size": 3}),
        ("--no-anneal-lr", {"anneal_lr": False}),
        ("--no_anneal_lr", {"anneal_lr": False}),
        ("--truncation-is-terminal", {"truncation_is_terminal": True}),
        ("--no-truncation-is-terminal", {"truncation_is_terminal": False}),
        ("--truncation_is_terminal False", {"truncation_is_terminal": False}),
        ("--truncation-is-terminal None", {"truncation_is_terminal": None}),
        ("--batch-size 1e5", {"batch_size": 100_000}),
        ("--batch-size=100_000", {"batch_size": 100_000}),
        ("--batch-size -3", {"batch_size": -3}),
        ("--batch-size 3 --batch-size 4", {"batch_size": 4}),
    ],
)
def test_options_may_be_spelt_in_several_ways(text, options):
    kinds = {"anneal_lr": bool, "truncation_is_terminal": bool | None, "batch_size": int}
    assert read_options(text.split(), kinds, "engram --help") == options


@pytest.mark.parametrize(
    ("seeds", "seed", "numbers"),
    [
        ("10", None, 10),
        ("1e1", None, 10),
        ("1,2,30", None, (1, 2, 30)),
        ("7,", None, (7,)),
        ("10", 3, (3,)),
        ("10", 0, (0,)),
    ],
)
def test_seeds_are_a_count_or_a_list_and_a_seed_is_one_number(seeds, seed, numbers):
    assert read_seeds(seeds, seed) == numbers


def test_the_options_reach_the_training(capsys, train_calls):
    options = "--seeds 3,5 --steps 1e3 --num-envs 4 --use-gym --workers 2 --out run --gamma 0.5"
    error_line(capsys, f"train dqn cartpole {options} --no-double-q --checkpoint-every 5")
    (call,) = train_calls
    assert call.pop("agent") == make("dqn", gamma=0.5, double_q=False)
    assert [type(hook).__name__ for hook in call.pop("hooks")] == ["ProgressBar"]
    expected = {"seeds": (3, 5), "steps": 1000, "num_envs": 4, "use_gym": True, "out": "run"}
    assert call == expected | {"task": "cartpole", "workers": 2, "checkpoint_every": 5.0}


def test_the_arguments_of_the_environment_reach_the_task(capsys, monkeypatch, in_tmp_path):
    tasks = []

    def train(agent, task, **options):
        tasks.append(task)
        raise EngramError("not trained in this test")

    monkeypatch.setattr("engram.training.train", train)
    error_line(capsys, "train dqn maze3-trap --env-kwargs size=7 loop_rate=0.5 --steps 60")
    (task,) = tasks
    assert (task.steps, task.env_kwargs) == (60, (("size", 7), ("loop_rate", 0.5)))
    config = task.jax_env.config
    assert (config.size, config.loop_rate, config.trap) == (7, 0.5, True)


@pytest.mark.parametrize(
    ("agent", "task", "preset"),
    [
        ("mbec++", "cartpole", "engram"),
        ("mbec++", "atari:pong", "atari"),
        ("mbec++", "pickup3-jax", "pickup"),
        ("dqn", "cartpole", "paper"),
        ("dqn", "atari:pong", "atari"),
        ("ppo", "atari:pong", "paper"),
    ],
)
def test_the_command_line_and_python_have_the_same_default_preset(
    capsys, train_calls, agent, task, preset
):
    assert default_preset(agent, get_task(task).preset) == preset
    error_line(capsys, f"train {agent} {task}")
    assert train_calls[0]["agent"] == make(agent, preset)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_preset_lines_of_show_are_valid_options(capsys, agent):
    main(["show", agent])
    lines = capsys.readouterr().out.splitlines()
    presets = dict(line.split(": ", 1) for line in lines if line.startswith("--preset "))
    assert len(presets) == sum(bool(overlays.get(agent)) for _, overlays in PRESETS.values())
    for preset, flags in presets.items():
        options = read_options(flags.split(), option_types(AGENTS[agent]), "engram --help")
        assert make(agent, default_preset(agent), **options) == make(agent, preset.split()[1])


def test_list_names_all_agents_and_tasks_and_show_explains_every_option(capsys):
    main(["list"])
    output = capsys.readouterr().out
    for name in ("mbec++", "random", "lunarlander-transition", "maze3-dynamic"):
        assert name in output
    for name in ("gym:ID", "atari:GAME", "paper"):
        assert name in output
    main(["show", "mbec++"])
    output = capsys.readouterr().out
    presets = "Default preset: engram, for Atari atari, for 3D navigation pickup."
    assert presets in " ".join(output.split())
    for option in option_types(AGENTS["mbec++"]):
        assert re.search(rf"--{option.replace('_', '-')} +\S+ +\S+", output)


def test_a_preset_without_options_for_the_agent_is_refused(capsys, train_calls):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "mbec++", "cartpole", "--preset", "tuned"])
    assert stopped.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "The preset tuned has no options for mbec++: choose paper or engram" in error
    assert not train_calls


def test_seed_and_seeds_exclude_each_other(capsys, train_calls):
    with pytest.raises(SystemExit):
        main(["train", "dqn", "cartpole", "--seed", "3", "--seeds", "2"])
    assert "choose one of the two" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "dqn", "cartpole", "--seed", "-1"])
    assert "--seed must be between 0 and" in capsys.readouterr().err
    assert not train_calls


@pytest.mark.parametrize(
    ("options", "is_warned"), [("50", True), ("49", False), ("49 --num-envs 4", True)]
)
def test_a_run_in_which_no_network_learns_gets_a_warning(capsys, train_calls, options, is_warned):
    with pytest.raises(SystemExit):
        main(f"train dqn cartpole --steps 50 --learning-starts {options}".split())
    warning = "No network will learn in 50 steps"
    assert (warning in capsys.readouterr().err) == is_warned


def test_the_default_folder_is_one_that_does_not_exist(in_tmp_path):
    names = []
    for _ in range(3):
        path = unused_path("runs", "dqn-gym:own/Task-v0")
        path.mkdir(parents=True)
        names.append(path.name)
    assert names == [f"dqn-gym-own-Task-v0{end}" for end in ("", "-2", "-3")]


OWN_MODULE = """
import gymnasium as gym
import numpy as np
from engram.agents.random import Random


class Images(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (6, 5, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)
    instances = 0

    def __init__(self):
        Images.instances += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low + np.uint8(9), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.high, 1.0, self.steps == 5, False, {}


gym.register("Images-v0", Images)


class Own(Random):
    pass
"""


def test_own_environments_are_imported_from_the_working_directory(capsys, in_tmp_path, tmp_path):
    (tmp_path / "own_images.py").write_text(OWN_MODULE)
    main(["train", "random", "gym:own_images:Images-v0", "--seeds", "2", "--steps", "20"])
    assert str(tmp_path) not in sys.path
    assert "" not in sys.path
    assert capsys.readouterr().err.count("may hardly see it") == 1
    assert sys.modules["own_images"].Images.instances == 2 + 1  # one is made for the checks


def test_own_agents_are_imported_from_the_working_directory(capsys, train_calls, tmp_path):
    (tmp_path / "own_agents.py").write_text(OWN_MODULE.replace("Images-v0", "Images-v1"))
    with pytest.raises(SystemExit):
        main(["train", "own_agents:Own", "cartpole"])
    assert type(train_calls[0]["agent"]).__name__ == "Own"


def test_an_environment_without_render_mode_cannot_be_recorded(capsys, in_tmp_path):
    (in_tmp_path / "own_videos.py").write_text(OWN_MODULE.replace("Images-v0", "Images-v2"))
    main(
        [
            "train",
            "random",
            "gym:own_videos:Images-v2",
            "--seeds",
            "1",
            "--steps",
            "30",
            "--out",
            "run",
        ]
    )
    capsys.readouterr()
    line = error_line(capsys, "eval run --video one.gif")
    assert "its __init__ takes no render_mode" in line


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The run folder of a short training."""
    path = tmp_path_factory.mktemp("cli") / "run"
    options = f"--preset debug --seeds 2 --steps 150 --out {path} --tensorboard"
    main(f"train dqn cartpole {options}".split())
    return path


def test_train_writes_a_run_folder(run_dir):
    files = {"config.json", "curves.csv", "metrics.csv", "summary.json", "curves.png", "checkpoint"}
    assert files <= {file.name for file in run_dir.iterdir()}
    rows = list(csv.DictReader((run_dir / "curves.csv").open()))
    assert list(rows[0]) == ["seed", "step", "return"]
    assert sum(row["seed"] == "0" for row in rows) >= 100
    summary = json.loads((run_dir / "summary.json").read_text())
    assert {"agent", "task", "seeds", "steps", "final", "auc", "steps_per_second"} <= set(summary)
    assert {"mean", "std", "iqm", "ci95", "per_seed"} <= set(summary["final"])
    config = json.loads((run_dir / "config.json").read_text())
    assert config["options"]["hidden_size"] == make("dqn", "debug").hidden_size == 16


def test_a_run_folder_is_not_overwritten(capsys, run_dir):
    before = (run_dir / "config.json").read_bytes()
    assert "already holds a run" in error_line(capsys, f"train random cartpole --out {run_dir}")
    assert (run_dir / "config.json").read_bytes() == before


def test_eval_prints_returns_and_records_a_video(capsys, run_dir, in_tmp_path):
    main(f"eval {run_dir} --episodes 3 --video film.gif".split())
    output = " ".join(capsys.readouterr().out.split())
    assert "dqn on cartpole: 3 greedy episodes of each seed" in output
    assert (in_tmp_path / "film.gif").read_bytes()[:3] == b"GIF"


def test_an_environment_that_fails_during_evaluation_is_named(capsys, monkeypatch, run_dir):
    def fail(*_):
        raise RuntimeError("out of fuel")

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.step", fail)
    line = error_line(capsys, f"eval {run_dir}")
    assert "cartpole" in line
    assert "RuntimeError (out of fuel)" in line


def test_resume_of_a_finished_run_prints_its_result(capsys, run_dir):
    main(["resume", str(run_dir)])
    output = capsys.readouterr().out
    assert "final return" in output
    assert "area" in output
    assert f"Learning curve: {run_dir}/curves.png" in output


def test_runs_are_plotted_and_compared(capsys, run_dir, in_tmp_path):
    main(["train", "random", "cartpole", "--seeds", "3", "--steps", "150", "--out", "other"])
    capsys.readouterr()
    main(f"plot {run_dir} other --smooth 2".split())
    assert capsys.readouterr().out == "Learning curves: learning-curves.png\n"
    assert (in_tmp_path / "learning-curves.png").read_bytes()[:4] == b"\x89PNG"
    main(f"compare {run_dir} other --html page.html".split())
    text = " ".join(capsys.readouterr().out.split())
    assert "cartpole, 150 agent steps" in text
    assert "minus dqn" in text
    assert text.endswith("Written: page.html")
    assert "<table>" in (in_tmp_path / "page.html").read_text()
    main(f"compare {run_dir} other --baseline other --markdown".split())
    markdown = capsys.readouterr().out
    assert "| minus random | measure | seeds | mean difference | P(improvement) | p |" in markdown
    assert "| dqn | final return | 2 |" in markdown


def test_the_figure_of_a_run_is_not_overwritten(capsys, run_dir):
    before = (run_dir / "curves.png").read_bytes()
    assert "a file of the run" in error_line(capsys, f"plot {run_dir} --out {run_dir}/curves.png")
    assert (run_dir / "curves.png").read_bytes() == before


def test_tensorboard_has_returns_and_metrics_of_every_seed(run_dir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for seed in ("0", "1"):
        folder = run_dir / "tensorboard" / f"seed-{seed}"
        events = EventAccumulator(str(folder), {"tensors": 0}).Reload()
        for file, column in (("curves", "return"), ("metrics", "td_loss")):
            rows = csv.DictReader((run_dir / f"{file}.csv").open())
            expected = {
                int(row["step"]): float(row[column])
                for row in rows
                if row["seed"] == seed and row[column] != "nan"
            }
            values = {e.step: e.tensor_proto.float_val[0] for e in events.Tensors(column)}
            assert values == pytest.approx(expected)


def test_a_resumed_run_goes_on_for_tensorboard(in_tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Stop(engram.Hook):
        def on_log(self, run, progress):
            if progress.step == 60:
                run.stop("as the test wants")

    hooks = [engram.TensorBoard("run/tensorboard"), Stop()]
    engram.train("random", "cartpole", seeds=1, steps=200, out="run", hooks=hooks)
    main(["resume", "run"])
    events = EventAccumulator("run/tensorboard/seed-0", {"tensors": 0}).Reload()
    assert {60, 62, 200} <= {event.step for event in events.Tensors("return")}


def test_tensorboard_that_is_not_installed_is_named(capsys, monkeypatch, in_tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    line = error_line(capsys, "train dqn cartpole --preset debug --steps 50 --tensorboard")
    assert "TensorBoard is not installed: pip install tensorboard, or leave it out." in line
    assert not list(in_tmp_path.iterdir())


def test_the_package_imports_its_public_names_and_modules_on_first_use():
    program = (
        "import sys, engram; assert 'jax' not in sys.modules\n"
        "assert not hasattr(engram, 'nothing'); assert 'train' in dir(engram)\n"
        "for name in engram.__all__: getattr(engram, name)\n"
        "engram.types.Agent; from engram import run_dir, DQN"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_path_that_looks_like_markup_is_printed_as_it_is(in_tmp_path, capsys):
    main(["train", "random", "cartpole", "--seed", "0", "--steps", "20", "--out", "a[/]b"])
    output = capsys.readouterr().out
    assert "into a[/]b" in output
    assert "a[/]b/curves.png" in output
