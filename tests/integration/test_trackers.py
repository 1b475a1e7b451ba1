"""Experiment trackers get every log point of every seed once, however often a training resumes."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest
from training_helpers import error_of

import engram
from engram.cli import main
from engram.errors import EngramError

KINDS = {"wandb": engram.WandB, "trackio": engram.Trackio}


class FakeRun:
    """A run that records what is logged; `step` is that of the next log."""

    offline = False
    project_url = "https://tracker.test/p"

    def __init__(self, arguments, rows):
        self.arguments, self.rows, self.finished = arguments, rows, None

    @property
    def step(self):
        return max((step for step, _ in self.rows), default=-1) + 1

    def log(self, values, step):
        assert self.finished is None
        self.rows.append((step, values))

    def finish(self, exit_code=0):
        self.finished = exit_code


class FakePackage:
    """A package with the interface that wandb and trackio share, and its server."""

    def __init__(self):
        self.runs, self.server, self.logins = [], {}, []
        self.mode, self.has_login, self.error = "online", True, None
        self.Settings = dict

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self, prompt, verify):
        self.logins.append((prompt, verify))
        return self.has_login

    def init(self, **arguments):
        if self.error is not None and len(self.runs) == 1:
            raise self.error
        print("a line that a progress bar would be torn by")
        assert arguments["resume"] == "allow"
        rows = self.server.setdefault(arguments["name"], [])
        if self.mode == "offline":
            rows = []
        self.runs.append(FakeRun(arguments, rows))
        self.runs[-1].offline = self.mode == "offline"
        self.runs[-1].dir = "run/wandb/offline-run-1/files"
        return self.runs[-1]

    def steps(self):
        return {name: [step for step, _ in rows] for name, rows in self.server.items()}


class FailAt(engram.Hook):
    """Ends a training as a fault would."""

    def __init__(self, step):
        self.step = step

    def on_log(self, run, progress):
        if progress.step == self.step:
            raise OSError("a fault")


@pytest.fixture
def packages(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fakes = {name: FakePackage() for name in KINDS}
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    return fakes


@pytest.fixture(params=KINDS)
def package(packages, request):
    packages[request.param].name = request.param
    return packages[request.param]


def train(hooks, steps=200, seeds=(4, 2), out="run"):
    return engram.train("random", "cartpole", seeds, steps, out=out, hooks=hooks)


def test_each_seed_is_a_run_of_one_group_with_the_values_of_the_run_folder(package):
    agent = engram.make("dqn", "debug")
    hooks = [KINDS[package.name]("p", quiet=True, entity="me")]
    engram.train(agent, "cartpole", [4, 2], 150, out="run", hooks=hooks)
    (group,) = {run.arguments["group"] for run in package.runs}
    assert group.startswith("run-")
    assert list(package.server) == [f"{group}-seed-4", f"{group}-seed-2"]
    for seed, run in zip((4, 2), package.runs, strict=True):
        with open("run/curves.csv") as curves, open("run/metrics.csv") as metrics:
            returns, losses = (
                {int(row["step"]): row[name] for row in rows if row["seed"] == str(seed)}
                for rows, name in (
                    (csv.DictReader(curves), "return"),
                    (csv.DictReader(metrics), "td_loss"),
                )
            )
        logged = {step: str(x["return"]) for step, x in run.rows if "return" in x}
        assert logged == {step: x for step, x in returns.items() if x != "nan"}
        assert {step: str(x["td_loss"]) for step, x in run.rows} == losses
        assert "steps_per_second" in run.rows[-1][1]
        assert run.finished == 0
        assert (run.arguments["project"], run.arguments["entity"]) == ("p", "me")
        config = run.arguments["config"]
        assert (config["task"], config["seed"], config["seeds"]) == ("cartpole", seed, [4, 2])
        assert config["options"]["hidden_size"] == 16
        assert "jax" in config["versions"]
        json.dumps(config)


def test_a_training_that_failed_goes_on_in_its_runs_and_sends_no_step_twice(package):
    kind = KINDS[package.name]
    with pytest.raises(OSError, match="a fault"):
        train([kind("p"), FailAt(60)])
    assert {steps[-1] for steps in package.steps().values()} == {60}
    result = engram.resume("run", hooks=[kind("p")])  # from the checkpoint of the first log point
    expected = result.curves[4][0].tolist()
    assert len(package.server) == 2
    assert all(steps == expected for steps in package.steps().values())


def test_what_the_server_never_got_from_a_killed_process_is_sent_again(packages):
    wandb = packages["wandb"]
    with pytest.raises(OSError, match="a fault"):
        train([engram.WandB("p"), FailAt(60)])
    del next(iter(wandb.server.values()))[-5:]
    assert [run.finished for run in wandb.runs] == [1, 1]
    result = engram.resume("run", hooks=[engram.WandB("p")])
    assert all(steps == result.curves[4][0].tolist() for steps in wandb.steps().values())


def test_a_run_that_is_offline_has_the_whole_curve_after_each_start(packages):
    wandb = packages["wandb"]
    wandb.mode, wandb.has_login = "offline", False
    with pytest.raises(OSError, match="a fault"):
        train([engram.WandB("p"), FailAt(60)], seeds=1)
    result = engram.resume("run", hooks=[engram.WandB("p")])
    first, second = wandb.runs
    assert first.arguments["id"] == second.arguments["id"]
    assert [step for step, _ in second.rows] == result.curves[0][0].tolist()
    assert not wandb.logins


def test_a_tracker_that_is_added_later_gets_the_curve_from_its_start(package):
    with pytest.raises(OSError, match="a fault"):
        train([FailAt(60)])
    result = engram.resume("run", hooks=[KINDS[package.name]("p")])
    assert all(steps == result.curves[4][0].tolist() for steps in package.steps().values())


def test_the_command_line_resumes_with_the_project_of_the_run(package, capsys):
    main(f"train random cartpole --steps 20 --seeds 2 --out run --{package.name} p -q".split())
    main(["resume", "run", "-q"])
    assert {run.arguments["project"] for run in package.runs} == {"p"}
    assert len(package.runs) == 4
    assert len(package.server) == 2
    lines = capsys.readouterr().out.splitlines()
    torn = [line for line in lines if line.startswith("a line")]
    assert len(lines) - len(torn) == 2  # the two results
    assert not torn or package.name == "wandb"  # which prints nothing itself if it is silent
    main(["resume", "run", f"--{package.name}", "another"])
    assert package.runs[-1].arguments["project"] == "another"
    assert len(package.server) == 4


def test_without_a_run_folder_each_training_has_a_group_of_its_own(packages):
    for _ in range(2):
        train([engram.Trackio("p")], seeds=1, steps=20, out=None)
    groups = [run.arguments["group"] for run in packages["trackio"].runs]
    assert len(set(groups)) == 2
    assert all(steps[-1] == 20 for steps in packages["trackio"].steps().values())


def test_the_runs_that_have_begun_are_finished_if_another_cannot(package):
    package.error = ValueError("the server\nis away")
    words = error_of(train, [KINDS[package.name]("p")])
    assert "could not begin a run (the server is away)" in words
    assert [run.finished is not None for run in package.runs] == [True]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_missing_is_told_before_anything_trains(
    packages, monkeypatch, capsys, name, tmp_path
):
    def error_line(*options):
        with pytest.raises(SystemExit):
            main(["train", "random", "cartpole", *options])
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().err

    assert "cannot be called 'a/b'" in error_line(f"--{name}", "a/b")
    assert "choose one of the two" in error_line("--quiet", "--verbose")
    monkeypatch.setitem(sys.modules, name, None)
    assert f"is not installed: pip install 'engram-rl[{name}]'" in error_line(f"--{name}", "p")


def test_a_missing_login_is_told_and_never_asked_for(packages):
    packages["wandb"].has_login = False
    assert "has no login here: run `wandb login`" in error_of(engram.WandB, "p")
    assert packages["wandb"].logins == [(False, False)]
    packages["wandb"].login = lambda: True  # of a version that can only ask
    assert "too old" in error_of(engram.WandB, "p")


def test_a_damaged_record_is_told(package, tmp_path):
    (tmp_path / f"{package.name}.json").write_text("{")
    with pytest.raises(EngramError, match="remove it"):
        engram.loggers.trackers.read_record(tmp_path, package.name)
