"""Users who own a directory on a path cannot redirect root that walks it."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import raw_calls
from tests.support.mounting import LIMIT, area, command, run_to_end, unmount, until
from tests.support.people import AGENT


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        for name in ("source", "home/dev/projects", "victim"):
            (path / name).mkdir(parents=True)
        (path / "source/file").write_text("of the share")
        (path / "victim/passwd").write_text("of the system")
        for name in ("home", "home/dev", "home/dev/projects"):
            os.chown(path / name, AGENT, AGENT)
        yield path
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if str(path) in line:
                unmount(Path(line.split()[4]))


@pytest.mark.parametrize("bent", ["home/dev/projects", "home/dev"])
def test_root_follows_no_symlink_of_another_user_to_a_mount_point(here: Path, bent: str) -> None:
    (here / bent).rename(here / "aside")
    (here / bent).symlink_to(here / "victim")
    os.chown(here / bent, AGENT, AGENT, follow_symlinks=False)
    (here / "victim/projects").mkdir()
    done = run_to_end(here / "source", here / "home/dev/projects")
    assert done.returncode == 1
    assert "is a symlink that is not root's" in done.stderr
    assert (here / "victim/passwd").read_text() == "of the system"


def test_root_s_own_symlinks_are_followed(here: Path) -> None:
    (here / "link").symlink_to("home/dev")
    assert run_to_end(here / "source", here / "link/projects").returncode == 0
    assert (here / "home/dev/projects/file").read_text() == "of the share"
    subprocess.run(["umount", here / "home/dev/projects"], check=True)


@pytest.mark.every_processor
def test_a_parent_that_is_swapped_all_the_time_never_leads_root_elsewhere(here: Path) -> None:
    """The agent exchanges a directory and a symlink while root mounts."""
    (here / "home/other").symlink_to(here / "victim")
    os.chown(here / "home/other", AGENT, AGENT, follow_symlinks=False)
    (here / "victim/projects").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            raw_calls.renameat2(here / "home/dev", here / "home/other", raw_calls.RENAME_EXCHANGE)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(10):
            run_to_end(here / "source", here / "home/dev/projects")
            mounted = Path("/proc/self/mountinfo").read_text()
            assert f"{here}/victim" not in mounted
            for line in mounted.splitlines():
                if str(here) in line:
                    subprocess.run(["umount", "-l", line.split()[4]], check=False)
    finally:
        stop.set()
        swapper.join()


def test_the_end_unmounts_this_view_and_nothing_else(here: Path) -> None:
    """The agent moves the mount point and puts a symlink to another sealed share there."""
    (here / "other").mkdir()
    (here / "other/secret").write_text("secret")
    (here / "view").mkdir()
    first = run_to_end(here / "other", here / "view", "--seal")
    assert first.returncode == 0, first.stderr
    try:
        process = subprocess.Popen(
            command(here / "source", here / "home/dev/projects", "-f"), stderr=subprocess.PIPE
        )
        until(lambda: (here / "home/dev/projects/file").exists(), "it is mounted")
        (here / "home/dev").rename(here / "home/dev2")
        (here / "home/dev").mkdir()
        (here / "home/dev/projects").symlink_to(here / "other")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0
        assert os.listdir(here / "other") == []
        assert os.listdir(here / "home/dev2/projects") == []
    finally:
        subprocess.run(["umount", here / "view"], check=True)
        until((here / "other/secret").exists, "the seal is off")


def test_an_audit_log_is_not_written_through_a_symlink_of_another_user(here: Path) -> None:
    (here / "home/logs").symlink_to(here / "victim")
    os.chown(here / "home/logs", AGENT, AGENT, follow_symlinks=False)
    done = run_to_end(
        here / "source", here / "home/dev/projects", "--audit-log", here / "home/logs/cron"
    )
    assert done.returncode == 1
    assert not (here / "victim/cron").exists()


@pytest.mark.parametrize("how", ["symlink", "owner", "links"])
def test_an_audit_log_that_another_user_placed_is_not_written(here: Path, how: str) -> None:
    log = here / "home/log"
    if how == "symlink":
        log.symlink_to(here / "victim/passwd")
    elif how == "links":
        os.link(here / "victim/passwd", log)
    else:
        log.touch()
        os.chown(log, AGENT, AGENT)
    done = run_to_end(here / "source", here / "home/dev/projects", "--audit-log", log)
    assert done.returncode in (1, 2), done.stderr
    assert "audit log" in done.stderr or "have one link" in done.stderr
    assert (here / "victim/passwd").read_text() == "of the system"


@pytest.mark.parametrize("option", ["--map-passwd", "--map-group", "--map-passwd-rev"])
@pytest.mark.parametrize("how", ["symlink", "owner"])
def test_ids_are_not_read_from_a_file_that_another_user_placed(
    here: Path, how: str, option: str
) -> None:
    ids = here / "home/ids"
    text = "root:x:1000:1000::/:/\n"
    if how == "symlink":
        (here / "victim/ids").write_text(text)
        ids.symlink_to(here / "victim/ids")
    else:
        ids.write_text(text)
        os.chown(ids, AGENT, AGENT)
    done = run_to_end(here / "source", here / "home/dev/projects", option, ids)
    assert done.returncode == 1, done.stderr
    assert str(ids) in done.stderr
