"""What is published is what the files say."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from engram.agents import make
from engram.errors import EngramError
from engram.experiments import choosing, classic, first_try, research, solve, tuning

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["classic", "classic-scaled"])
def test_the_page_of_an_experiment_is_that_of_its_files(folder):
    out = ROOT / "results" / folder
    assert (out / "README.md").read_text(encoding="utf-8") == classic.page(classic.load(out))


def test_the_table_in_the_readme_is_that_of_the_files():
    found = classic.load(ROOT / "results" / "classic")
    table = classic.short_table(found, ROOT / "results")
    assert "187.1" in table  # of the preset engram
    assert classic.BEGIN + "\n" + table + classic.END in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_of_the_search_is_that_of_its_files():
    out, random = ROOT / "results" / "tuning", tuning.random_areas(ROOT / "results" / "classic")
    written = (out / "README.md").read_text(encoding="utf-8")
    assert written == choosing.page(list(tuning.load(out).values()), tuning.candidates(), random)


def test_what_an_agents_page_says_of_cart_pole_is_what_the_files_say():
    out = ROOT / "results" / "solved"
    found = solve.load(out)
    assert (out / "README.md").read_text(encoding="utf-8") == solve.page(found)
    for name, result in found.items():
        assert solve.sentence(name, result) in (ROOT / solve.document(name)).read_text(encoding="utf-8")
        made = asdict(make(name, solve.PRESET))  # options that came later are not in the file
        assert {option: made[option] for option in result["options"]} == result["options"], f"{name} was trained with another preset"


def test_the_tables_of_what_was_tried_are_those_of_the_file():
    page = (ROOT / research.PAGE).read_text(encoding="utf-8")
    assert page == research.written(page, json.loads((ROOT / research.TRIALS).read_text()))


def test_the_page_of_first_tries_is_that_of_its_files():
    out = ROOT / "results" / "first-try"
    found = first_try.load(out)
    assert len(found) == len(first_try.TASKS) * len(first_try.AGENTS)
    assert (out / "README.md").read_text(encoding="utf-8") == first_try.page(found)
    for (_, name), result in found.items():
        made = asdict(first_try.AGENTS[name])
        assert {option: made[option] for option in result["options"]} == result["options"], f"{name} was trained with other options"


def test_a_first_try_is_trained_once_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(first_try, "STEPS", 100)
    run = first_try.Run(("FrozenLake-v1", "Blackjack-v1"), ("random", "dqn"), tmp_path / "out", scratch=tmp_path)
    run()
    assert capsys.readouterr().out.count("done in") == 4
    run()
    assert "done in" not in capsys.readouterr().out
    with pytest.raises(EngramError, match=r"no 'dqn-engramm' in this experiment\. Did you mean dqn-engram"):
        first_try.Run(agents=("dqn-engramm",), out=tmp_path / "out")()
    first_try.Report(tmp_path / "out")()
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert first_try.ahead(first_try.load(tmp_path / "out"), "dqn") == "0 of 0 environments"
    assert "| ppo | – | – | – | – | – | – |" in page
    assert re.search(r"\| dqn \| – \| – \| \S+ ± \S+ \| – \| – \| \S+ ± \S+ \|", page)


def test_who_is_ahead_is_counted_where_both_were_trained():
    def of(area: float) -> dict:
        return {"auc": {"mean": area}}

    found = {
        ("CartPole-v1", "dqn"): of(1),
        ("Taxi-v4", "dqn"): of(1),
        ("Taxi-v4", "dqn-engram"): of(2),
        ("Acrobot-v1", "dqn"): of(2),
        ("Acrobot-v1", "dqn-engram"): of(1),
    }
    assert first_try.ahead(found | {("CartPole-v1", "dqn-engram"): of(9)}, "dqn") == "1 of 2 environments"
