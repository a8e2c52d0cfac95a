"""The files for the guest: user-data, settings for each tool, the running package."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pycdlib
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.host.share import agent_rules
from gitguardfs.host.vm import guest_files, keys, provision, seed, shares
from gitguardfs.host.vm.guest_files import GuestFile
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.up_options import BY_KEY
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
    found = provision.guest_files(settings, CA, owners=[OWNER])
    return {file.path: file.data.decode(errors="replace") for file in found}


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


@given(st.dictionaries(TEXTS, st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_files_come_out_of_the_user_data_as_they_went_in(content: dict[str, str]) -> None:
    given_files = [GuestFile(f"/etc/{path}", text) for path, text in content.items()]
    data = data_of(seed.user_data("vm", LOGIN, given_files))
    written = {file["path"]: file["content"] for file in data["write_files"][2:]}
    assert written == {file.path: file.content for file in given_files}


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


# The seed of a VM's start


@pytest.fixture(scope="module")
def login_keys(tmp_path_factory: pytest.TempPathFactory) -> keys.Keys:
    return keys.ensure(State("/srv/p", str(tmp_path_factory.mktemp("vm"))))


def start_content(login_keys: keys.Keys, settings: Settings, ca: str = CA) -> dict[str, bytes]:
    own = provision.guest_files(settings, ca, owners=[OWNER])
    return provision.content("vm-1", own, login_keys, ca)


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


@pytest.mark.skipif(shutil.which("git") is None, reason="not installed: git")
@given(name=TEXTS, mail=TEXTS)
def test_git_reads_the_agents_name_as_it_was_given(name: str, mail: str) -> None:
    try:
        settings = Settings("/p", git_name=name, git_email=mail)
    except UserError:
        return
    text = {f.path: f.data for f in guest_files.files(settings, {})}["/etc/gitconfig"]
    for key, value in (("user.name", name), ("user.email", mail)):
        done = subprocess.run(
            ["git", "config", "-z", "--file", "-", key], input=text, capture_output=True
        )
        assert done.stdout == value.encode() + b"\0", text


NAMES = TEXTS.filter(lambda name: "/" not in name)


@given(st.lists(NAMES, min_size=1, max_size=3, unique=True), TEXTS, st.lists(TEXTS, max_size=2))
def test_the_program_reads_its_values_as_they_were_given(
    names: list[str], service: str, more: list[str]
) -> None:
    settings = Settings(f"/srv/{names[0]}", share=tuple(f"/srv/{name}:ro" for name in names[1:]))
    files = guest_files.files(settings, {}, services=[service, *more])
    text = {f.path: f.data for f in files}[guest_files.CONFIG]
    words = b'"$VIEW" "${MORE_VIEWS[@]}" "$SERVICE" "${MORE_SERVICES[@]}"'
    shown = text + b"\nset -u; printf '%s\\0' " + words
    done = subprocess.run(["bash"], input=shown, capture_output=True, check=True)
    views = [share.view for share in settings.shares]
    assert done.stdout.decode().split("\0") == [*views, service, *more, ""]


@pytest.mark.parametrize("git", BY_KEY["git"].choices)
def test_agents_read_what_they_may_do_with_git_and_that_they_must_not_push(git: str) -> None:
    files = files_of(Settings("/srv/p", git=git))
    for path in ("/etc/claude-code/CLAUDE.md", "/etc/gitguard-vm/AGENTS.md"):
        assert "Never run `git push`" in files[path]
        assert agent_rules.text(GitMode(git), ()) in files[path]
    denied = json.loads(files["/etc/claude-code/managed-settings.json"])["permissions"]["deny"]
    assert "Bash(git push:*)" in denied


def test_the_guards_options() -> None:
    default = ("hide-secrets", "local=deps")
    assert provision.mount_options(Settings("/srv/p")) == ("git=private", *default)
    assert provision.mount_options(Settings("/srv/p", guard="host")) == ("git=deny", *default)
    settings = Settings("/srv/p", git="readonly", hide=("a", "*.pem"), show=(".env",), local=())
    assert provision.mount_options(settings) == (
        "git=readonly", "hide=a", "hide=*.pem", "hide-secrets", "show=.env"
    )  # fmt: skip
    settings = dataclasses.replace(settings, hide_secrets=False)
    assert provision.mount_options(settings) == ("git=readonly", "hide=a", "hide=*.pem")


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
        ["bash"], input=f'{config}\nprintf %s "$SERVICE"', capture_output=True, text=True
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
    assert shares.view_of(project) == f"/home/agent/projects/{view}"
