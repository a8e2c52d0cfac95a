"""The files for the guest: user-data, settings for each tool, the running package."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pycdlib
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import gitguardfs
from gitguardfs.guard.rules import GitMode
from gitguardfs.render import agent_rules
from gitguardfs.vm import guest_files, provision, seed
from gitguardfs.vm.commands.up import GIT_MODES
from gitguardfs.vm.guest_files import GuestFile, GuestSettings
from gitguardfs.vm.settings import Settings
from gitguardfs.vm.state import State

LOGIN = seed.GuestKeys(
    "ssh-ed25519 AGENT", "ssh-ed25519 ADMIN", "PRIVATE\nKEY\n", "ssh-ed25519 HOST"
)
CA = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


def data_of(text: str) -> dict[str, Any]:
    assert text.startswith("#cloud-config\n")
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def files_of(settings: Settings) -> dict[str, str]:
    found = provision.guest_files(settings, CA)
    return {file.path: file.data.decode(errors="replace") for file in found}


def test_the_agent_has_no_way_to_become_root() -> None:
    data = data_of(seed.user_data("vm", LOGIN, []))
    (user,) = data["users"]
    assert user["name"] == "agent"
    assert user["lock_passwd"] is True
    assert not {"sudo", "groups", "passwd", "hashed_passwd"} & user.keys()
    assert "default" not in str(data["users"])
    assert data["ssh_pwauth"] is False


def test_the_keys_that_may_log_in_lie_where_root_alone_writes() -> None:
    data = data_of(seed.user_data("vm", LOGIN, []))
    keys = {file["path"]: file["content"] for file in data["write_files"]}
    assert keys == {
        "/etc/gitguard-vm/keys/agent": "ssh-ed25519 AGENT\n",
        "/etc/gitguard-vm/keys/root": "ssh-ed25519 ADMIN\n",
    }
    sshd = files_of(Settings("/srv/p"))["/etc/ssh/sshd_config.d/10-gitguard-vm.conf"]
    assert "AuthorizedKeysFile /etc/gitguard-vm/keys/%u\n" in sshd
    assert "ssh_authorized_keys" not in str(data)
    assert data["no_ssh_fingerprints"] is True


def test_the_guest_shows_itself_with_the_pinned_key_alone() -> None:
    data = data_of(seed.user_data("vm", LOGIN, []))
    assert data["ssh_keys"] == {
        "ed25519_private": "PRIVATE\nKEY\n",
        "ed25519_public": "ssh-ed25519 HOST",
    }
    assert data["ssh_deletekeys"] is True


@given(st.dictionaries(TEXTS, st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_files_come_out_of_the_user_data_as_they_went_in(content: dict[str, str]) -> None:
    given_files = [GuestFile(f"/etc/{path}", text) for path, text in content.items()]
    data = data_of(seed.user_data("vm", LOGIN, given_files))
    written = {file["path"]: file["content"] for file in data["write_files"][2:]}
    assert written == {file.path: file.content for file in given_files}


def test_modes_are_what_cloud_init_reads_as_octal() -> None:
    data = data_of(seed.user_data("vm", LOGIN, [GuestFile("/x", "", 0o755)]))
    assert [file["permissions"] for file in data["write_files"]] == ["0644", "0644", "0755"]


def test_whatever_differs_is_another_instance(tmp_path: Path) -> None:
    state = State("/srv/p", str(tmp_path))
    contents: list[dict[str, bytes]] = [
        {}, {"x": b"a"}, {"x": b"b"}, {"x": b"ab"}, {"x": b"a", "y": b"b"}, {"y": b"a", "x": b"b"},
        seed.files("vm", LOGIN, [], b""), seed.files("vm", LOGIN, [], b"payload"),
        seed.files("vm", LOGIN, [GuestFile("/x", "")], b""),
    ]  # fmt: skip
    for kept in contents:
        name = seed.instance(state, kept)
        for other in contents:
            seed.save_instance(state, name)
            assert (seed.instance(state, other) == name) == (other == kept)


def test_a_guest_that_was_never_set_up_is_another_instance_each_time(tmp_path: Path) -> None:
    state = State("/srv/p", str(tmp_path))
    content = seed.files("vm", LOGIN, [], b"")
    first, second = seed.instance(state, content), seed.instance(state, content)
    assert first != second
    seed.save_instance(state, second)
    assert seed.instance(state, content) == seed.instance(state, content) == second
    assert yaml.safe_load(seed.meta_data("vm", second))["instance-id"] == second


def test_a_second_setup_is_another_instance_each_time_until_one_ends(tmp_path: Path) -> None:
    """With the same instance, a setup that was killed would count as done."""
    state = State("/srv/p", str(tmp_path))
    older = seed.files("vm", LOGIN, [], b"old")
    first = seed.instance(state, older)
    seed.save_instance(state, first)
    newer = seed.files("vm", LOGIN, [], b"new")
    killed, again = seed.instance(state, newer), seed.instance(state, newer)
    assert killed != again
    assert seed.instance(state, older) != first, "it is half of the newer now"
    seed.save_instance(state, again)
    assert seed.instance(state, newer) == again


def test_the_guest_has_neither_a_route_nor_a_name_server() -> None:
    card = yaml.safe_load(seed.network_config())["ethernets"]["net"]
    assert card["addresses"] == ["10.0.2.15/24"]
    assert (card["dhcp4"], card["dhcp6"], card["accept-ra"]) == (False, False, False)
    assert not {"routes", "gateway4", "nameservers"} & card.keys()


def test_the_iso_holds_the_files_under_their_names(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    content = {"user-data": b"#cloud-config\n", "meta-data": b"x: 1\n", "gitguardfs.tar": b"\0" * 9}
    for _ in range(2):  # the second replaces the first
        seed.write(str(path), content)
    assert os.listdir(tmp_path) == ["seed.iso"]
    assert path.stat().st_mode & 0o777 == 0o600  # it holds the guest's private key
    iso = pycdlib.PyCdlib()
    iso.open(str(path))
    assert iso.pvd.volume_identifier.strip() == b"cidata"
    for name, data in content.items():
        for key in ("rr_path", "joliet_path"):
            buffer = io.BytesIO()
            iso.get_file_from_iso_fp(buffer, **{key: f"/{name}"})
            assert buffer.getvalue() == data
    iso.close()


# Settings of the guest's tools


def test_each_tool_is_told_of_the_proxy_and_of_its_authority() -> None:
    files = files_of(Settings("/srv/p"))
    proxy, bundle = guest_files.PROXY, guest_files.BUNDLE
    for path in ("/etc/apt/apt.conf.d/95gitguard-vm", "/etc/pip.conf", "/etc/npmrc",
                 "/etc/gitconfig", "/etc/environment",
                 "/etc/systemd/system.conf.d/50-gitguard-vm.conf"):  # fmt: skip
        assert proxy in files[path], path
        assert bundle in files[path], path
    assert files[guest_files.CA_FILE] == CA
    environment = guest_files.environment()
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "CARGO_HTTP_PROXY"):
        assert environment[name] == proxy
    for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO"):
        assert environment[name] == bundle
    assert "-Dhttps.proxyPort=8080" in environment["JAVA_TOOL_OPTIONS"]


@pytest.mark.skipif(shutil.which("git") is None, reason="not installed: git")
@given(name=TEXTS, mail=TEXTS)
def test_git_reads_the_agents_name_as_it_was_given(name: str, mail: str) -> None:
    guest = GuestSettings(CA, "/v", "deny", (), "", name, mail, "")
    text = {f.path: f.data for f in guest_files.files(guest, "/p")}["/etc/gitconfig"]
    for key, value in (("user.name", name), ("user.email", mail)):
        done = subprocess.run(
            ["git", "config", "-z", "--file", "-", key], input=text, capture_output=True
        )
        assert done.stdout == value.encode() + b"\0", text


@given(view=TEXTS, options=TEXTS)
def test_the_provisioning_script_reads_its_values_as_they_were_given(
    view: str, options: str
) -> None:
    guest = GuestSettings(CA, f"/home/agent/{view}", "deny", (), options, "n", "m", "")
    text = {f.path: f.data for f in guest_files.files(guest, "/p")}[guest_files.CONFIG]
    shown = text + b'\nprintf "%s\\0" "$VIEW" "$MOUNT_OPTIONS"'
    done = subprocess.run(["sh"], input=shown, capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [f"/home/agent/{view}", options, ""]


@pytest.mark.parametrize("git", GIT_MODES)
def test_agents_read_what_they_may_do_with_git_and_that_they_must_not_push(git: str) -> None:
    files = files_of(Settings("/srv/p", git=git))
    for path in ("/etc/claude-code/CLAUDE.md", "/etc/gitguard-vm/AGENTS.md"):
        assert "Never run `git push`" in files[path]
        assert agent_rules.about_git(GitMode(git)) in files[path]
    denied = json.loads(files["/etc/claude-code/managed-settings.json"])["permissions"]["deny"]
    assert "Bash(git push:*)" in denied


def test_agents_read_which_directories_are_the_guests_own() -> None:
    for local, told, untold in (
        (("deps",), "`node_modules`, `.venv`", "`dist`"),
        (("dist",), "`dist`", "`node_modules`"),
        ((), "", "directories"),
    ):
        files = files_of(Settings("/srv/p", local=local))
        for path in ("/etc/claude-code/CLAUDE.md", "/etc/gitguard-vm/AGENTS.md"):
            paragraphs = files[path].replace("\n- ", "\n\n- ").split("\n\n")
            said = "".join(one for one in paragraphs if one.startswith("Directories called"))
            assert told in said and untold not in said


def test_sshd_takes_keys_alone() -> None:
    text = files_of(Settings("/srv/p"))["/etc/ssh/sshd_config.d/10-gitguard-vm.conf"]
    assert "PasswordAuthentication no" in text
    assert "PermitRootLogin prohibit-password" in text
    assert "AllowAgentForwarding no" in text


def test_the_mounts_options() -> None:
    assert provision.mount_options(Settings("/srv/p")) == "git=private,local=deps"
    assert provision.mount_options(Settings("/srv/p", guard="host")) == "git=deny,local=deps"
    settings = Settings("/srv/p", git="readonly", hide=(".env", "*.pem"), local=())
    assert provision.mount_options(settings) == "git=readonly,hide=.env,hide=*.pem"


@pytest.mark.parametrize(
    ("project", "view"),
    [
        ("/srv/my project", "my project"),
        ("/srv/é+@_.x", "é+@_.x"),
        ("/srv/a\nb;c$d'e", "a_b_c_d_e"),
        ("/srv/-x", "project-x"),
        ("/srv/...", "project..."),
    ],
)
def test_the_view_has_the_projects_name_as_far_as_that_is_safe(project: str, view: str) -> None:
    assert provision.view_of(project) == f"/home/agent/projects/{view}"


# The package


def test_the_payload_is_the_running_package_and_the_same_each_time() -> None:
    payload = provision.payload()
    assert payload == provision.payload()
    package = Path(gitguardfs.__file__).parent
    with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
        names = tar.getnames()
        assert "gitguardfs/vm_mount/command.py" in names
        assert "gitguardfs/vm/provision.sh" in names
        assert "guest-setup/vm-apps.sh" in names
        assert not [name for name in names if "__pycache__" in name or name.startswith("/")]
        member = tar.extractfile("gitguardfs/commands/gitguardfs.py")
        assert member is not None
        assert member.read() == (package / "commands/gitguardfs.py").read_bytes()


def test_the_payload_runs_elsewhere(tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", "-", "-C", tmp_path], input=provision.payload(), check=True)
    where = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    code = f"{where}; from gitguardfs.commands.gitguardfs import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "--version"], capture_output=True, text=True
    )
    assert gitguardfs.__version__ in done.stdout, done.stderr


def test_the_provisioning_script_is_shell() -> None:
    script = Path(provision.__file__).with_name("provision.sh")
    assert files_of(Settings("/srv/p"))[seed.PROVISION] == script.read_text()
    subprocess.run(["bash", "-n", script], check=True)
