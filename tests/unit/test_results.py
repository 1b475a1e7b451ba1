"""Published pages and result files agree with the code."""

import json
from pathlib import Path

import pytest

from engram.envs.atari import GAMES
from engram.paper import atari_page, atari_runs, maze_page, noisy_control_page, report
from engram.paper.experiments import EXPERIMENTS

RESULTS = Path(__file__).parent.parent.parent / "results"


@pytest.mark.parametrize("folder", noisy_control_page.PAGES)
def test_classic_control_page_is_generated_from_its_files(folder):
    text = (RESULTS / folder / "README.md").read_text(encoding="utf-8")
    assert text == noisy_control_page.page(folder, RESULTS)


def test_atari_page_is_generated_from_its_files():
    text = (RESULTS / "atari" / "README.md").read_text(encoding="utf-8")
    assert text == atari_page.page(RESULTS)
    assert all(row["game"] in GAMES for row in atari_runs.read_rows(RESULTS))


def test_maze_page_is_generated_from_its_files():
    text = (RESULTS / "maze" / "README.md").read_text(encoding="utf-8")
    assert text == maze_page.page(RESULTS)


def test_report_is_generated_from_the_files():
    blocks = report.page(RESULTS)
    text = (RESULTS / "report" / "README.md").read_text(encoding="utf-8")
    assert text == report.to_markdown(blocks, RESULTS / "report")
    html = report.to_html(blocks, report.TITLE)
    assert 'src="data:image/png;base64,' in html
    assert 'src="http' not in html  # it needs no network


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_published_runs_are_the_declared_ones(experiment):
    experiment.missing(RESULTS)  # raises if a file is of another run


def test_published_numbers_name_their_machine_and_commit():
    for file in sorted((RESULTS / "analyses").glob("*.json")):
        numbers = json.loads(file.read_text())
        assert numbers["commit"]
        assert numbers["device"]
