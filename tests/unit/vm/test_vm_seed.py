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
from gitguardfs.host.commands.vm.up import GIT_MODES
from gitguardfs.host.share import agent_rules
from gitguardfs.host.vm import guest_files, keys, provision, seed
from gitguardfs.host.vm.guest_files import GuestFile, GuestSettings
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.names.rules import GitMode

LOGIN = seed.GuestKeys(
    "ssh-ed25519 AGENT", "ssh-ed25519 ADMIN", "PRIVATE\nKEY\n", "ssh-ed25519 HOST"
)
OWNER = (501, 20)
CA = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


def data_of(text: str) -> dict[str, Any]:
    assert text.startswith("#cloud-config\n")
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def files_of(settings: Settings) -> dict[str, str]:
    found = provision.guest_files(settings, CA, owner=OWNER)
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


def test_cloud_init_sets_a_guest_up_anew_each_time() -> None:
    """With the same instance, a setup that was killed would count as done."""
    files = [seed.cloud_init_files("vm", LOGIN, []) for _ in range(2)]
    first, second = (yaml.safe_load(each["meta-data"])["instance-id"] for each in files)
    assert first != second


def test_a_setup_that_is_killed_is_told(tmp_path: Path) -> None:
    """Otherwise the host would wait."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$1"\n[ "$1" != setup ] || kill -9 $$\n')
    program.chmod(0o755)
    ((*words, line),) = data_of(seed.user_data("vm", LOGIN, []))["runcmd"]
    words.append(line.replace(guest_files.PROGRAM, str(program)))
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["setup", "end"]


def test_whatever_differs_has_another_digest() -> None:
    contents: list[dict[str, bytes]] = [
        {}, {"x": b"a"}, {"x": b"b"}, {"x": b"ab"}, {"x": b"a", "y": b"b"}, {"y": b"a", "x": b"b"},
    ]  # fmt: skip
    assert len({seed.digest(content) for content in contents}) == len(contents)


# The seed of a VM's start


@pytest.fixture(scope="module")
def login_keys(tmp_path_factory: pytest.TempPathFactory) -> keys.Keys:
    return keys.ensure(State("/srv/p", str(tmp_path_factory.mktemp("vm"))))


def start_content(
    login_keys: keys.Keys, settings: Settings, ca: str = CA, by_cloud_init: bool = False
) -> dict[str, bytes]:
    own = provision.guest_files(settings, ca, owner=OWNER)
    return provision.content("vm-1", own, login_keys, ca, by_cloud_init)


def archive_of(content: dict[str, bytes]) -> dict[str, tuple[int, str]]:
    """Return mode and text of each file that a start writes."""
    with tarfile.open(fileobj=io.BytesIO(content["files.tar"])) as tar:
        found = {}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None, "a directory would change that of the guest"
            found[f"/{member.name}"] = (member.mode, file.read().decode(errors="replace"))
        return found


def test_a_start_is_given_keys_and_authority_of_this_vm(login_keys: keys.Keys) -> None:
    content = start_content(login_keys, Settings("/srv/p"))
    files = archive_of(content)
    assert files["/etc/hostname"] == (0o644, "vm-1\n")
    assert files[provision.HOST_KEY] == (0o600, login_keys.private_text(keys.HOST))
    assert files["/etc/gitguard-vm/keys/root"][1].strip() == login_keys.public_text(keys.ADMIN)
    assert files[guest_files.CA_FILE] == (0o644, CA)
    assert "user-data" not in content and "is-shared" not in content
    everything = b"".join(content.values())
    for name in (keys.AGENT, keys.ADMIN):
        assert login_keys.private_text(name).encode() not in everything


def test_a_start_is_given_the_same_unless_something_differs(login_keys: keys.Keys) -> None:
    def digests(settings: Settings, ca: str = CA) -> dict[str, bytes]:
        content = start_content(login_keys, settings, ca)
        return {name: data for name, data in content.items() if name.endswith(".digest")}

    first = digests(Settings("/srv/p"))
    assert digests(Settings("/srv/p", memory=9000)) == first
    for settings in (
        Settings("/srv/p", git_name="Another"), Settings("/srv/p", hide=(".env",)),
        Settings("/srv/q"),
    ):  # fmt: skip
        other = digests(settings)
        assert {name for name in first if first[name] != other[name]} == {"files.digest"}
    assert (
        digests(Settings("/srv/p"), CA.replace("Q0E=", "Q0I="))["files.digest"]
        != first["files.digest"]
    )


def test_a_disk_that_vms_share_is_given_nothing_of_a_vm(login_keys: keys.Keys) -> None:
    shared = provision.shared_content()
    content = provision.disk_content("build-1", login_keys, CA, shared)
    assert content["is-shared"]
    data = data_of(content["user-data"].decode())
    written = {file["path"]: file["content"] for file in data["write_files"]}
    assert guest_files.CA_FILE not in written
    assert "BEGIN CERTIFICATE" not in content["user-data"].decode()
    assert provision.shared_content() == shared


def test_a_disk_of_an_older_version_is_set_up_by_cloud_init(login_keys: keys.Keys) -> None:
    content = start_content(login_keys, Settings("/srv/p"), by_cloud_init=True)
    data = data_of(content["user-data"].decode())
    assert data["ssh_keys"]["ed25519_private"] == login_keys.private_text(keys.HOST)
    assert guest_files.PROGRAM in str(data["runcmd"])
    assert "is-shared" not in content


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
    assert path.read_bytes().startswith(seed.digest(content))  # which the guest reads, unmounted
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
    guest = GuestSettings(CA, "/v", "deny", (), "", {}, name, mail, "")
    text = {f.path: f.data for f in guest_files.files(guest)}["/etc/gitconfig"]
    for key, value in (("user.name", name), ("user.email", mail)):
        done = subprocess.run(
            ["git", "config", "-z", "--file", "-", key], input=text, capture_output=True
        )
        assert done.stdout == value.encode() + b"\0", text


@given(view=TEXTS, service=TEXTS)
def test_the_program_reads_its_values_as_they_were_given(view: str, service: str) -> None:
    guest = GuestSettings(CA, f"/home/agent/{view}", "deny", (), service, {}, "n", "m", "")
    text = {f.path: f.data for f in guest_files.files(guest)}[guest_files.CONFIG]
    shown = text + b'\nprintf "%s\\0" "$VIEW" "$SERVICE"'
    done = subprocess.run(["sh"], input=shown, capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [f"/home/agent/{view}", service, ""]


@pytest.mark.parametrize("git", GIT_MODES)
def test_agents_read_what_they_may_do_with_git_and_that_they_must_not_push(git: str) -> None:
    files = files_of(Settings("/srv/p", git=git))
    for path in ("/etc/claude-code/CLAUDE.md", "/etc/gitguard-vm/AGENTS.md"):
        assert "Never run `git push`" in files[path]
        assert agent_rules.text(GitMode(git), ()) in files[path]
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


def test_the_guards_options() -> None:
    assert provision.mount_options(Settings("/srv/p")) == ("git=private", "local=deps")
    assert provision.mount_options(Settings("/srv/p", guard="host")) == ("git=deny", "local=deps")
    settings = Settings("/srv/p", git="readonly", hide=(".env", "*.pem"), local=())
    assert provision.mount_options(settings) == ("git=readonly", "hide=.env", "hide=*.pem")


def test_a_start_has_the_units_of_share_and_guard() -> None:
    """So the view has the newest settings from its first moment on."""
    files = files_of(Settings("/srv/my project", git="readonly", hide=(".env",)))
    (drop_in,) = [text for path, text in files.items() if path.endswith("/share.conf")]
    assert "map=501/1000:1000/501:@20/@1000:@1000/@20" in drop_in
    assert "git=readonly,hide=.env" in drop_in
    share = files["/etc/systemd/system/var-lib-gitguardfs-shares-project.mount"]
    assert "What=project\n" in share and "access=0" in share
    service = "gitguardfs@home-agent-projects-my\\x20project.service"
    assert f"{service}.d/share.conf" in "".join(files)
    config = files[guest_files.CONFIG]
    done = subprocess.run(
        ["sh"], input=f'{config}\nprintf %s "$SERVICE"', capture_output=True, text=True
    )
    assert done.stdout == service


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
        assert "gitguardfs/guest/run.py" in names
        assert "gitguardfs/host/vm/guest.sh" in names
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


def test_the_program_is_shell() -> None:
    script = Path(provision.__file__).with_name("guest.sh")
    assert files_of(Settings("/srv/p"))[guest_files.PROGRAM] == script.read_text()
    subprocess.run(["bash", "-n", script], check=True)
