"""The first `vm up`: what the guest is like inside, and the commands beside a running VM."""

import hashlib
import json
import os
import shlex
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from gitguardfs.host.vm import guest_tools, qmp
from gitguardfs.host.vm.state import State, is_held
from tests.support.boot_sector import BOOTS
from tests.support.repos import HOST_GID, HOST_UID, SECRET, as_host
from tests.vm.conftest import OPTIONS
from tests.vm.world import ADDRESS, LIMIT, Session, World, as_git, command, pid_of_qemu


def test_the_first_start_says_what_the_user_should_know(host: World) -> None:
    """It first names secrets in the project and says that no model is reachable."""
    with as_host():
        (host.project / ".env").write_text("TOKEN=1\n")
    done = host.vm("up", "--image", str(host.place / "none"))
    assert done.returncode == 2
    assert "hidden from the agent: environment files and keys" in done.stderr
    assert "\n  .env\n" in done.stderr
    assert "gitguard vm up --show .env" in done.stderr
    assert "there is no image" in done.stderr
    assert "there are no VMs" in host.vm("list").stdout


def test_an_image_that_does_not_boot_is_told_and_forgotten(host: World) -> None:
    image = host.place / "halts.img"
    halt = b"\xfa\xf4\xeb\xfc"  # cli; hlt; and again
    image.write_bytes(halt + BOOTS[len(halt) :])
    words = command("up", *OPTIONS, "--image", str(image), "--", "true")
    with host.popen(words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = iter(process.stderr.readline, "")
        assert any("has written nothing to its console for 60 seconds" in line for line in said)
        process.terminate()
        assert process.wait(LIMIT) == 3
    assert "there are no VMs" in host.vm("list").stdout
    assert list(host.cache.glob("build-*")) == []


def test_a_setup_that_is_killed_leaves_nothing_that_counts(host: World) -> None:
    """Its QEMU lives on; the next start, of any project, ends it and sets a guest up anew."""
    process = host.popen(command("up", *OPTIONS, "--image", str(host.image), "--", "true"))
    log = None
    while log is None:
        assert process.poll() is None
        log = next(
            (one for one in host.cache.glob("build-*/console.log") if one.stat().st_size), None
        )
    process.kill()
    process.wait()
    assert is_held(str(log.parent / "lock"))
    assert host.ready_disks() == []


def test_the_first_start_sets_a_guest_up(host: World, first: Session) -> None:
    said = first.said()
    assert "left running by a vm up that was killed" in said
    assert said.count("is set up once") == 1
    (ready,) = host.ready_disks()
    assert list(host.cache.glob("build-*")) == []
    assert ready.name in host.vm("images", "list").stdout
    assert "nothing to delete" in host.vm("images", "prune").stdout


def test_a_disk_that_vms_share_holds_nothing_of_one(host: World, first: Session) -> None:
    (ready,) = host.ready_disks()
    raw, root = host.place / "raw.img", host.place / "root"
    root.mkdir()
    subprocess.run(["qemu-img", "convert", "-O", "raw", ready / "disk.qcow2", raw], check=True)
    subprocess.run(["mount", "-o", "loop,ro,noload", raw, root], check=True)
    try:
        assert (root / "usr/local/bin/gitguardfs").exists()
        for name in ("etc/gitguard-vm/keys", "var/lib/cloud", "var/lib/systemd/random-seed",
                     "usr/local/share/ca-certificates/gitguard-vm.crt", "var/log/journal",
                     "var/log/gitguard-vm.log"):  # fmt: skip
            assert not (root / name).exists(), name
        assert list(root.glob("etc/ssh/ssh_host_*")) == []
        assert list(root.glob("etc/systemd/system/gitguardfs@*.service.d/share.conf")) == []
        assert (root / "etc/machine-id").read_bytes() == b""
        bundle = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
        config = subprocess.run(
            ["grep", "-rlE", "PRIVATE KEY|gitguardfs sandbox", root / "etc", root / "home",
             root / "root", root / "var"], capture_output=True, text=True,
        )  # fmt: skip
        assert config.stdout == ""
        assert (host.state / "mitmproxy/mitmproxy-ca-cert.pem").read_text().strip() not in bundle
    finally:
        subprocess.run(["umount", root], check=True)
        raw.unlink()


def test_a_command_runs_in_the_guarded_project_as_the_agent(vm: World) -> None:
    said = vm.sh(
        "pwd; id -un; id -u; stat -c %U README.md; findmnt -n -o FSTYPE --target . | tail -n 1"
    )
    assert said.splitlines() == [
        "/home/agent/projects/project", "agent", "1000", "agent", "fuse.gitguardfs",
    ]  # fmt: skip


def test_the_agent_cannot_become_root(vm: World) -> None:
    sudo, groups, su = vm.each("sudo -n true", "id -Gn", "su -c true")
    assert (sudo[0], groups[1], su[0]) == (1, "agent", 1)
    with_password = vm.sh("awk -F: '$2 !~ /^[!*]/ {print $1}' /etc/shadow", root=True)
    assert with_password == ""


def test_the_exit_status_is_the_commands(vm: World) -> None:
    assert vm.ssh("exit 37").returncode == 37


def test_edits_reach_the_host_and_belong_to_its_user(vm: World) -> None:
    vm.sh("mkdir made && echo by the agent > made/file && mv README.md made/README")
    made = vm.project / "made/file"
    assert made.read_text() == "by the agent\n"
    assert (made.stat().st_uid, made.stat().st_gid) == (HOST_UID, HOST_GID)
    vm.sh("mv made/README README.md")
    assert "made/" not in as_git(vm, "status", "--short", "README.md")


def test_dependencies_are_the_guests_own_and_stay_from_one_start_to_the_next(vm: World) -> None:
    """test_4_again looks at the second start."""
    with as_host():
        (vm.project / "node_modules").mkdir()
        (vm.project / "node_modules/of-the-host").touch()
    said = vm.sh(
        "ls -A | grep node_modules; mkdir node_modules && cd node_modules && echo x >own && ls -A"
    )
    assert said == "own"
    assert os.listdir(vm.project / "node_modules") == ["of-the-host"]
    assert "guest's own" in " ".join(vm.vm("status").stdout.split())
    assert "`node_modules`" in vm.sh("cat ~/.codex/AGENTS.md")


def test_an_environment_file_is_hidden_and_the_shell_says_how_it_is_shown(vm: World) -> None:
    with as_host():
        (vm.project / ".env").write_text("TOKEN=1\n")
        (vm.project / ".env.example").write_text("TOKEN=\n")
    listed, read, made, typed = vm.each(
        "ls -A", "cat .env", "cp .env.example .env", "echo 'cp .env.example .env' | bash -li"
    )
    assert ".env.example" in listed[1].splitlines() and ".env" not in listed[1].splitlines()
    assert "No such file" in read[1] and "Permission denied" in made[1]
    assert "then: gitguard vm up --show .env" in typed[1]
    assert (vm.project / ".env").read_text() == "TOKEN=1\n"
    assert "environment files and keys hidden" in vm.vm("status").stdout
    assert "gitguard vm up --show .env" in vm.sh("cat ~/.codex/AGENTS.md")
    (vm.project / ".env.example").unlink()


# The guard


ATTACKS = (
    "cat .git/config",
    "mv .git x",
    "mkdir -p sub/.git",
    "ln -s .git/config s; cat s",
    "ln .git/config c",
    "echo x > .git/hooks/pre-commit",
    "rm -rf .git/HEAD",
    "unshare -Ur cat .git/config",
    "git status",
    "cat /var/lib/gitguardfs/shares/project/.git/config",
    "unshare -Urm mount -t 9p -o trans=virtio project /mnt",
)


def test_the_guard_holds(vm: World) -> None:
    config = (vm.project / ".git/config").read_bytes()
    for attack, (status, said) in zip(ATTACKS, vm.each(*ATTACKS), strict=True):
        assert status != 0, attack
        assert SECRET not in said, attack
    assert (vm.project / ".git/config").read_bytes() == config
    assert as_git(vm, "log", "--oneline").count("\n") == 2


def test_the_doctor_finds_nothing(vm: World) -> None:
    """As the host's user asks it, who has no guard of their own."""
    done = vm.gitguard("doctor", "--attack")
    assert done.returncode == 0, done.stdout + done.stderr
    host_side, guest = done.stdout.split("in the guest of ")
    assert "the host of 1 VM" in host_side and "[high]" not in host_side
    assert "no findings" in guest and "attack.R1 " in guest
    json.loads(vm.vm("doctor", "--json").stdout)


# What the guest was given


def test_git_knows_who_the_agent_is(vm: World) -> None:
    assert vm.each("git config user.name", "git config user.email") == [
        (0, "AI Agent"),
        (0, "agent@internal.sandbox"),
    ]


def test_agents_find_the_rule_against_pushing(vm: World) -> None:
    paths = ("/etc/claude-code/CLAUDE.md", "~/.codex/AGENTS.md", "~/.gemini/GEMINI.md")
    for _, said in vm.each(*(f"cat {path}" for path in paths)):
        assert "git push" in said


def test_tools_know_the_proxy_and_its_authority(vm: World) -> None:
    tools = (
        "echo $https_proxy",
        "pip config list",
        "git config http.proxy",
        "apt-config dump Acquire::https::Proxy",
        "systemctl show-environment",
        "systemctl --user show-environment",
    )
    for tool, (_, said) in zip(tools, vm.each(*tools), strict=True):
        assert "http://10.0.2.100:8080" in said, tool
    names = ("NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "SSL_CERT_FILE", "GIT_SSL_CAINFO")
    for _, said in vm.each(*(f"echo ${name}" for name in names)):
        assert said == "/etc/ssl/certs/ca-certificates.crt"
    ca = (vm.state / "mitmproxy/mitmproxy-ca-cert.pem").read_text().strip()
    assert ca in vm.sh("cat /etc/ssl/certs/ca-certificates.crt")


def test_toolchains_find_their_settings(vm: World) -> None:
    """With these, tests/egress/test_toolchains.py tries real programs."""
    variables = guest_tools.environment()
    said = vm.each(*(f'echo "${name}"' for name in variables))
    assert said == [(0, value) for value in variables.values()]
    files = guest_tools.files((vm.state / "mitmproxy/mitmproxy-ca-cert.pem").read_text())
    for (_, found), content in zip(
        vm.each(*(f"sha256sum {path}" for path in files)), files.values(), strict=True
    ):
        data = content if isinstance(content, bytes) else content.encode()
        assert found.split()[0] == hashlib.sha256(data).hexdigest(), found
    assert vm.each(
        "stat -c %U ~/.docker/config.json", "git ls-remote --get-url git@github.com:one/two.git"
    ) == [(0, "agent"), (0, "https://github.com/one/two.git")]


def test_nothing_of_the_hosts_user_is_in_the_guest(vm: World) -> None:
    assert "do-not-take-me-along" not in vm.sh("env") + vm.sh("env", root=True)
    home = str(vm.place / "home")
    assert vm.ssh(f"ls {home}", root=True).returncode != 0
    with open(vm.state / "seed.iso", "rb") as seed:
        assert b"secret of the host" not in seed.read()
    assert "BEGIN" not in vm.sh("env")


def test_the_state_is_closed_to_others(vm: World) -> None:
    for path in (vm.state, *(p for p in vm.state.rglob("*") if p.is_dir())):
        assert path.stat().st_mode & 0o077 == 0, path
    assert vm.state.stat().st_uid == HOST_UID
    assert not str(vm.state).startswith(str(vm.project))


def test_tools_for_the_agents_own_account_are_offered(vm: World) -> None:
    steps, hosts = vm.each("vm-apps --list", "vm-apps --hosts --only claude")
    assert "the Claude CLI" in steps[1]
    assert hosts == (0, "registry.npmjs.org")


# The commands beside it


AWAIT_NAME = """
import ctypes, os
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
libc.inotify_add_watch(fd, b".", 0x100)  # IN_CREATE
os.listdir(".")
print("watching", flush=True)
print(os.read(fd, 4096)[16:].rstrip(b"\\0").decode())
"""


def test_what_the_host_makes_is_an_event_for_the_agent(vm: World) -> None:
    end = time.monotonic() + LIMIT
    while not (found := facts(vm)["vm"]["watcher"]) or not (
        found["read"] and found["directories"][0]["whole"]
    ):
        assert time.monotonic() < end, found
        time.sleep(1)
    words = command("ssh", "--", shlex.join(["timeout", "300", "python3", "-c", AWAIT_NAME]))
    with vm.popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        with as_host():
            (vm.project / "made-on-the-host").touch()
        assert process.stdout.readline() == "made-on-the-host\n"
    (vm.project / "made-on-the-host").unlink()
    (told,) = json.loads(vm.sh("gitguard changes-in --status --json", root=True))
    assert told["arrives"]
    assert told["whole"]
    assert told["last_change"] is not None
    said = vm.vm("status").stdout
    assert "told to the guest, " in said
    assert "the last one 20" in said


def test_the_list_has_the_vm_that_runs(vm: World) -> None:
    (one,) = json.loads(vm.vm("ls", "--json").stdout)
    assert (one["name"], one["project"], one["state"]) == (
        vm.state.name, str(vm.project), "running",
    )  # fmt: skip
    with socket.create_connection(("127.0.0.1", one["ssh_port"]), 60) as peer:
        assert peer.recv(4) == b"SSH-"
    assert one["ports"] and one["disk_bytes"] and one["made"]
    assert f" {one['ssh_port']}:22 " in vm.vm("list").stdout


def test_status_shows_a_line_of_the_allowlist_that_cannot_be_read(vm: World) -> None:
    allowlist = vm.state / "allowlist.txt"
    before = allowlist.read_text()
    number = before.count("\n") + 1
    assert "ignored" not in vm.vm("status").stdout
    allowlist.write_text(f"{before}GET https://*.example.org/x\n")
    try:
        said = vm.vm("status").stdout
    finally:
        allowlist.write_text(before)
    assert f"allowlist.txt:{number}: ignored: GET https://*.example.org/x" in said
    assert "running" in said
    assert f"running, process {json.loads((vm.state / 'proxy.json').read_text())['pid']}" in said


def border(vm: World) -> dict[str, Any]:
    crossing: dict[str, Any] = facts(vm)["border"]
    return crossing


def facts(vm: World) -> dict[str, Any]:
    done = vm.vm("status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["vm"]["state"] == "running"
    return found


def test_a_published_port_leads_into_the_guest(vm: World, published: int) -> None:
    """Its server starts later, and listens on the guest's 127.0.0.1 alone."""
    with socket.create_connection(("127.0.0.1", published), timeout=60) as early:
        assert early.recv(1) == b""
    vm.sh("mkdir -p ~/site; echo published >~/site/page; cd ~/site; nohup python3 -m http.server"
          " --bind 127.0.0.1 3001 >/dev/null 2>&1 </dev/null & until"
          " (: </dev/tcp/127.0.0.1/3001) 2>/dev/null; do sleep 0.2; done")  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        later = free.getsockname()[1]
    done = vm.vm("up", "--publish", f"{later}:3001", "--publish", f"{published}:3001")
    assert done.returncode == 0, done.stderr
    for port in (published, later):
        fetch = ["curl", "-sS", "--noproxy", "*", f"http://127.0.0.1:{port}/page"]
        got = subprocess.run(fetch, capture_output=True, text=True, timeout=60)
        assert got.stdout == "published\n", got.stderr
    rows = [{"host_port": port, "guest_port": 3001, "by": "--publish", "open": True}
            for port in sorted((published, later))]  # fmt: skip
    assert border(vm)["ports"] == rows
    busy = vm.vm("up", "--memory", "1G", "--publish", f"{later}:3001")
    assert busy.returncode == 3 and "in use" in busy.stderr


def test_a_port_leads_into_the_guest(vm: World) -> None:
    vm.sh("echo from the guest > ~/page; cd ~; nohup python3 -m http.server 3000 "
          ">/dev/null 2>&1 </dev/null & until (: </dev/tcp/127.0.0.1/3000) 2>/dev/null; "
          "do sleep 0.2; done")  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = vm.popen(command("forward", f"{port}:3000"), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{port}/" in process.stderr.readline()
        fetch = ["curl", "-sS", "--noproxy", "*", "--retry", "20", "--retry-connrefused",
                 "--retry-delay", "1", f"http://127.0.0.1:{port}/page"]  # fmt: skip
        got = subprocess.run(fetch, capture_output=True, text=True)
        assert got.stdout == "from the guest\n", got.stderr
        by = {one["host_port"]: one["by"] for one in border(vm)["ports"]}
        assert by[port] == "vm forward"
        busy = vm.vm("forward", f"{port}:3000")
        assert busy.returncode == 3
        assert f"port {port} of this machine" in busy.stderr
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_clock_is_right_after_a_pause(vm: World) -> None:
    """As after hours in which the host's disk was full, or a laptop slept."""
    tell(vm, "stop")
    time.sleep(20)  # the guest's clock stands still
    tell(vm, "cont")
    before = int(time.time())
    done = vm.ssh("date +%s")
    assert done.stderr == ""  # the session has not begun with a clock that is behind
    assert before - 2 <= int(done.stdout) <= time.time() + 2
    assert "set from" in vm.sh("journalctl -q -o cat -u gitguard-vm-clock", root=True)


def tell(vm: World, command: str) -> None:
    """Send QEMU a command of QMP."""
    qmp._run(State(str(vm.project), str(vm.state)), lambda client: client.execute(command))


def test_editors_get_in_by_the_ssh_config(vm: World, tmp_path: Path) -> None:
    config = vm.place / "ssh_config"
    config.write_text(vm.vm("ssh-config").stdout)
    (host,) = [line.split()[1] for line in config.read_text().splitlines() if "Host " in line[:5]]
    ssh = ["ssh", "-F", str(config)]

    def said(*words: str, typed: str = "") -> str:
        process = vm.popen(list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        out: str = process.communicate(typed, timeout=120)[0]
        assert process.returncode == 0, words
        return out

    assert said(*ssh, host, "id -un") == "agent\n"
    # As VS Code does: a shell that reads what to do, with a port that leads into the guest.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    dynamic = ["-T", "-D", str(port), "-o", "ConnectTimeout=120"]
    assert said(*ssh, *dynamic, host, "sh", typed="cd projects/project && ls README.md") == (
        "README.md\n"
    )
    large = vm.place / "large"
    large.write_bytes(os.urandom(20_000_000))
    for protocol in ("-s", "-O"):  # sftp and rcp
        said("scp", "-q", "-F", str(config), protocol, str(large), f"{host}:large")
        said("scp", "-q", "-F", str(config), protocol, f"{host}:large", str(vm.place / "run/back"))
        assert (vm.place / "run/back").read_bytes() == large.read_bytes()
    with_port = vm.vm("ssh-config", "--port").stdout
    assert "ProxyCommand" not in with_port and "\n    Port " in with_port


def test_only_the_pinned_key_is_talked_to(vm: World) -> None:
    """Another process at the guest's port, with a key of its own, is refused."""
    known = vm.state / "keys/known_hosts"
    before = known.read_text()
    name, kind, _ = before.split()
    other = (vm.state / "keys/agent.pub").read_text().split()[1]
    known.write_text(f"{name} {kind} {other}\n")
    try:
        done = vm.ssh("true", root=True)  # root's sessions share no login
    finally:
        known.write_text(before)
    assert done.returncode == 255
    assert vm.ssh("true", root=True).returncode == 0


def test_qemu_runs_as_the_user(vm: World) -> None:
    assert os.stat(f"/proc/{pid_of_qemu(vm)}").st_uid == HOST_UID


def test_the_machines_own_addresses_are_not_asked_by_a_proxy(vm: World) -> None:
    assert ADDRESS not in vm.sh("echo $no_proxy")


def test_the_guest_finds_its_own_name(vm: World) -> None:
    lines = [line.split() for line in vm.sh("cat /etc/hosts; getent hosts $(hostname)").split("\n")]
    assert lines.count(["127.0.1.1", vm.state.name]) == 2  # in the file, and found
