"""What is published is what the files say."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from engram.agents import make
from engram.experiments import choosing, classic, research, solve, tuning

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
