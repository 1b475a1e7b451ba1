"""What works is told, what does not with a remedy, and a check that crashes or hangs too."""

import sys

import pytest
from matplotlib.animation import FFMpegWriter

from engram import cli, doctor
from engram.episodic.knn import cpp
from engram.errors import EngramError


def names(outcomes, works):
    return [outcome.name for outcome in outcomes if outcome.works == works]


def test_a_machine_that_runs_these_tests_has_what_is_required():
    outcomes = doctor.examine()
    assert [outcome.name for outcome in outcomes] == [check.name for check in doctor.CHECKS]
    assert {"packages", "devices", "Box2D", "Atari", "TensorBoard"} <= set(names(outcomes, True))
    assert all(outcome.text for outcome in outcomes)
    assert not any("crashed" in outcome.text or "hung" in outcome.text for outcome in outcomes)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("kill -SEGV $$", "It crashed by SIGSEGV: `python -m engram.doctor 'video'` shows where."),
        ("exit 3", "It crashed with exit code 3: `python -m engram.doctor 'video'` shows where."),
        ("sleep 9", "It hung for 0.5 seconds: `python -m engram.doctor 'video'` shows where."),
    ],
)
def test_a_check_that_ends_its_process_is_told(monkeypatch, tmp_path, script, text):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(doctor, "SECONDS", 0.5)
    check = next(check for check in doctor.CHECKS if check.name == "video")
    monkeypatch.setattr(doctor, "CHECKS", (check,))
    (outcome,) = doctor.examine()
    assert (outcome.works, outcome.text) == (False, text)


def test_without_a_compiler_one_is_asked_for(monkeypatch):
    monkeypatch.setattr(cpp, "is_available", lambda: False)
    with pytest.raises(EngramError, match=r"apt install g\+\+"):
        doctor.check_memory_search()


@pytest.mark.parametrize("has_ffmpeg", [True, False])
def test_without_ffmpeg_it_is_asked_for(monkeypatch, has_ffmpeg):
    monkeypatch.setattr(FFMpegWriter, "isAvailable", lambda: has_ffmpeg)
    if has_ffmpeg:
        monkeypatch.setattr("engram.video._save_mp4", lambda *arguments: None)
        assert doctor.check_video() == ".gif, .webp and .mp4"
        return
    with pytest.raises(EngramError, match="apt install ffmpeg"):
        doctor.check_video()


def test_a_package_that_is_missing_is_asked_for():
    with pytest.raises(EngramError, match=r"no-such-package is not installed .*: pip install no-"):
        doctor._package("no-such-package", "a use")


@pytest.mark.parametrize("is_required", [True, False])
def test_only_what_is_required_fails_the_command(monkeypatch, capsys, is_required):
    outcome = doctor.Outcome("hands", False, is_required, "They are cold: put on [gloves].")
    monkeypatch.setattr(doctor, "examine", lambda: [outcome])
    if is_required:
        with pytest.raises(SystemExit) as exit:
            cli.main(["doctor"])
        assert exit.value.code == 2
    else:
        cli.main(["doctor"])
    printed = capsys.readouterr()
    assert "They are cold: put on [gloves]." in printed.out
    assert ("mend hands as told above" in printed.err) == is_required
