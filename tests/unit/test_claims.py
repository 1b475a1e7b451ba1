"""Claims are decided by the right comparisons, checked by results made up by hand."""

import jax
import numpy as np
import pytest

from engram.agents import make
from engram.envs import get_task
from engram.page import Heading, Image, Table, Text, to_html, to_markdown
from engram.paper import experiments, report
from engram.paper.convergence import CONVERGENCE, POINTS, fixed_start_task, relative_errors
from engram.paper.descriptions import describe_machines, describe_preset
from engram.paper.experiment import ClaimVerdict, ExperimentResults
from engram.paper.noisy_control import NOISY, NOISY_CONTROL, RIVALS
from engram.paper.runs import Run, RunResult, differing_options
from engram.paper.verdicts import Comparison, verdict

SEEDS = np.arange(10.0)


def find_claim(experiment, text):
    (claim,) = [claim for claim in experiment.claims if text in claim.text]
    return claim


def made_up_results(differences):
    """MBEC++ is ahead of each rival on each task by the given differences, of every seed."""
    runs = {(task, "mbec++"): result(SEEDS) for task in NOISY}
    for rival in RIVALS:
        for task in NOISY:
            runs[task, rival] = result(SEEDS - differences.get((rival, task), 0.0))
    return ExperimentResults(runs, {})


def result(returns):
    return RunResult({name: {"per_seed": returns.tolist()} for name in ("final", "auc")}, {}, {})


def test_claim_of_a_lead_is_decided_per_rival():
    """Ten seeds behind DQN on one task: p = 1/1,024, which is 0.0088 after Holm over nine tasks."""
    differences = {(rival, task): 1.0 for rival in RIVALS for task in NOISY}
    differences["dqn", NOISY[3]] = -1.0
    results = made_up_results(differences)
    claims = {rival: find_claim(NOISY_CONTROL, f"mbec++ leads {rival} on all") for rival in RIVALS}
    comparisons = {rival: claim.comparisons(results) for rival, claim in claims.items()}
    assert [len(family) for family in comparisons.values()] == [9] * 4
    assert verdict(comparisons["dqn"]) == "does not hold"
    assert {verdict(comparisons[rival]) for rival in RIVALS[1:]} == {"holds"}


def made_up_values(mfec):
    """Values of three seeds with the true value 20."""
    values = {f"K_w={k}": [[20.0 + error] * POINTS] * 10 for k, error in ((1, 4), (5, 1), (15, -1))}
    return ExperimentResults({}, {"true": 20.0, "values": values | {"MFEC, max": mfec}})


def test_relative_errors_are_means_of_the_last_quarter():
    seeds = [[0.0] * 15 + [59.0] * 5, [0.0] * 15 + [10.0] * 5]
    assert relative_errors(made_up_values(seeds), "MFEC, max") == pytest.approx([1.95, -0.5])


@pytest.mark.parametrize(("value", "expected"), [(59.0, "holds"), (20.0, "does not hold")])
def test_max_rule_overestimates_if_its_error_is_positive(value, expected):
    results = made_up_values([[value] * POINTS] * 10)
    claim = find_claim(CONVERGENCE, "max rule")
    assert verdict(claim.comparisons(results)) == expected
    converges = find_claim(CONVERGENCE, "converges to the true one")
    assert verdict(converges.comparisons(results)) == "holds"  # errors of 5% are below 10%
    better = find_claim(CONVERGENCE, "better with K_w > 1")
    assert verdict(better.comparisons(results)) == "holds"


def test_convergence_starts_all_episodes_in_one_state():
    task, original = fixed_start_task(100), get_task("cartpole-gaussian")
    states = [task.jax_env.reset(task.env_params, jax.random.key(seed))[1] for seed in (1, 2)]
    np.testing.assert_array_equal(*states)
    drawn = [original.jax_env.reset(task.env_params, jax.random.key(seed))[1] for seed in (1, 2)]
    assert not np.array_equal(*drawn)


def test_verdict_of_the_same_claim_about_dqn_is_shown():
    comparison = Comparison("", 1.0, 1.0, 1.0, 0.01, 1.0)
    assert report.describe_verdict(ClaimVerdict("holds", [comparison])) == "holds"
    shown = report.describe_verdict(ClaimVerdict("holds", [comparison], [comparison]))
    assert shown == "holds (of dqn: holds)"


def test_p_values_as_claimed_are_shown_uncorrected_and_those_against_by_holm():
    table = report.comparison_table([Comparison(str(i), 0, 0, 0, 0.03, 0.02) for i in range(2)])
    assert [row[3:] for row in table.rows] == [["0.03", "0.04"]] * 2


def test_experiments_are_selected_by_name_or_together():
    def names(*given):
        return [experiment.name for experiment in experiments.select(given)]

    assert names("all") == list(experiments.EXPERIMENTS)
    ours = {"clean-control", "engram-preset", "engram-pieces", "mbec-defaults", "new-seeds"}
    ours |= {"navigation-parts", "return-bound", "return-bound-engram"}
    assert set(names("all")) - set(names("paper")) == ours
    assert names("ablations", "noisy-control", "ablations") == ["noisy-control", "ablations"]


@pytest.mark.parametrize("experiment", experiments.EXPERIMENTS.values(), ids=lambda e: e.name)
def test_declarations_are_complete(experiment):
    assert sum(map(bool, (experiment.runs, experiment.compute, experiment.collect))) == 1
    assert experiment.runs or experiment.presets
    texts = [claim.text for claim in experiment.claims]
    assert len(set(texts)) == len(texts)
    files = {run.file(report.Path()) for run in experiment.runs}
    assert len(files) == len(experiment.runs)
    assert set(experiment.quick_runs) <= set(experiment.runs)


def test_labels_mean_the_same_agent_in_all_experiments():
    agents = {}
    for experiment in experiments.EXPERIMENTS.values():
        for run in experiment.runs:
            assert agents.setdefault((run.label, run.folder), run.agent) == run.agent


@pytest.mark.parametrize("preset", ["paper", "engram"])
def test_preset_of_an_agent_is_named(preset):
    assert describe_preset(make("mbec++", preset)) == f"preset `{preset}`"
    changed = make("mbec++", preset, p_refine=0.7)
    assert describe_preset(changed) == f"preset `{preset}` with p_refine=0.7"
    assert describe_preset(make("random")) == "no options"


def test_options_that_a_file_lacks_had_their_default():
    assert differing_options(make("dqn"), {}) == []
    assert differing_options(make("dqn", gamma=0.5), {}) == ["gamma 0.99"]
    assert differing_options(make("dqn"), {"gamma": 0.5, "removed": 1}) == ["gamma 0.5"]


def test_seeds_are_a_count_or_numbers():
    run = Run("dqn", make("dqn"), "cartpole", "classic")
    assert run.seed_numbers == tuple(range(10))
    chosen = Run("dqn", make("dqn"), "cartpole", "classic", seeds=(3, 7))
    assert (chosen.seed_numbers, chosen.num_seeds) == ((3, 7), 2)


def test_machines_are_named_once_with_all_commits():
    protocols = [
        {"device": "cpu", "versions": {"jax": "0.10"}, "commit": commit}
        for commit in ("0123456789abc-changed", "fedcba9876543", "fedcba9876543")
    ]
    expected = "cpu, JAX 0.10, commits 012345678-changed, fedcba987"
    assert describe_machines(protocols) == expected


def test_page_is_the_same_as_markdown_and_html(tmp_path):
    image = tmp_path / "one.png"
    image.write_bytes(b"picture")
    blocks = [
        Heading("A & B", 1),
        Text("*so* `it` is"),
        Table(["x"], [["1 < 2"]], summary="more"),
        Image(image, "an image"),
    ]
    assert to_markdown(blocks, tmp_path) == (
        "# A & B\n\n*so* `it` is\n\n<details><summary>more</summary>\n\n"
        "| x |\n|---|\n| 1 < 2 |\n\n</details>\n\n![an image](one.png)\n"
    )
    html = to_html(blocks, "A & B")
    for part in (
        "<h1>A &amp; B</h1>",
        "<em>so</em> <code>it</code> is",
        "<td>1 &lt; 2</td>",
        "<summary>more</summary>",
        "base64,cGljdHVyZQ==",
    ):
        assert part in html
