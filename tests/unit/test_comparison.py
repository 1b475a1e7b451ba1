"""Comparisons of runs agree with numbers worked out by hand."""

import math

import pytest
from run_dir_helpers import sentence, write_run

from engram.comparison import compare
from engram.errors import EngramError


def flat(*finals):
    """Curves of seeds 0, 1, ... that have one return throughout."""
    return {seed: [value, value] for seed, value in enumerate(finals)}


def refused(*words, **arguments):
    with pytest.raises(EngramError) as excinfo:
        compare(**arguments)
    sentence(excinfo, *words)


def test_scores_and_differences_by_hand(tmp_path):
    first = write_run(tmp_path / "dqn", flat(10.0, 20.0, 30.0, 40.0, 50.0, 60.0))
    curves = {seed: [0.0, 10.0 * seed + 20.0 + seed] for seed in range(6)}
    other = write_run(tmp_path / "ppo", curves, agent="ppo")
    (task,) = compare([first, other]).tasks
    dqn, ppo = task.runs
    assert (task.task, task.steps) == ("cartpole", 20)
    assert (dqn.label, dqn.final.value, dqn.area.value, dqn.iqm.value) == ("dqn", 35, 35, 35)
    assert dqn.final.interval == dqn.area.interval
    assert 10 <= dqn.final.interval[0] < 35 < dqn.final.interval[1] <= 60
    assert ppo.final.per_seed == {0: 20.0, 1: 31.0, 2: 42.0, 3: 53.0, 4: 64.0, 5: 75.0}
    assert ppo.area.value == pytest.approx(ppo.final.value / 2)  # a line from 0 to the final return
    final, area = task.differences
    assert (final.label, final.baseline, final.measure) == ("ppo", "dqn", "final")
    assert final.mean.per_seed == {0: 10.0, 1: 11.0, 2: 12.0, 3: 13.0, 4: 14.0, 5: 15.0}
    assert final.mean.value == 12.5
    assert 10 <= final.mean.interval[0] < 12.5 < final.mean.interval[1] <= 15
    assert final.p_value == pytest.approx(2 / 64)  # all signs and none, of 64 flips
    # 20 wins once and ties once, then 31, 42 and 53 win 3, 4 and 5 times, and 64 and 75 always
    assert final.p_improvement == pytest.approx((1.5 + 3 + 4 + 5 + 6 + 6) / 36)
    assert area.measure == "area"
    assert area.mean.per_seed[0] == pytest.approx(10.0 - 10.0)


def test_only_equal_seeds_are_compared_and_few_have_no_interval(tmp_path):
    first = write_run(tmp_path / "dqn", {seed: [float(seed)] for seed in (1, 2, 3)})
    other = write_run(tmp_path / "ppo", {seed: [5.0] for seed in (2, 3, 4, 7, 8)}, agent="ppo")
    comparison = compare([first, other])
    final = comparison.tasks[0].differences[0]
    assert final.mean.per_seed == {2: 3.0, 3: 2.0}
    assert final.mean.interval is None
    assert final.p_value == 0.5
    text = str(comparison)
    assert "| dqn | 3 | 2 (seeds 1, 2, 3) | 2 (seeds 1, 2, 3) | 2 |" in text
    assert "| ppo | 5 | 5 (5 to 5) | 5 (5 to 5) | 5 (5 to 5) |" in text
    assert "| ppo | final return | 2 | 2.5 (seeds 3, 2) | 1.00 | 0.5 |" in text
    assert "Fewer than 5 seeds have no interval" in text
    assert "With fewer than 6 equal seeds p cannot be below 0.05" in text


def test_each_task_has_its_own_tables_and_baseline(tmp_path):
    paths = [
        write_run(tmp_path / f"{agent}-{task}", flat(1.0, 2.0), agent=agent, task=task)
        for task, agents in (("cartpole", "ab"), ("acrobot", "ba"), ("maze3", "c"))
        for agent in agents
    ]
    comparison = compare(paths)
    assert [(task.task, [run.label for run in task.runs]) for task in comparison.tasks] == [
        ("cartpole", ["a", "b"]),
        ("acrobot", ["b", "a"]),
        ("maze3", ["c"]),
    ]
    assert comparison.tasks[2].differences == []
    for baseline in (paths[1], str(paths[1])):
        tasks = compare(paths[:4], baseline).tasks
        assert [task.differences[0].baseline for task in tasks] == ["b", "b"]
    added = compare(paths[:1], baseline=paths[1])
    assert added.tasks[0].differences[0].baseline == "b"
    refused("No run of maze3 is a b", "leave the baseline out", paths=paths, baseline=paths[1])


def test_the_page_has_tables_and_learning_curves(tmp_path):
    runs = [write_run(tmp_path / agent, flat(1.0, 2.0), agent=agent) for agent in ("dqn", "ppo")]
    text = compare(runs).to_html()
    assert text.startswith("<!doctype html>")
    assert "<th>mean difference</th>" in text
    assert 'src="data:image/png;base64,' in text
    assert "http" not in text


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    dqn = write_run(tmp_path / "dqn", flat(1.0, 2.0))
    maze = write_run(tmp_path / "maze", flat(1.0), task="maze3", env_kwargs={"size": 3})
    large = write_run(tmp_path / "large", flat(1.0), task="maze3", env_kwargs={"size": 7})
    longer = write_run(tmp_path / "long", flat(1.0, 2.0), agent="ppo", steps=30)
    seeds = write_run(tmp_path / "seeds", {5: [1.0], 6: [1.0]}, agent="ppo")
    refused("one run only", "name another of the same task", paths=[dqn])
    refused("task or env_kwargs", "maze3 size=3", "maze3 size=7", paths=[maze, large])
    refused("20 steps", "30", "same --steps", paths=[dqn, longer])
    refused("no seed in common (5, 6, and 0, 1)", "train both", paths=[dqn, seeds])


def test_unfinished_runs_and_seeds_without_a_return_are_refused(tmp_path):
    dqn = write_run(tmp_path / "dqn", flat(1.0, 2.0))
    half = write_run(tmp_path / "half", flat(1.0, 2.0), agent="ppo", steps=10)
    config = (half / "config.json").read_text().replace('"steps": 10', '"steps": 20')
    (half / "config.json").write_text(config)
    nan = write_run(tmp_path / "nan", flat(1.0, math.nan), agent="ppo")
    refused("has done 10 of its 20 steps", "engram resume", paths=[dqn, half])
    refused("No episode of seed 1 of", "train longer", paths=[dqn, nan])
