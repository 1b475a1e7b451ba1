"""Atari results: tables next to published returns, and the claims that they decide."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import binomtest

from engram.agents import make
from engram.errors import EngramError
from engram.paper import atari_page, atari_runs, atari_scores, report, validation
from engram.paper.atari import ATARI
from engram.paper.atari_runs import LONG, MORE_GAMES, PAPER_GAMES, Job
from engram.provenance import describe_machine


def test_plan_has_each_run_once():
    assert len({job.name for job in atari_runs.PLAN}) == len(atari_runs.PLAN) == 60 + 28 + 3


@pytest.mark.parametrize("agent", ["dqn", "mbec++", "nec"])
def test_short_runs_start_learning_earlier(agent):
    made = atari_runs.make_agent(Job(agent, "pong", 10_000, 0))
    assert made.epsilon_decay == 1_000
    assert made.learning_starts == 500


def test_agent_without_learning_starts_has_no_such_option():
    assert atari_runs.make_agent(Job("mfec", "pong", 10_000, 0)).epsilon_decay == 1_000


def test_fixed_weight_has_its_own_name_and_options():
    learned = Job("mbec++", "riverraid", 2_500_000, 0)
    fixed = Job("mbec++", "riverraid", 2_500_000, 0, 0.1)
    assert learned.name == "riverraid-mbec++-10000k-0"
    assert fixed.name == "riverraid-mbec++-beta=0.1-10000k-0"
    assert [atari_runs.make_agent(job).fixed_beta for job in (fixed, learned)] == [0.1, None]


def test_value_and_realized_return_are_means_of_the_last_tenth():
    curve = {"q_max": [0.0] * 18 + [4.0, 6.0], "realized_return": [0.0] * 18 + [1.0, 2.0]}
    other = {"q_max": [1.0], "realized_return": [2.5]}
    assert atari_page.value_and_return([curve, other, {"return": [1.0]}]) == "3.0, 2.0"
    assert atari_page.value_and_return([{"return": [1.0]}]) == "–"


def test_row_with_other_options_or_test_protocol_is_trained_again(
    tmp_path, write_rows, monkeypatch
):
    job = Job("dqn", "hero", 100_000, 0)
    write_rows(made_up_row("dqn", "hero", 10.0))
    assert atari_runs.missing(tmp_path, [job]) == []
    changed = make("dqn", "atari", learning_starts=5_000, epsilon_decay=1e4, gamma=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(atari_runs, "make_agent", lambda job: changed)
        assert atari_runs.missing(tmp_path, [job]) == [job]
        text = atari_page.describe_other_options(atari_runs.read_rows(tmp_path))
        assert "- 1 run: gamma 0.99, now 0.5\n" in text
    assert atari_page.describe_other_options(atari_runs.read_rows(tmp_path)) == ""
    monkeypatch.setattr(validation, "VALIDATIONS", 3)
    assert atari_runs.missing(tmp_path, [job]) == [job]


def test_returns_are_normalized_by_random_and_human():
    assert atari_scores.human_normalized(1.7, "breakout") == pytest.approx(0)
    assert atari_scores.human_normalized(30.5, "breakout") == pytest.approx(100)


def made_up_row(agent, game, test_return, seed=0, steps=100_000):
    return {
        "agent": agent,
        "game": game,
        "steps": steps,
        "seed": seed,
        "test_return": test_return,
        "curve": {"steps": [50_000, steps], "return": [None, test_return]},
    }


def test_agent_with_more_games_is_also_aggregated_over_its_own():
    everyone = {
        "few": {"breakout": 30.5},
        "many": {"breakout": 30.5, "pong": 14.6},
        "published": {"breakout": 1.7, "pong": -20.7, "hero": 0.0},
    }
    lines = [line[:4] for line in atari_scores.aggregates(everyone, ["few", "many"])]
    assert lines == [
        ["few, many, published", "1", "few", "100.0"],
        ["few, many, published", "1", "many", "100.0"],
        ["few, many, published", "1", "published", "0.0"],
        ["many, published", "2", "many", "100.0"],
        ["many, published", "2", "published", "0.0"],
    ]


def test_returns_are_shown_beside_published_ones_and_aggregated_over_shared_games(tmp_path):
    rows = [
        made_up_row("mbec++", "breakout", 16.1, 0),
        made_up_row("mbec++", "breakout", 18.1, 1),
        made_up_row("dqn", "breakout", 1.7),
        made_up_row("mbec++", "pong", 14.6),
        made_up_row("mbec++", "pong", -20.7, steps=2_500_000),
        # an ablation, not another seed
        made_up_row("mbec++", "pong", 3.0, steps=2_500_000) | {"beta": 0.1},
    ]
    page = atari_scores.sections(rows)
    assert "| breakout | 17.1 ± 1.4 | 1.7 | 6.1 | 11.9 | 1.7 | 30.5 |" in page
    # The paper's table of 400,000 frames lacks Pong.
    assert "| pong | 14.6 | – | – | – | -20.7 | 14.6 |" in page
    # 17.1 is (17.1 - 1.7) / (30.5 - 1.7) of the way to a human; both agents have Breakout alone.
    assert "| mbec++, dqn, SimPLe, MBEC++, paper | 1 | mbec++ | 53.5 | 53.5 | 53.5 |" in page
    assert "| mbec++, dqn, SimPLe, MBEC++, paper | 1 | SimPLe | 15.3 | 15.3 | 15.3 |" in page
    assert "## 10,000,000 emulator frames" in page
    assert "would make\n40,000,000 for its MBEC++ alone" in page
    assert "| pong | -20.7 |" in page
    assert "| Rainbow | dopamine legacy TF | 55 | 107.7 | 39.7 | same |" in page
    atari_scores.draw(rows, tmp_path)
    names = {f"{kind}-{n}.png" for kind in ("scores", "curves") for n in (400_000, 10_000_000)}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_without_rows_there_are_no_sections(tmp_path):
    assert atari_scores.sections([]) == ""
    atari_scores.draw([], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def machine():
    return describe_machine()


@pytest.fixture
def write_rows(tmp_path, machine):
    """Writes rows as the campaign does."""

    def write(*rows):
        for row in rows:
            job = atari_runs.job_of(row)
            job.file(tmp_path).parent.mkdir(parents=True, exist_ok=True)
            present = {"options": asdict(atari_runs.make_agent(job)), "test": job.test}
            job.file(tmp_path).write_text(json.dumps(present | machine | row))

    return write


def find_verdict(results, text):
    verdicts = ATARI.verdicts(results).items()
    (result,) = [result for claim, result in verdicts if text in claim.text]
    return result


def beats_simple(game):
    return f"mbec++ is better than SimPLe on {game}."


SIMPLE = {"asterix": 668.0, "breakout": 6.1, "fishing_derby": -94.5, "hero": 621.5}


@pytest.mark.parametrize(("sign", "expected"), [(1, "holds"), (-1, "does not hold")])
def test_five_seeds_decide_the_comparison_with_simple(tmp_path, write_rows, sign, expected):
    assert not ATARI.is_done(tmp_path)
    write_rows(
        *(
            made_up_row("mbec++", game, simple + sign * (5 + seed), seed)
            for game, simple in SIMPLE.items()
            for seed in range(5)
        )
    )
    result = find_verdict(tmp_path, "taken together")
    assert result.verdict == expected
    # The middle seed is 7 off, in standard deviations of 294.1, 2.8, 3 and 1281.3.
    mean = sign * 7 * (1 / 294.1 + 1 / 2.8 + 1 / 3.0 + 1 / 1281.3) / 4
    assert result.comparisons[0].mean == pytest.approx(mean)
    assert find_verdict(tmp_path, beats_simple("Hero")).verdict == expected
    write_rows(
        *(made_up_row("mbec++", "breakout", 6.1 + 2.8 * (1 + seed), seed) for seed in range(5))
    )
    alone = find_verdict(tmp_path, beats_simple("Breakout"))
    assert (alone.verdict, alone.comparisons[0].mean) == ("holds", pytest.approx(3))


def test_same_comparison_with_simple_is_made_for_dqn(tmp_path, write_rows):
    write_rows(
        *(
            made_up_row(agent, game, simple + 5 + seed, seed)
            for agent in ("mbec++", "dqn")
            for game, simple in SIMPLE.items()
            for seed in range(5)
        )
    )
    result = find_verdict(tmp_path, "taken together")
    assert result.baseline[0].mean == result.comparisons[0].mean
    assert report.describe_verdict(result) == "holds (of dqn: holds)"


@pytest.mark.parametrize(("sign", "expected"), [(1, "does not hold"), (-1, "holds")])
def test_games_with_simple_ahead_are_claims_of_the_opposite(tmp_path, write_rows, sign, expected):
    rows = [made_up_row("mbec++", "alien", 378.3 + sign * (5 + seed), seed) for seed in range(5)]
    write_rows(*rows)
    assert find_verdict(tmp_path, "SimPLe is better than mbec++ on Alien").verdict == expected
    missing = find_verdict(tmp_path, "SimPLe is better than mbec++ on Gopher")
    assert missing.verdict == "not run yet"


def test_seed_that_is_not_in_the_plan_does_not_count(tmp_path, write_rows):
    write_rows(*(made_up_row("mbec++", "hero", 1e4, seed) for seed in (1, 2, 3, 4, 9)))
    assert find_verdict(tmp_path, beats_simple("Hero")).verdict == "not run yet"
    assert ATARI.load(tmp_path).numbers["state"] == "4 of 91 runs"


def test_long_runs_are_compared_by_counting_games(tmp_path, write_rows):
    games = PAPER_GAMES + MORE_GAMES

    def long_rows(agent, returns):
        rows = zip(games, returns, strict=True)
        return [made_up_row(agent, game, value, steps=LONG) for game, value in rows]

    # NEC, MFEC and DQN are all below a million points, and above minus a thousand.
    ours = long_rows("mbec++", [1e6] * 7 + [-1e3] * 7)
    write_rows(*ours[:13])
    assert find_verdict(tmp_path, "half of the games").verdict == "not run yet"
    write_rows(*ours)
    result = find_verdict(tmp_path, "half of the games")
    (comparison,) = result.comparisons
    assert (comparison.what, comparison.mean) == ("share of 14 games − 0.25", 0.25)
    p_value = binomtest(7, 14, 0.25, alternative="greater").pvalue
    assert comparison.p_for == pytest.approx(p_value)
    assert result.verdict == "holds"
    write_rows(*long_rows("dqn", [100.0 * i for i in range(14)]))
    result = find_verdict(tmp_path, "better than dqn")
    # Far ahead on seven games and behind on seven.
    assert (result.comparisons[0].mean, result.verdict) == (0.0, "undecided")
    write_rows(*long_rows("dqn", [1e6] * 4 + [2e6] * 10))
    result = find_verdict(tmp_path, "better than dqn")
    assert result.comparisons[0].what == "share of 10 games − 0.5"  # four are ties
    assert result.verdict == "does not hold"


def test_learned_weight_is_compared_with_the_best_fixed_one(tmp_path, write_rows):
    def row(value, beta=None):
        return made_up_row("mbec++", "riverraid", value, steps=LONG) | {"beta": beta}

    write_rows(row(6900.0), row(2900.0, 0.1), row(900.0, 0.5))
    assert find_verdict(tmp_path, "River Raid").verdict == "not run yet"
    write_rows(row(1500.0, 0.9))
    result = find_verdict(tmp_path, "River Raid")
    assert result.comparisons[0].mean == pytest.approx(4000.0)
    assert result.verdict == "undecided"  # one seed


def test_report_names_the_number_and_budget_of_rows(tmp_path, write_rows):
    games = [(game, seed) for game in PAPER_GAMES for seed in range(5)]
    write_rows(*(made_up_row("mbec++", game, 10.0, seed) for game, seed in games))
    assert report.state(ATARI, tmp_path) == "30 of 91 runs"
    ATARI.draw_figure(tmp_path)
    assert ATARI.figure(tmp_path).exists()
    protocol = dict(report.protocol(ATARI, tmp_path))
    assert (protocol["agent steps"], protocol["emulator frames"]) == ("100,000", "400,000")


def test_rows_with_other_options_are_marked_and_not_mixed_with_present_ones(tmp_path, write_rows):
    rows = [
        made_up_row("mbec++", game, 10.0, seed) | {"training_score": 30.0}
        for game in PAPER_GAMES
        for seed in range(5)
    ]
    present = asdict(atari_runs.make_agent(atari_runs.job_of(rows[0])))
    write_rows(*(row | {"options": present | {"gamma": 0.5}} for row in rows))
    state = "30 of 91 runs, 30 of them with other options †"
    assert report.state(ATARI, tmp_path) == state
    protocol = dict(report.protocol(ATARI, tmp_path))
    assert protocol["other options †"] == "30 runs: gamma 0.5, now 0.99"
    # Three of Gopher's five seeds, none of Hero's.
    write_rows(*(row | {"test_return": 20.0} for row in rows[:-7]))
    assert report.state(ATARI, tmp_path) == "28 of 91 runs, 5 of them with other options †"
    page = atari_page.page(tmp_path)
    assert "- 5 runs: gamma 0.5, now 0.99\n" in page
    assert "| alien | mbec++ | 400,000 | 5 of 5 | 30.0 | 20.0 |" in page
    assert "| gopher | mbec++ | 400,000 | 3 of 5 | 30.0 | 20.0 |" in page
    assert "| hero | mbec++ | 400,000 | 5 of 5 † | 30.0 | 10.0 |" in page


def test_the_share_of_training_that_a_test_holds_is_human_normalized():
    # Random play has 1.7 and a human 30.5 on Breakout: 16.1 is half of the way, 8.9 a quarter.
    assert atari_page.share_held(8.9, 16.1, "breakout") == "50"
    assert atari_page.share_held(8.9, 1.7, "breakout") == "–"


@pytest.mark.parametrize(("steps", "scored"), [(100_000, 25_000), (2_500_000, 250_000)])
def test_the_training_score_is_of_a_million_frames_or_a_quarter(steps, scored):
    assert atari_runs.scored_steps(steps) == scored


def test_older_rows_have_their_curves_mean_as_training_score():
    row = made_up_row("dqn", "hero", 1.0)
    row["curve"] = {"steps": [50_000, 75_000, 90_000, 100_000], "return": [9.0, 9.0, 2.0, 4.0]}
    assert atari_page.training_score(row) == 3.0
    assert np.isnan(atari_page.training_score(row | {"training_score": None}))


def test_removed_option_that_mattered_is_named(tmp_path, write_rows):
    row = made_up_row("mbec++", "hero", 10.0)
    write_rows(row | {"removed_options": {"p_ask": None, "cues": 4}})
    assert report.state(ATARI, tmp_path) == "1 of 91 runs"
    write_rows(row | {"removed_options": {"p_ask": 0.2}})
    protocol = dict(report.protocol(ATARI, tmp_path))
    assert protocol["other options †"] == "1 run: p_ask 0.2, now removed"
    assert "p_ask" in protocol["not as in the paper"]


def test_file_that_is_no_row_is_refused(tmp_path, write_rows):
    write_rows(made_up_row("mbec++", "hero", 10.0))
    Job("mbec++", "hero", 100_000, 0).file(tmp_path).write_text('{"agent": "mbec++"}')
    with pytest.raises(EngramError, match="is no row of the campaign"):
        ATARI.verdicts(tmp_path)
