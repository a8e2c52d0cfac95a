"""The functions of the program in the guest, run here with a state and a seed of their own."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gitguardfs.host.vm import provision, seed
from tests.support.mounting import area
from tests.support.repos import HOST_GID, HOST_UID

PROGRAM = Path(provision.__file__).with_name("guest.sh")
LIMIT = 60
"""Seconds after which a function is taken to hang."""


def run(where: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines of the shell after the functions, with these stand-ins for the system."""
    script = f"""
        . {shlex.quote(str(PROGRAM))}
        set +Eeu
        cd {shlex.quote(str(where))}
        SEED=$PWD/seed STATE=$PWD/state TOLD=$PWD/told FAILURE=$PWD/failure
        mkdir -p "$SEED" "$STATE"
        systemctl() {{ echo "systemctl $*" >>calls; }}
        sync() {{ :; }}
        {lines}
    """
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT)


START = """
    install_gitguardfs() { replace gitguardfs && note gitguardfs; }
    write_files() { replace files; }
    # Each part of the seed is one file of the guest.
    replace() { cp "$SEED/$1.digest" "guest-$1"; [[ "$1" != "$DIES_IN" ]] || kill $BASHPID; }
    start_with() {
        for part in gitguardfs files shared; do echo "$1" >"$SEED/$part.digest"; done
        (DIES_IN=${2-} && take_seed)
    }
"""


@pytest.mark.parametrize("part", ["gitguardfs", "files"])
def test_what_a_killed_start_has_half_replaced_is_not_taken_for_what_it_was(
    tmp_path: Path, part: str
) -> None:
    """Otherwise a guard would lack the --hide that the host shows."""
    done = run(
        tmp_path, f"{START} start_with one; start_with two {part}; start_with one; cat guest-*"
    )
    assert done.stdout == "one\none\n", done.stderr


def test_what_a_start_has_taken_is_not_taken_again(tmp_path: Path) -> None:
    done = run(tmp_path, f"{START} start_with one; rm guest-* calls; start_with one; ls")
    assert done.stdout.split() == ["seed", "state"], done.stderr


def test_a_seed_is_mounted_only_if_it_differs_from_what_was_taken_to_its_end(
    tmp_path: Path,
) -> None:
    seed.write(str(tmp_path / "one"), {"files.tar": b"1"})
    seed.write(str(tmp_path / "two"), {"files.tar": b"2"})
    done = run(
        tmp_path,
        """
        seed_disk() { echo "$disk"; }
        mount_seed() { echo "mounts $disk"; }
        take_seed() { [[ -z "$dies" ]] || exit; }
        umount() { :; }
        hostname() { :; }
        for disk in one one two two one; do take_new_seed; done
        disk=two
        (dies=yes take_new_seed)
        disk=one
        for _ in 1 2; do take_new_seed; done
        """,
    )
    mounted = [line.split()[1] for line in done.stdout.splitlines()]
    assert mounted == ["one", "two", "one", "two", "one"], done.stderr


GUARD = r"gitguardfs {view}\040b fuse.gitguardfs rw 0 0"
COVER = r"tmpfs {view}\040b tmpfs rw 0 0"


@pytest.mark.parametrize(
    ("mounts", "view", "expected"),
    [
        ([GUARD], "a b", "yes"),
        ([COVER, GUARD], "a b", "yes"),
        ([GUARD, COVER], "a b", "no"),
        ([GUARD], "a", "no"),
        ([], "a b", "no"),
        ([GUARD], "not there b", "no"),  # as of a guard that has died
    ],
)
def test_a_view_is_guarded_if_the_guard_is_mounted_last_and_answers(
    tmp_path: Path, mounts: list[str], view: str, expected: str
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a").mkdir()
    where = tmp_path / view.removesuffix(" b")
    lines = [line.format(view=str(where).replace(" ", r"\040")) for line in mounts]
    (tmp_path / "mounts").write_text("".join(f"{line}\n" for line in lines))
    done = run(
        tmp_path,
        f"""
        MOUNTS=mounts
        is_guarded {shlex.quote(str(tmp_path / view))} && echo yes || echo no
        """,
    )
    assert done.stdout == f"{expected}\n", done.stderr


GUARD_TWO = """
    : >mounts; mkdir p
    MOUNTS=mounts GIT=deny VIEW=$PWD/p SERVICE=p.service
    MORE_VIEWS=("$PWD/a b") MORE_SERVICES=(b.service)
    mounted() { echo "gitguardfs ${1// /'\\040'} fuse.gitguardfs rw" >>mounts; }
    make_view() { echo "made ${1##*/}"; mkdir "$1"; }
    tell() { echo "told $*"; }
    journalctl() { echo why; }
"""


def test_the_host_is_told_once_each_share_is_guarded(tmp_path: Path) -> None:
    """A "start" of an earlier version knew of the project only."""
    done = run(
        tmp_path,
        GUARD_TWO
        + """
        mounted "$VIEW"
        systemctl() { echo "$*"; mounted "${MORE_VIEWS[0]}"; }
        guard
        guard | head -n 1
        """,
    )
    assert done.stdout.splitlines()[:3] == ["made a b", "start b.service", "told ready"], done
    assert done.stdout.splitlines()[-1] == "told ready"


def test_the_guards_of_more_shares_begin_with_the_start(tmp_path: Path) -> None:
    """As long as they are shared: an enabled unit would stay."""
    calls = "cat calls; rm -rf calls 'a b' p"
    done = run(tmp_path, f"{GUARD_TWO} rmdir p; begin_shares; {calls}")
    said = ["made p", "made a b", "systemctl --no-block start b.service"]
    assert done.stdout.splitlines() == said, done.stderr
    done = run(
        tmp_path, f"{GUARD_TWO} MORE_VIEWS=() MORE_SERVICES=(); rmdir p; begin_shares; {calls}"
    )
    assert done.stdout == "made p\n"
    deaf = "systemctl() { return 1; }; set -e"
    done = run(tmp_path, f"{GUARD_TWO} rmdir p; {deaf}; begin_shares; echo on")
    assert done.stdout.splitlines()[-1] == "on"


@pytest.mark.parametrize("starts", ["false", "true"])
def test_a_share_that_is_not_guarded_fails_the_start(tmp_path: Path, starts: str) -> None:
    done = run(tmp_path, f'{GUARD_TWO} mounted "$VIEW"; systemctl() {{ {starts}; }}; guard')
    assert done.returncode == 1
    assert f"told failed {tmp_path}/a b is not guarded" in done.stdout
    assert "told ready" not in done.stdout


def test_a_guest_that_is_killed_while_files_are_put_in_place_has_the_old_or_the_new(
    tmp_path: Path,
) -> None:
    """Of a file that is not on the disk yet, a journal may keep the name alone."""
    done = run(
        tmp_path,
        """
        show() { for file in "$@"; do echo "$(stat -c %i "$file") $(<"$file")"; done; }
        sync() { show new/* >>on-disk; }
        for last in {1..40}; do
            rm -rf root new on-disk
            mkdir root new
            echo old | tee root/a >root/b
            echo new | tee new/a >new/b
            show root/* >on-disk
            (
                set -T
                trap '((++count < last)) || kill -9 $BASHPID' DEBUG
                put_in_place new root
            ) 2>/dev/null
            show root/* | grep -vxFf on-disk
            cat root/*
        done
        """,
    )
    assert set(done.stdout.split()) == {"old", "new"}
    assert done.stdout.endswith("new\nnew\n"), done.stderr


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs another file system")
def test_files_are_put_in_place_on_another_file_system(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        new=$(mktemp -d -p /dev/shm)
        mkdir -p root/etc "$new/etc"
        echo old >root/etc/a; echo new >"$new/etc/a"; chmod 600 "$new/etc/a"
        put_in_place "$new" root
        stat -c %a root/etc/a; cat root/etc/a; ls "$new"
        """,
    )
    assert done.stdout == "600\nnew\n", done.stderr


def test_a_guest_that_is_killed_at_any_moment_starts_by_cloud_init_or_by_its_units(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
        mkdir() { :; }
        ln() { echo "mask ${*: -1}" >>calls; }
        touch() { echo "disable $*" >>calls; }
        retire_cloud_init
        head -n 1 calls; grep -c cloud-init calls
        """,
    )
    first, count = done.stdout.splitlines()
    assert first.startswith("systemctl enable"), done.stderr
    assert int(count) > 1


INSTALL = """
    await_proxy() { :; }
    tell() { echo "tell $*" >>calls; }
    getent() { echo "agent:x:1000:1000::$PWD/home:/bin/bash"; }
    setpriv() { echo "$*" | grep -o '.*--no-new-privs' >>"${BUNDLE%/*}/calls"; shift 6; "$@"; }
    AGENT=agent BUNDLE=$PWD/bundle AGENT_PROGRAM=$PWD/program ENVIRONMENT=$PWD/environment
    mkdir -p home/.npm/_cacache home/.cache
    echo authorities >bundle
    echo ours >seed/ca.pem
    printf '%s="%s"\\n' SSL_CERT_FILE "$BUNDLE" JAVA_TOOL_OPTIONS '-Da=b -Dc=d' >environment
"""
SHOW = """#!/bin/sh
echo "$1: $SSL_CERT_FILE $NPM_CONFIG_CAFILE $JAVA_TOOL_OPTIONS in $PWD"; cat "$SSL_CERT_FILE"
"""


def test_packages_are_installed_once_and_before_the_host_is_told(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        dpkg-query() { [[ "${*: -1}" != here ]] || echo installed; }
        apt-get() { echo "apt-get $*"; }
        await_proxy() { :; }
        serve() { :; }
        tell() { echo "told $*"; }
        GIT=deny VIEW=/v SERVICE=s MORE_VIEWS=() MORE_SERVICES=()
        for MORE_PACKAGES in "" "here jq" "here jq" ""; do
            MORE_PACKAGES=($MORE_PACKAGES)
            guard
        done
        """,
    )
    install = "apt-get -q install -y --no-install-recommends jq"
    told = [line for line in done.stdout.splitlines() if line.startswith(("apt", "told ready"))]
    assert told == [
        "told ready", "apt-get -q update", install, *["told ready"] * 3,
    ], done.stdout + done.stderr  # fmt: skip


def test_an_agent_is_installed_as_its_user_who_trusts_this_one_guests_proxy(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(SHOW)
    (tmp_path / "program").chmod(0o755)
    done = run(tmp_path, f"{INSTALL} install_agent; ls -A home; cat bundle calls")
    bundle, home = tmp_path / "bundle.pem", tmp_path / "home"
    assert done.stdout.splitlines()[1:] == [
        f"install: {bundle} {bundle} -Da=b -Dc=d in {home}", "authorities", "ours",
        ".npm", "authorities",
        "tell step agent",
        "--reuid agent --regid agent --init-groups --no-new-privs",
    ]  # fmt: skip


def test_an_agent_that_cannot_be_installed_ends_the_setup(tmp_path: Path) -> None:
    done = run(
        tmp_path, f"{INSTALL} install_agent; ls calls; ln -s /bin/false program; install_agent"
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith("failed: the agent could not be installed, see"
                                                 " mitmdump.log")  # fmt: skip


IN_THE_WAY = {
    "nothing": "",
    "a file for the parent": "touch home/projects",
    "a link for the parent": "mkdir home/work && ln -s work home/projects",
    "a link to nowhere": "ln -s nowhere home/projects",
    "a FIFO": "mkdir home/projects && mkfifo home/projects/view",
    "a link": "mkdir -p home/work home/projects && ln -s ../work home/projects/view",
    "content": "mkdir -p home/projects/view && touch home/projects/view/.x",
    "content nobody may list": "mkdir -p home/projects/view/x && chmod 0 home/projects/view",
    "a parent that nobody may enter": "mkdir -p home/projects && chmod 0 home/projects home",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("made", IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_whatever_the_agent_has_made_there_the_view_has_an_empty_directory(made: str) -> None:
    with area() as place:
        place.chmod(0o755)
        (place / "home").mkdir()
        os.chown(place / "home", HOST_UID, HOST_GID)
        done = run(
            place,
            f"""
            as_agent() {{ setpriv --reuid {HOST_UID} --regid {HOST_GID} --clear-groups "$@"; }}
            as_agent sh -c {shlex.quote(made)}
            view=$PWD/home/projects/view
            make_view "$view" && make_view "$view" &&
                [[ "$(realpath home/projects/view)" == "$view" ]] &&
                as_agent rmdir home/projects/view
            """,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("moved-aside") <= 1


def test_what_root_has_made_there_is_named(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        as_agent() { echo 'mkdir: cannot create: no space'; return 1; }
        make_view /home/agent/projects/x
        """,
    )
    assert done.returncode == 1
    assert "cannot make /home/agent/projects/x: mkdir: cannot create: no space" in done.stdout


def test_a_start_that_needs_inodes_leaves_some_for_the_next(tmp_path: Path) -> None:
    """The agent may have used all others, and nobody can log in to a guest that has not started."""
    done = run(
        tmp_path,
        """
        as_agent() { [[ ! -e "$STATE/spare" ]] || { echo "no space"; return 1; }; }
        keep_spare
        (make_view /home/agent/projects/x)
        make_view /home/agent/projects/x && keep_spare && ls "$STATE/spare"
        """,
    )
    assert done.stdout.splitlines()[-1].isdecimal(), done.stderr


def test_a_guest_without_a_host_shuts_down(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        mkfifo port # nobody reads it
        ports_to_host() { echo port; }
        HOST_PATIENCE=1
        touch "$SEED/is-shared"
        (fail no)
        cat calls
        """,
    )
    assert "systemctl --no-block poweroff" in done.stdout, done.stderr


def test_a_failure_that_could_not_be_told_is_told_at_the_end(tmp_path: Path) -> None:
    """Early at a start, the port may not be there."""
    done = run(
        tmp_path,
        """
        ports_to_host() { :; }
        (fail no space)
        ports_to_host() { echo port; }
        (end); cat port; rm port
        (end); ls
        """,
    )
    assert "\nfailed no space\n" in done.stdout, done.stderr
    assert "port" not in done.stdout.split()


@pytest.mark.parametrize(
    ("said", "told"), [("step x", "failed it was ended early\n"), ("ready", "ready\n")]
)
def test_a_start_that_ends_without_a_word_is_told(tmp_path: Path, said: str, told: str) -> None:
    """Such as one that is killed, or whose job is canceled. The host would wait."""
    done = run(tmp_path, f"ports_to_host() {{ echo port; }}; tell {said}; (end) >&2; cat port")
    assert done.stdout == told, done.stderr


def test_what_is_told_is_one_line(tmp_path: Path) -> None:
    """The next line would be another message."""
    done = run(tmp_path, "ports_to_host() { echo port; }; tell failed $'x\\nready'; cat port")
    assert done.stdout == "failed x ready\n", done.stderr


@pytest.mark.parametrize("before", ["127.0.0.1 localhost\n", "127.0.0.1 localhost", None])
def test_the_guest_finds_its_own_name_which_stands_there_once(
    tmp_path: Path, before: str | None
) -> None:
    """Also in a line that its root wrote by hand, and in a file that does not end in a newline."""
    name = os.uname().nodename
    if before is not None:
        (tmp_path / "hosts").write_text(before)
    done = run(tmp_path, "HOSTS=$PWD/hosts; name_itself; name_itself")
    lines = (tmp_path / "hosts").read_text().split("\n")
    assert lines.count(f"127.0.1.1 {name}") == 1, done.stderr
    assert before is None or lines[0] == before.strip()
    for own in (f"10.0.2.15\t{name} other", f"# {name}\n10.0.2.15 other {name}"):
        (tmp_path / "hosts").write_text(own)
        run(tmp_path, "HOSTS=$PWD/hosts; name_itself")
        assert (tmp_path / "hosts").read_text() == own
    (tmp_path / "hosts").write_text(f"127.0.0.1 {name}er localhost # {name}\n")
    run(tmp_path, "HOSTS=$PWD/hosts; name_itself")
    assert f"127.0.1.1 {name}" in (tmp_path / "hosts").read_text()
