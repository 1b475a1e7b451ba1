"""The campaign takes what will be done in time, writes rows that are whole, and keeps its ledger true."""

import itertools
import json
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from probes import Drift
from scipy.stats import binomtest

from engram.agents import make
from engram.cli import main
from engram.errors import EngramError
from engram.experiments import campaign, pace, reporting, running, scoreboard, trials, validation
from engram.experiments.atari import ATARI
from engram.experiments.campaign import Job, next_batch
from engram.loop import games
from engram.provenance import describe_machine
from engram.records import RunFolder
from engram.tasks import find
from engram.tasks.atari import GAMES

PLAN = (Job("dqn", "breakout", 160, 0), Job("dqn", "pong", 160, 1), Job("mbec++", "pong", 160, 0), Job("dqn", "pong", 1_600_000, 0))

TINY = {"hidden": 8, "layers": 1, "batch": 4, "replay": 200, "learn_start": 8, "convolutions": "nature"}


@pytest.fixture
def small(monkeypatch):
    """A tiny network, and few games to judge it by, of which none may last long."""
    monkeypatch.setattr(campaign, "agent_of", lambda job: make("dqn", **TINY))
    monkeypatch.setattr("engram.tasks.atari.LONGEST", 200)
    monkeypatch.setattr(games, "TOGETHER", 2)
    for name, value in {"VALIDATIONS": 4, "VALIDATION_GAMES": 1, "TEST_GAMES": 3}.items():
        monkeypatch.setattr(pace, name, value)


def measured(results, job, speed):
    """A row as if the job had been trained at so many steps a second."""
    job.file(results).parent.mkdir(parents=True, exist_ok=True)
    row = asdict(job) | {"steps_per_second": speed, "runs_in_one_program": 2, "judging_seconds": 40.0, "test": job.test}
    row |= {"validation": [0.0] * pace.VALIDATIONS, "test_games": [0.0] * pace.TEST_GAMES}
    row["options"] = asdict(campaign.agent_of(job))
    job.file(results).write_text(json.dumps(row | describe_machine()))


def test_the_plan_has_each_run_once():
    assert len({job.name for job in campaign.PLAN}) == len(campaign.PLAN) == 60 + 28 + 3


def test_every_agent_of_games_can_be_tried():
    for agent in ("dqn", "mbec++", "mfec", "nec"):
        made = campaign.agent_of(Job(agent, "pong", 10_000, 0))
        assert made.epsilon_decay == 1_000
        assert getattr(made, "learn_start", 500) == 500


def test_a_fixed_weight_is_another_agent():
    fixed, learnt = Job("mbec++", "riverraid", 2_500_000, 0, 0.1), Job("mbec++", "riverraid", 2_500_000, 0)
    assert (fixed.name, learnt.name) == ("riverraid-mbec++-beta=0.1-10000k-0", "riverraid-mbec++-10000k-0")
    assert [campaign.agent_of(job).fixed_beta for job in (fixed, learnt)] == [0.1, None]


def test_runs_of_one_kind_share_a_program_as_far_as_time_and_memory_allow(tmp_path, small):
    names = lambda batch: [job.name for job in batch.jobs]  # noqa: E731
    assert names(next_batch(tmp_path, 600, 8, PLAN)) == ["breakout-dqn-0k-0", "pong-dqn-0k-1"]
    assert names(next_batch(tmp_path, 600, 1, PLAN)) == ["breakout-dqn-0k-0"]
    assert next_batch(tmp_path, 10, 8, PLAN) is None  # not even compiled by then
    for job in (*PLAN[:3], Job("dqn", "breakout", 1_600_000, 0)):
        measured(tmp_path, job, 1_000.0)
    # Compilation, loading, 1,600,000 steps, and as much judging as a run took. Two runs had 1,000 steps a second, of which the second takes
    # 4,000 / 13,500 of what one alone takes: 2 * 1,600 s / 1.296.
    assert next_batch(tmp_path, 2_520, 8, PLAN) is None
    batch = next_batch(tmp_path, 2_530, 8, PLAN)
    assert batch is not None
    assert batch.seconds == pytest.approx(30 + 4 + 2_468.6 + 20, abs=0.1)


def test_a_stretch_adds_rows_and_says_what_is_left(tmp_path, small):
    said = []
    plan = (*PLAN[:2], Job("dqn", "pong", 10**9, 0))
    campaign.stretch(tmp_path, tmp_path / "scratch", 4.0, 8, said.append, plan)
    row = json.loads(PLAN[0].file(tmp_path).read_text())
    assert (row["game"], row["seed"], row["steps"], row["emulator_frames"], row["runs_in_one_program"]) == ("breakout", 0, 160, 640, 2)
    assert len(row["test_games"]) == 3
    assert row["test_score"] == pytest.approx(np.mean(row["test_games"]))
    assert not any(np.isnan(row["validation"]))
    assert row["curve"]["steps"][-1] == 160
    assert np.isfinite(row["curve"]["value"]).all()  # at each point of the curve
    assert len(row["curve"]["value"]) == len(row["curve"]["score"]) == len(row["curve"]["steps"])
    assert [job.name for job in campaign.missing(tmp_path, plan)] == [plan[2].name]
    assert said[0].startswith("2 runs, about 1 minute on an H200 (what it takes here is not known before one is done): breakout-dqn-0k-0")
    assert "Left of the plan: 1, for which" in said[-1]
    assert said[-1].endswith(" minutes.")  # as long as such runs take here
    page = (tmp_path / "atari" / "README.md").read_text()
    assert page == campaign.page(tmp_path, plan)
    assert "| breakout | dqn | 640 | 1 of 1 |" in page
    assert "| pong | dqn | 4,000,000,000 | 0 of 1 | – | – | – | – |" in page


def test_what_agents_expect_stands_beside_what_they_earned():
    curve = {"value": [0.0] * 18 + [4.0, 6.0], "earned": [0.0] * 18 + [1.0, 2.0]}  # of which the last tenth counts
    assert campaign.expectations([curve, {"value": [1.0], "earned": [2.5]}, {"score": [1.0]}]) == "3.0, 2.0"
    assert campaign.expectations([{"score": [1.0]}]) == "–"


def test_what_was_stopped_goes_on_first_and_is_not_trained_twice(tmp_path, small, monkeypatch):
    plan, scratch, said = PLAN[:2], tmp_path / "scratch", []
    with monkeypatch.context() as patch:  # killed when the trained agents were tested, before a row is written
        patch.setattr(campaign, "row", None)
        with pytest.raises(TypeError):
            campaign.stretch(tmp_path, scratch, 4.0, 2, said.append, plan)
    assert campaign.missing(tmp_path, plan) == list(plan)
    monkeypatch.setattr("engram.loop.consoles.Consoles.advance", lambda *_: pytest.fail("it was trained already"))
    campaign.stretch(tmp_path, scratch, 4.0, 1, said.append, plan)
    assert "2 runs, begun before" in said[1]
    assert not campaign.missing(tmp_path, plan)
    assert not list(scratch.rglob("*.safetensors"))


def test_a_row_that_was_trained_or_judged_otherwise_is_trained_again(tmp_path, small, monkeypatch):
    measured(tmp_path, PLAN[0], 1_000.0)
    assert campaign.missing(tmp_path, PLAN[:2]) == [PLAN[1]]
    row = json.loads(PLAN[0].file(tmp_path).read_text())
    del row["options"]["double"]  # as before there was a choice
    PLAN[0].file(tmp_path).write_text(json.dumps(row))
    assert campaign.missing(tmp_path, PLAN[:2]) == [PLAN[1]]
    with monkeypatch.context() as patch:
        patch.setattr(campaign, "agent_of", lambda job: make("dqn", **TINY, double=True, clip=2.0))
        assert campaign.missing(tmp_path, PLAN[:2]) == list(PLAN[:2])
        assert "to be trained again:\n\n- 1 run: clip 10.0, now 2.0; double False, now True\n" in campaign.outdated(campaign.rows(tmp_path))
    assert campaign.outdated(campaign.rows(tmp_path)) == ""
    monkeypatch.setattr(pace, "VALIDATIONS", 3)
    assert campaign.missing(tmp_path, PLAN[:2]) == list(PLAN[:2])


def test_what_is_tested_is_each_runs_own_best_policy(tmp_path, small, monkeypatch):
    agent = make("mbec++", **TINY, slots=64, neighbours=3, learning_rate=1e-2)
    monkeypatch.setattr(campaign, "agent_of", lambda job: agent)
    told, given = np.array([[1.0, 5.0], [4.0, 2.0], [2.0, 2.0], [4.0, 7.0]]), []  # of a tie the first is kept

    def scores(judge, states, seeds, episodes):
        given.append((jax.tree.map(np.array, states), seeds))
        return np.tile(told[len(given) - 1][:, None] if len(given) <= 4 else np.zeros((2, 1)), episodes)

    monkeypatch.setattr(games.Judge, "scores", scores)
    campaign.run(PLAN[:2], tmp_path, tmp_path / "scratch", time.monotonic() + 500)
    *validated, (tested, seeds) = given
    assert ([seeds for _, seeds in validated], seeds) == ([[10_000, 10_001]] * 4, [0, 1])
    for r, best in enumerate((1, 3)):
        alike = [all(np.array_equal(a[r], b[r]) for a, b in zip(*map(jax.tree.leaves, (tested, one)), strict=True)) for one, _ in validated]
        assert np.flatnonzero(alike).tolist() == [best]
        assert json.loads(PLAN[r].file(tmp_path).read_text())["validation"] == told[:, r].tolist()


def lost(monkeypatch, left, slow, runs=4, judging=lambda iteration: 0.0):
    """At which of 600 iterations a run is given up that has so much time after the first 30, where 4 runs take 2.5 s an iteration, one
    less 0.5 s less, and all take `slow` times as long. 60 games of each run, at 0.5 s, are to come."""
    for name, value in {"SPEED_ALONE": 1.0, "SPEED_OF_MANY": 2.0, "MARGIN": 1.0}.items():
        monkeypatch.setattr(pace, name, value)
    now = 1_000.0
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now))
    deadline, given_up = pace.Deadline(1_000.0 + left, 600, 0.5), []
    for iteration in range(30, 600, 5):
        if deadline.is_missed(iteration, runs, 60, judging(iteration)):
            given_up.append(iteration)
            runs -= 1
            now += 100.0  # of compiling
        now += 5 * slow(iteration) * pace.takes(runs) + judging(iteration + 5) - judging(iteration)
    return given_up


@pytest.mark.parametrize(("left", "at"), [(1_545, []), (1_544, [60])])
def test_runs_are_given_up_that_keep_all_from_being_done(monkeypatch, left, at):
    assert lost(monkeypatch, left, lambda iteration: 1.0) == at  # 570 iterations of 2.5 s, and 120 s of games


def test_what_it_takes_to_judge_and_to_compile_is_not_taken_for_pace(monkeypatch):
    assert lost(monkeypatch, 1_545 + 300, lambda iteration: 1.0, judging=lambda iteration: 300.0 * (iteration > 40)) == []
    assert lost(monkeypatch, 1_544, lambda iteration: 1.0) == [60]  # 100 s of compiling, and no second one
    # two runs need 1,500 s of the 1,540 left
    assert lost(monkeypatch, 2_100, lambda iteration: 2.0) == [60, 90]


def test_a_time_in_which_others_use_the_processors_costs_one_run_at_most(monkeypatch):
    assert len(lost(monkeypatch, 1_700, lambda iteration: 1.3 if 60 <= iteration < 150 else 1.0)) <= 1


def test_one_run_is_never_given_up(monkeypatch):
    assert lost(monkeypatch, 10, lambda iteration: 1.0, runs=1) == []
    assert lost(monkeypatch, 10, lambda iteration: 1.0, runs=3) == [60, 90]


@pytest.mark.parametrize(("left", "is_missed"), [(1_133, True), (1_135, False)])
def test_there_is_a_margin(monkeypatch, left, is_missed):
    now = 0.0
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now))
    deadline = pace.Deadline(60.0 + left, 600, 0.0)
    deadline.is_missed(30, 2, 0, 0.0)
    now = 60.0  # for 30 iterations; 1,080 s to come, and a twentieth more
    assert deadline.is_missed(60, 2, 0, 0.0) is is_missed


def test_what_is_kept_of_runs_is_theirs():
    best = validation.Best(make("dqn"), find("atari:pong").spec(1, 10), [find("atari:pong")] * 4, range(4), 5)
    best.past, best.states = np.full((6, 4), np.nan), (np.arange(4),)
    best.past[1] = [7.0, 8.0, 9.0, 10.0]
    best.keep([0, 2])
    assert (best.seeds, best.past[1].tolist(), best.states[0].tolist()) == ([0, 2], [7.0, 9.0], [0, 2])


def test_without_an_end_no_run_is_given_up():
    best = validation.Best(make("dqn"), find("atari:pong").spec(1, 10), [find("atari:pong")] * 2, range(2), 5)
    assert not any(best.gives_up(SimpleNamespace(iteration=i)) for i in range(10))


def test_runs_that_are_given_up_leave_the_others_their_rows(tmp_path, small, monkeypatch):
    monkeypatch.setattr(pace, "judging", lambda *_: 0.0 if campaign.rows(tmp_path) else 1e3)  # seconds a game: at first too many
    monkeypatch.setattr(pace, "needed", lambda *_: 0.0)
    said = []
    campaign.stretch(tmp_path, tmp_path / "scratch", 4.0, 2, said.append, PLAN[:2], final=True)
    first, second = (json.loads(job.file(tmp_path).read_text()) for job in PLAN[:2])  # there was time to train the other one alone
    assert [(row["runs_in_one_program"], row["runs_given_up"]) for row in (first, second)] == [(1, 1), (1, 0)]
    assert len(first["test_games"]) == 3
    assert not np.isnan(first["validation"]).any()
    assert [line.split(",")[0] for line in said] == ["2 runs", "1 run", "All runs of the plan are done."]
    assert pace.speed("dqn", 1, [first, second]) == pytest.approx(second["steps_per_second"])


def test_a_final_stretch_goes_on_to_its_end_and_saves_nothing(tmp_path, small, monkeypatch):
    monkeypatch.setattr(RunFolder, "save", lambda *_: pytest.fail("it saved"))
    clock = itertools.count()  # time is over soon after it has begun
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: 10.0 * next(clock)))
    campaign.run(PLAN[:1], tmp_path, tmp_path / "scratch", 15.0, final=True)
    assert not campaign.missing(tmp_path, PLAN[:1])


def test_of_a_final_stretch_so_many_runs_begin_that_those_that_go_on_fit_beside_all(tmp_path, small, monkeypatch):
    monkeypatch.setattr(campaign, "room", lambda job: 2)
    batches = [next_batch(tmp_path, 600, 8, PLAN, final) for final in (False, True)]
    assert [len(batch.jobs) for batch in batches if batch] == [2, 1]


def test_a_stretch_without_time_leaves_the_ledger_as_it_was(tmp_path, small):
    with pytest.raises(EngramError, match="the same command goes on"):
        campaign.run(PLAN[:1], tmp_path, tmp_path / "scratch", time.monotonic() - 1)
    assert campaign.missing(tmp_path, PLAN) == list(PLAN)


def test_a_stretch_of_some_runs_leaves_the_others(tmp_path, small):
    said = []
    campaign.stretch(tmp_path, tmp_path / "scratch", 4.0, 8, said.append, PLAN[:2], only=["pong-dqn"])
    assert [job.name for job in campaign.missing(tmp_path, PLAN[:2])] == [PLAN[0].name]
    assert (tmp_path / "atari" / "README.md").read_text() == campaign.page(tmp_path, PLAN[:2])
    with pytest.raises(EngramError, match="No run of the plan has 'tetris' in its name: they are called like breakout-dqn-0k-0"):
        campaign.stretch(tmp_path, tmp_path / "scratch", 4.0, 8, said.append, PLAN[:2], only=["pong", "tetris"])


def test_the_ledger_is_that_of_the_files():
    results = Path(__file__).parent.parent / "results"
    assert (results / "atari" / "README.md").read_text() == campaign.page(results)
    assert all(row["game"] in GAMES for row in campaign.rows(results))


def test_scores_are_normalised_by_random_and_human():
    assert scoreboard.human_normalised(1.7, "breakout") == pytest.approx(0)
    assert scoreboard.human_normalised(30.5, "breakout") == pytest.approx(100)


def told(agent, game, score, seed=0, steps=100_000):
    curve = {"steps": [50_000, steps], "score": [None, score]}
    return {"agent": agent, "game": game, "steps": steps, "seed": seed, "test_score": score, "curve": curve}


def test_an_agent_that_has_more_games_than_another_is_also_summed_up_over_its_own():
    everyone = {
        "few": {"breakout": 30.5},
        "many": {"breakout": 30.5, "pong": 14.6},
        "published": {"breakout": 1.7, "pong": -20.7, "hero": 0.0},
    }
    lines = [line[:4] for line in scoreboard.aggregates(everyone, ["few", "many"])]
    assert lines == [
        ["few, many, published", "1", "few", "100.0"],
        ["few, many, published", "1", "many", "100.0"],
        ["few, many, published", "1", "published", "0.0"],
        ["many, published", "2", "many", "100.0"],
        ["many, published", "2", "published", "0.0"],
    ]


def test_scores_stand_beside_what_was_published_and_are_summed_up_over_the_games_all_have(tmp_path):
    rows = [told("mbec++", "breakout", 16.1, 0), told("mbec++", "breakout", 18.1, 1), told("dqn", "breakout", 1.7)]
    rows += [told("mbec++", "pong", 14.6), told("mbec++", "pong", -20.7, steps=2_500_000)]
    rows += [told("mbec++", "pong", 3.0, steps=2_500_000) | {"beta": 0.1}]  # an ablation, not one more seed
    page = scoreboard.sections(rows)
    assert "| breakout | 17.1 ± 1.4 | 1.7 | 6.1 | 11.9 | 1.7 | 30.5 |" in page
    assert "| pong | 14.6 | – | – | – | -20.7 | 14.6 |" in page  # the paper's table of 400,000 frames lacks it
    # 17.1 is (17.1 - 1.7) / (30.5 - 1.7) of the way to a human; both agents have Breakout alone
    assert "| mbec++, dqn, SimPLe, MBEC++, paper | 1 | mbec++ | 53.5 | 53.5 | 53.5 |" in page
    assert "| mbec++, dqn, SimPLe, MBEC++, paper | 1 | SimPLe | 15.3 | 15.3 | 15.3 |" in page
    assert "## 10,000,000 emulator frames" in page
    assert "would make 40,000,000 for its MBEC++ alone" in page
    assert "| pong | -20.7 |" in page
    assert "| Rainbow | dopamine legacy TF | 55 | 107.7 | 39.7 | same |" in page
    scoreboard.draw(rows, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {f"{what}-{n}.png" for what in ("scores", "curves") for n in (400_000, 10_000_000)}


def test_without_rows_there_is_nothing_to_compare(tmp_path):
    assert scoreboard.sections([]) == ""
    scoreboard.draw([], tmp_path)
    assert not list(tmp_path.iterdir())


def test_there_is_one_campaign(capsys):
    with pytest.raises(SystemExit):
        main(["campaign", "chess"])
    assert "There is no campaign 'chess': the only one is `engram campaign atari`." in capsys.readouterr().err


def ledger(results, *rows):
    """As the campaign would leave it."""
    for row in rows:
        job = campaign.of_row(row)
        job.file(results).parent.mkdir(parents=True, exist_ok=True)
        as_now = {"options": asdict(campaign.agent_of(job)), "test": "as ever"} | describe_machine()
        job.file(results).write_text(json.dumps(as_now | row))


def verdicts(results):
    names = "River Raid", "half", "DQN", "together", "Asterix.", "Breakout.", "Fishing Derby.", "Hero."
    return {name: outcome for name, (claim, outcome) in zip(names, ATARI.verdicts(results).items(), strict=True) if name in claim.says}


def test_five_seeds_decide_whether_mbecpp_is_ahead_of_simple(tmp_path):
    assert not ATARI.is_done(tmp_path)
    simple = {"asterix": 668.0, "breakout": 6.1, "fishing_derby": -94.5, "hero": 621.5}
    for sign, expected in ((1, "holds"), (-1, "does not hold")):
        rows = [told("mbec++", game, score + sign * (5 + seed), seed) for game, score in simple.items() for seed in range(5)]
        ledger(tmp_path, *rows)
        verdict, (test,) = verdicts(tmp_path)["together"]
        assert verdict == expected
        # the middle seed is 7 off, in standard deviations of 294.1, 2.8, 3 and 1281.3
        assert test.middle == pytest.approx(sign * 7 * (1 / 294.1 + 1 / 2.8 + 1 / 3.0 + 1 / 1281.3) / 4)
    for seed in range(5):  # on one game alone
        ledger(tmp_path, told("mbec++", "breakout", 6.1 + 2.8 * (1 + seed), seed))
    assert [verdicts(tmp_path)[game][0] for game in ("Asterix.", "Breakout.", "Hero.")] == ["does not hold", "holds", "does not hold"]
    assert verdicts(tmp_path)["Breakout."][1][0].middle == pytest.approx(3)
    rows[0]["seed"] = 9  # which is not of the plan
    Job("mbec++", "asterix", 100_000, 0).file(tmp_path).unlink()
    ledger(tmp_path, rows[0])
    assert verdicts(tmp_path)["together"][0] == "not run yet"
    assert ATARI.found(tmp_path).numbers["state"] == "19 of 91 runs"


def test_long_runs_decide_by_games(tmp_path):
    games = campaign.CURVES + campaign.NEXT
    # NEC, MFEC and DQN are all below a million points, and above minus a thousand
    long = [told("mbec++", game, 1e6 if i < 7 else -1e3, steps=campaign.LONG) for i, game in enumerate(games)]
    ledger(tmp_path, *long[:13])
    assert {verdict for verdict, _ in verdicts(tmp_path).values()} == {"not run yet"}
    ledger(tmp_path, *long)
    verdict, (test,) = verdicts(tmp_path)["half"]
    assert (test.what, test.middle) == ("share of 14 games, less 0.25", 0.25)
    assert test.for_it == pytest.approx(binomtest(7, 14, 0.25, alternative="greater").pvalue)
    assert verdict == "holds"
    ledger(tmp_path, *(told("dqn", game, 100.0 * i, steps=campaign.LONG) for i, game in enumerate(games)))
    verdict, (test,) = verdicts(tmp_path)["DQN"]
    assert (test.middle, verdict) == (0.0, "undecided")  # ahead by far in seven, behind in seven
    ledger(tmp_path, *(told("dqn", game, 1e6 if i < 4 else 2e6, steps=campaign.LONG) for i, game in enumerate(games)))
    verdict, (test,) = verdicts(tmp_path)["DQN"]
    assert (test.what, verdict) == ("share of 10 games, less 0.5", "does not hold")  # four are ties


def test_a_learnt_weight_is_held_against_the_best_fixed_one(tmp_path):
    fixed = [told("mbec++", "riverraid", score, steps=campaign.LONG) | {"beta": beta} for beta, score in ((0.1, 2900.0), (0.5, 900.0))]
    ledger(tmp_path, told("mbec++", "riverraid", 6900.0, steps=campaign.LONG), *fixed)
    assert verdicts(tmp_path)["River Raid"][0] == "not run yet"
    ledger(tmp_path, told("mbec++", "riverraid", 1500.0, steps=campaign.LONG) | {"beta": 0.9})
    verdict, (test,) = verdicts(tmp_path)["River Raid"]
    assert test.middle == pytest.approx(4000.0)
    assert verdict == "undecided"  # by one seed


def test_what_the_ledger_has_stands_in_the_report(tmp_path):
    rows = [told("mbec++", game, 10.0, seed) for game in campaign.CURVES for seed in range(5)]
    ledger(tmp_path, *rows)
    assert reporting.state(ATARI, tmp_path) == "30 of 91 runs"
    ATARI.illustrate(tmp_path)
    assert ATARI.picture(tmp_path).exists()
    card = dict(reporting.protocol(ATARI, tmp_path))
    assert (card["agent steps"], card["emulator frames"]) == ("100,000", "400,000")


def test_claims_are_not_judged_by_runs_that_were_trained_otherwise(tmp_path):
    rest = {
        "training_score": 1.0,
        "runs_in_one_program": 1,
        "steps_per_second": 1.0,
        "judging_seconds": 1.0,
        "validation": [1.0],
        "test_games": [1.0],
    }
    rows = [told("mbec++", game, 10.0, seed) | rest for game in campaign.CURVES for seed in range(5)]
    now = asdict(campaign.agent_of(campaign.of_row(rows[0])))
    ledger(tmp_path, *(row | {"options": now | {"act_by_target": False}} for row in rows))
    assert {verdict for verdict, _ in verdicts(tmp_path).values()} == {"not run yet"}
    assert reporting.state(ATARI, tmp_path) == "0 of 91 runs, and 30 that were trained otherwise"
    ATARI.illustrate(tmp_path)
    assert ATARI.picture(tmp_path).exists()
    ledger(tmp_path, *(row | {"test_score": 20.0} for row in rows[:-7]))  # three of gopher's five, none of hero's
    assert reporting.state(ATARI, tmp_path) == "23 of 91 runs, and 7 that were trained otherwise"
    assert verdicts(tmp_path)["Breakout."][0] != "not run yet"
    assert verdicts(tmp_path)["Hero."][0] == "not run yet"
    page = campaign.page(tmp_path)
    assert "| alien | mbec++ | 400,000 | 5 of 5 | 20.0 |" in page
    assert "| gopher | mbec++ | 400,000 | 3 of 5 | 20.0 |" in page  # no mean of both
    assert "| hero | mbec++ | 400,000 | 5 of 5 † | 10.0 |" in page


def test_a_file_that_is_no_row_is_named(tmp_path):
    ledger(tmp_path, told("mbec++", "hero", 10.0))
    Job("mbec++", "hero", 100_000, 0).file(tmp_path).write_text('{"agent": "mbec++"}')
    with pytest.raises(EngramError, match="is not what the campaign writes"):
        ATARI.verdicts(tmp_path)


def test_what_the_campaign_trains_has_no_parts(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["reproduce", "atari", "--part", "0"])
    assert "atari has no parts: it is trained by `engram campaign atari`." in capsys.readouterr().err


def test_trials_are_trained_kept_and_told(tmp_path, small, monkeypatch):
    monkeypatch.setattr("engram.tasks.atari.Arcade.machine", lambda self, count, *_, **__: Drift(count))
    monkeypatch.setattr("engram.tasks.atari._actions", lambda game: 2)
    how = {"games": ("pong", "breakout"), "seeds": 2, "steps": 160, "out": tmp_path / "trials.json", "scratch": tmp_path / "scratch"}
    how |= {"validations": 2}
    assert trials.known(how["out"]) == []
    with pytest.raises(EngramError, match="has no option 'gama'"):
        trials.Run("dqn", set=("gama=0.5",), **how)()
    (tmp_path / "torn.json").write_text("[{")
    with pytest.raises(EngramError, match="mend it, or name another file"):  # before anything is trained
        trials.Run("dqn", **how | {"out": tmp_path / "torn.json", "minutes": -1.0})()
    trials.Run("dqn", set=("gamma=0.5", "double=true"), **how)()
    (trial,) = json.loads(how["out"].read_text())
    assert (trial["options"]["gamma"], trial["options"]["double"], trial["emulator_frames"]) == (0.5, True, 640)
    assert [(run["game"], run["seed"]) for run in trial["runs"]] == [("pong", 100), ("breakout", 100), ("pong", 101), ("breakout", 101)]
    assert all(run["steps"][-1] == 158 for run in trial["runs"])  # of forty points, each of four steps, the mean of the last two
    assert all(len(run[name]) == 20 and run[name][-1] is not None for run in trial["runs"] for name in ("score", "value", "earned"))
    assert all(len(run["validation"]) == 2 and np.isfinite(run["validation"]).all() for run in trial["runs"])
    trials.Run("dqn", set=("double=true", "gamma=0.5"), **how | {"seeds": 1, "games": ("pong",), "steps": 16, "validations": 0})()
    found = json.loads(how["out"].read_text())
    assert found[0] == trial
    assert [line.split(" | ")[1:3] for line in trials.table(found).splitlines()[2:]] == [
        ["gamma 0.5, double True", steps] for steps in ("160", "16")
    ]


def test_who_cannot_be_judged_is_not_trained(tmp_path, small, monkeypatch):
    monkeypatch.setattr("engram.tasks.atari.Arcade.machine", lambda self, count, *_, **__: Drift(count))
    monkeypatch.setattr("engram.tasks.atari._actions", lambda game: 2)
    monkeypatch.setattr("engram.loop.consoles.Consoles.start", lambda driver: pytest.fail("it is trained"))

    monkeypatch.setattr("engram.agents.dqn.DQN.play", lambda agent, state, *_: state.what_only_learning_uses)
    with pytest.raises(AttributeError, match="what_only_learning_uses"):
        trials.Run("dqn", games=("pong",), seeds=1, steps=160, out=tmp_path / "trials.json", scratch=tmp_path / "scratch")()


def test_a_trial_is_told_by_the_last_quarter_of_each_seed():
    first = {"score": [9.0] * 15 + [None, 2.0, 4.0, None, None], "value": [0.0] * 15 + [1.0] * 5, "earned": [0.0] * 15 + [0.5] * 5}
    second = {"score": [9.0] * 15 + [5.0] * 5, "value": [0.0] * 15 + [2.0] * 5, "earned": [0.0] * 15 + [0.3] * 5}
    assert trials.cell([first, second]) == "4.0 (1.5, 0.4)"
    assert trials.cell([first | {"validation": [9.0, 300.0]}, second | {"validation": [9.0, 400.0]}]) == "4.0, 350 (1.5, 0.4)"
    assert trials.cell([second | {"score": [1.0] * 15 + [None] * 5}]) == "–"  # no game was over
    assert trials.shortened([1.0, float("nan")] * 15 + [float("nan"), float("nan")] * 5) == [1.0] * 15 + [None] * 5
