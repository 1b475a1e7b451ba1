"""What is published is what the files say."""

from pathlib import Path

import pytest

from experiments import classic

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["classic", "classic-scaled"])
def test_the_page_of_an_experiment_is_that_of_its_files(folder):
    out = ROOT / "results" / folder
    assert (out / "README.md").read_text(encoding="utf-8") == classic.page(classic.load(out))


def test_the_table_in_the_readme_is_that_of_the_files():
    found = classic.load(ROOT / "results" / "classic")
    assert classic.BEGIN + "\n" + classic.short_table(found) + classic.END in (ROOT / "README.md").read_text(encoding="utf-8")
