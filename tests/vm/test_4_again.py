"""Leaving the VM, coming back to it, and deleting it."""

import os
import subprocess
from dataclasses import replace

from gitguardfs.host.vm.state import is_held
from tests.support.repos import HOST_GID, HOST_UID, SECRET, as_host
from tests.vm.conftest import OPTIONS
from tests.vm.world import (
    BOOT_LIMIT,
    LIMIT,
    Session,
    World,
    as_git,
    command,
    console,
    is_running,
    processes_of,
)

IN_THE_WAY = """
set -e
mv ~/projects ~/old
echo in the way >~/projects
free=$(df -B 1 --output=avail ~ | tail -n 1)
fallocate -l $((free - 1000000)) ~/fill
! dd if=/dev/zero of=$HOME/rest bs=4k status=none
"""
"""And nothing of the disk is left, but what is kept for root."""

OWN_AGENT = """
about = "the test's agent"
command = "python3"
allow = ["POST {url}/v1/messages?key=* private-address"]
rules = ".mine/AGENTS.md"
[environment]
MODEL_URL = "{url}/v1/messages"
[files]
".mine/settings.json" = '{{"trusted": ["@PROJECT@"]}}'
"""
ASK = """
import json, os, sys, urllib.error, urllib.request
trusted = json.load(open(os.path.expanduser("~/.mine/settings.json")))["trusted"]
url = os.environ["MODEL_URL"] + "?key=" + os.environ["MODEL_KEY"]
try:
    urllib.request.urlopen(url, data=b"{}")
except urllib.error.HTTPError as error:  # the registry's own
    print(f"trusts {trusted[0]}: {error.code}")
sys.exit(3)
"""


def test_leaving_stops_everything(host: World, first: Session) -> None:
    running = first
    if first.process.poll() is not None:  # test_3_faults has run
        running = host.up(*OPTIONS, "--no-hardened", "--guard", "guest", what="boot after faults")
    host.sh("echo kept > ~/kept")
    host.sh("echo of root > /srv/of-root", root=True)
    host.sh("mkdir -p ~/.ssh && ln -sf /srv/of-root ~/.ssh/authorized_keys")
    host.sh(IN_THE_WAY)
    assert processes_of(host)
    assert running.leave() == 0
    assert "Power down" in console(host)  # by its power button, not by QEMU's end
    assert not is_running(host)
    assert not is_held(str(host.state / "session.lock"))
    assert processes_of(host) == {}
    assert "not running" in host.vm("status").stdout
    assert host.vm("stop").returncode == 0  # safe to repeat
    assert "gitguard vm up" in host.ssh("true").stderr


def test_another_up_finds_what_was_there(host: World) -> None:
    """The guest is set up again, since a setting differs; its root follows no link of the agent."""
    options = host.place / "home/.config/gitguardfs/projects" / host.state.name / "gitguard.toml"
    with as_host():
        options.parent.mkdir(parents=True)
        options.write_text('git-name = "Another"\n')
    session = host.up("--git", "private", what="second boot")
    assert host.sh("cat ~/kept; cat /srv/of-root") == "kept\nof root"
    assert host.sh("cat ~/moved-aside.*") == "in the way"
    host.sh("rm ~/fill ~/rest")
    assert host.sh("git config user.name") == "Another"
    assert host.sh("cat node_modules/own") == "x"
    # The agent's own git, the default of users: the others use a project whose .git is closed.
    for place in (".", "nested", "linked"):
        assert "first" in host.sh(f"cd {place} && git status -s >&2 && git log --oneline"), place
    host.sh("git commit --quiet -a --allow-empty -m own")
    assert (host.project / ".gitguard/agent.bundle").exists()
    # Few units run at a start; what they are there for still is.
    nodes = host.sh("stat -c '%G %a' /dev/fuse /dev/net/tun /dev/loop-control")
    assert nodes == "root 666\nroot 666\ndisk 660"
    assert host.sh("systemctl --user is-active default.target") == "active"
    assert host.sh("findmnt -n -o FSTYPE --target . | tail -n 1") == "fuse.gitguardfs"
    # Sessions share a login; but what root changes counts, and so the next one logs in.
    login = host.sh("echo $SSH_CONNECTION")
    assert login == host.sh("echo $SSH_CONNECTION")
    host.sh("groupadd -f later && usermod -aG later agent", root=True)
    assert login != host.sh("echo $SSH_CONNECTION")
    assert "later" in host.sh("id -Gn").split()
    assert session.leave() == 0


def test_more_directories_come_to_a_vm_that_exists_and_go_again(host: World) -> None:
    lib, data = host.other("lib").project, host.place / "project of data"
    data.mkdir()
    os.chown(data, HOST_UID, HOST_GID)
    with as_host():
        (lib / "node_modules").mkdir()
    config = (lib / ".git/config").read_bytes()
    options = ("--git", "private", "--share", f"{lib}:ro", "--share", str(data))
    session = host.up(*options, what="boot with more directories")
    # Guarded alike; the one to read is so for root too, and shows what is in it.
    types = host.sh("for d in . ../lib '../project of data'; do findmnt -n -o FSTYPE -T \"$d\""
                    " | tail -n 1; done")  # fmt: skip
    assert types.split() == ["fuse.gitguardfs"] * 3
    said = host.each(
        "echo by the agent >'../project of data/new'; cat '../project of data/new'",
        "cd ../lib && git log --oneline && ls", "touch ../lib/new", "cat ../lib/.git/config",
        "mkdir '../project of data/.git'", "ls /var/lib/gitguardfs/shares",
        "unshare -Urm mount -t 9p -o trans=virtio,version=9p2000.L"
        " $(cat /sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag | tr '\\0' '\\n' | grep share-"
        " | head -n 1) /mnt",
    )  # fmt: skip
    assert said[0] == (0, "by the agent")
    assert said[1][0] == 0 and "first" in said[1][1] and "node_modules" in said[1][1]
    assert all(status != 0 and SECRET not in text for status, text in said[2:]), said
    raw = host.sh("findmnt -n -l -t 9p -o TARGET", root=True).split()
    assert len([path for path in raw if "shares/share-" in path]) == 2
    assert host.ssh("touch ~agent/projects/lib/new", root=True).returncode != 0
    assert (data / "new").stat().st_uid == HOST_UID
    assert not (data / ".git").exists() and not (lib / "new").exists()
    assert (lib / ".git/config").read_bytes() == config
    shown = host.vm("status").stdout
    assert f"{lib} <-> /home/agent/projects/lib" in shown and "read-only" in shown
    assert session.leave() == 0
    session = host.up("--share", "", "--share", str(data), what="boot with one of them")
    assert host.sh("cat '../project of data/new'; ls -A ../lib") == "by the agent"
    assert str(lib) not in host.vm("status").stdout
    assert session.leave() == 0
    os.rename(data, host.place / "unplugged")
    session = host.up(what="boot without a directory that is gone")
    assert f"{data} is gone" in session.said()
    # No unit looks for what is no longer shared.
    units = "'gitguardfs@*' 'var-lib-gitguardfs-*'"
    failed = f"systemctl list-units --failed --no-legend --plain {units}"
    assert host.sh(failed, root=True) == ""
    assert session.leave() == 0


def test_a_connection_starts_the_vm_until_it_is_stopped(host: World) -> None:
    config = host.place / "run/ssh_config"
    config.write_text(host.vm("ssh-config", "--start").stdout)
    name = config.read_text().split()[1]
    ssh = ["ssh", "-F", str(config), name]
    both = [host.popen([*ssh, "cat ~/kept"], stdout=subprocess.PIPE) for _ in range(2)]
    assert [one.communicate(timeout=BOOT_LIMIT)[0] for one in both] == ["kept\n"] * 2
    assert "started by process" in host.vm("status").stdout
    assert host.vm("stop").returncode == 0
    assert not is_running(host) and processes_of(host) == {}
    config.write_text(host.vm("ssh-config").stdout)
    done = host.popen([*ssh, "true"], stderr=subprocess.PIPE)
    assert "the VM is not running" in done.communicate(timeout=60)[1]


def test_another_project_starts_from_what_was_set_up(host: World, first: Session) -> None:
    """It has keys, an identity and an authority of its own."""
    (ready,) = host.ready_disks()
    disk = (ready / "disk.qcow2").stat()
    other = host.other("another")
    session = other.up(*OPTIONS, "--image", str(host.image), what="first boot of another project")
    assert "this is done once" not in session.said()
    assert host.ready_disks() == [ready]
    assert other.sh("pwd; hostname") == f"/home/agent/projects/another\n{other.state.name}"
    assert other.vm("ssh", "--root", "--", "findmnt -n -o FSTYPE --target ~agent/projects/another"
                    " | tail -n 1").stdout == "fuse.gitguardfs\n"  # fmt: skip
    for name in ("keys/host.pub", "mitmproxy/mitmproxy-ca-cert.pem"):
        assert (other.state / name).read_text() != (host.state / name).read_text()
    bundle = other.sh("cat /etc/ssl/certs/ca-certificates.crt")
    assert (other.state / "mitmproxy/mitmproxy-ca-cert.pem").read_text().strip() in bundle
    assert (host.state / "mitmproxy/mitmproxy-ca-cert.pem").read_text().strip() not in bundle
    assert session.leave() == 0
    after = (ready / "disk.qcow2").stat()
    assert (after.st_size, after.st_mtime_ns) == (disk.st_size, disk.st_mtime_ns)
    assert "nothing to delete" in other.vm("images", "prune").stdout
    assert other.vm("reset", "-y").returncode == 0


def test_an_agent_of_the_users_own_asks_its_model_with_a_key_that_it_never_has(
    host: World, first: Session
) -> None:
    """Python stands for the agent, the registry for its model. It needs no other ready disk.

    The project is a linked work tree: with its main one shared, the agent's git works there.
    """
    ready, url, value = host.ready_disks(), host.registry.url, "the-key-of-the-model"
    with as_host():
        (host.place / "home/mine.toml").write_text(OWN_AGENT.format(url=url))
    other = replace(host, project=host.place / "with-agent")
    other.project.mkdir()
    os.chown(other.project, HOST_UID, HOST_GID)
    as_git(host, "worktree", "add", "--quiet", "-b", "topic", str(other.project))
    place = ("--host", url.removeprefix("https://"), "--query", "key")
    done = other.vm("secret", "set", "MODEL_KEY", *place, typed=f"{value}\n")
    assert done.returncode == 0, done.stderr
    session = other.up(
        *OPTIONS, "--image", str(host.image), "--upstream-ca", str(host.registry.certificate),
        "--agent", str(host.place / "home/mine.toml"), "--git", "private",
        "--share", f"{host.project}:ro", what="first boot with an agent",
    )  # fmt: skip
    assert "git:" not in session.said()
    assert other.sh("git status --short --branch") == "## topic...host/topic"
    other.sh("git commit --quiet --allow-empty --message own")
    fetched = other.popen([*command("x")[:-2], "fetch", "--merge", "topic"], stderr=subprocess.PIPE)
    _, said = fetched.communicate(timeout=LIMIT)
    assert fetched.returncode == 0, said
    assert as_git(other, "log", "-1", "--format=%s") == "own\n"
    assert host.ready_disks() == ready
    done = other.vm("run", "mine", "--", "-c", ASK)
    assert (done.returncode, done.stdout) == (3, "trusts /home/agent/projects/with-agent: 404\n")
    assert f"POST /v1/messages?key={value} HTTP/1.1" in host.registry.seen
    assert "python3 starts the test's agent" in other.sh("gitguard-agent hello 2>&1")
    assert "git push" in other.sh("cat ~/.mine/AGENTS.md")
    other.sh('echo \'{"trusted": ["/own"]}\' >~/.mine/settings.json; gitguard-agent prepare')
    assert "/own" in other.sh("cat ~/.mine/settings.json")
    places = "/etc /home /var/log /proc/[0-9]*/environ"
    assert other.sh(f"grep -rlsI {value} {places} || true", root=True) == ""
    assert "vm-apps" in other.sh("vm-apps --help") and "mine" in other.sh("vm-apps --list")
    assert session.leave() == 0
    without = other.up("--agent", "none", what="boot without the agent")
    assert other.sh('echo "${MODEL_URL:-none}"') == "none"
    assert f"{url}/v1/messages" not in (other.state / "allowlist.txt").read_text()
    assert without.leave() == 0
    assert other.vm("reset", "-y").returncode == 0


def test_a_project_that_vanished_is_one_line_and_its_vm_can_be_deleted(host: World) -> None:
    away = host.place / "away"
    os.rename(host.project, away)
    host.project.mkdir()  # a current directory is needed
    os.rename(host.project, host.place / "empty")
    project = ["--project", str(host.project)]
    here = World(host.place, host.place / "empty", host.image, host.registry)
    try:
        done = here.vm("up", *project)
        assert done.returncode == 2
        assert "no such directory" in done.stderr
        assert "(missing)" in here.vm("status", *project).stdout
        base = host.image / "disk.img"
        before = base.stat().st_mtime_ns
        assert here.vm("reset", "-y", *project).returncode == 0
        assert list(host.states.iterdir()) == []
        assert base.stat().st_mtime_ns == before
        assert "has no VM" in here.vm("status", *project).stderr
        assert "deleted ready-" in here.vm("images", "prune").stdout
        assert host.ready_disks() == []
        assert base.stat().st_mtime_ns == before
    finally:
        os.rename(away, host.project)
