"""Engram's folders in the user's cache are the user's alone, or are not used."""

import os

import pytest

from engram import user_cache
from engram.user_cache import SharedFolderError, folder

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="rights are POSIX's")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder, with the umask of systems where each user is in a group of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    umask = os.umask(0o002)
    yield tmp_path
    os.umask(umask)


def test_new_folders_are_the_users_alone(home):
    assert folder("compiled", "machine") == home / ".cache/engram/compiled/machine"
    for path in (".cache", ".cache/engram", ".cache/engram/compiled/machine"):
        assert (home / path).stat().st_mode & 0o777 == 0o700


def test_the_cache_home_of_xdg_counts_if_it_is_absolute(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    assert folder() == home / "elsewhere/engram"
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert folder() == home / ".cache/engram"


def test_there_is_no_folder_without_a_home(monkeypatch):
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(OSError, match="no home folder"):
        folder()


@pytest.mark.parametrize("rights", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("path", [".cache", ".cache/engram", ".cache/engram/compiled"])
def test_a_folder_that_others_may_write_into_is_refused(home, path, rights):
    folder("compiled")
    (home / path).chmod(rights)
    with pytest.raises(SharedFolderError, match="other users may write"):
        folder("compiled")


def test_a_folder_that_others_may_only_read_is_used(home):
    folder().chmod(0o755)
    assert folder("compiled").is_dir()


def test_a_folder_of_another_user_is_refused(home, monkeypatch):
    folder()
    monkeypatch.setattr(user_cache.os, "geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(SharedFolderError, match="belongs to another user"):
        folder()


def test_a_link_is_judged_by_what_it_points_to(home):
    (home / "private").mkdir(mode=0o700)
    (home / "public").mkdir()
    (home / "public").chmod(0o777)
    (home / ".cache").symlink_to(home / "private")
    assert folder().is_dir()
    (home / "private/engram/compiled").symlink_to(home / "public")
    with pytest.raises(SharedFolderError):
        folder("compiled")


def test_a_file_in_place_of_a_folder_is_an_os_error(home):
    (home / ".cache").write_text("")
    with pytest.raises(OSError, match=r"\.cache"):
        folder()
