"""Fixtures that several unit tests share."""

import pytest

from engram.run_dir import create


@pytest.fixture
def folder(tmp_path):
    """A new run folder."""
    return create(tmp_path / "run", {"agent": "dqn"})
