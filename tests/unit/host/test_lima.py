"""``gitguard lima``: the file has only fields that Lima knows, and all that it must have."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from gitguardfs.base.constants import HOLDER
from gitguardfs.base.errors import UserError
from gitguardfs.host.commands import lima as command_module
from gitguardfs.host.commands.lima import command
from gitguardfs.host.share import lima_yaml as lima
from gitguardfs.host.share.lima_yaml import Distribution, LimaSpec, Tool
from tests.support.mounting import area

SCHEMA = json.loads((Path(__file__).parents[1] / "lima-schema.json").read_text())
FILES = command_module._texts()
EVERY = tuple(Tool)


def spec(**changed: Any) -> LimaSpec:
    given = {"project": "/srv/shop", "name": "agent-shop", "setup": "/srv/state/guest-files"}
    return LimaSpec(**{**given, **changed})


def written(**changed: Any) -> dict[str, Any]:
    found = yaml.safe_load(lima.render(spec(**changed), FILES))
    assert isinstance(found, dict)
    return found


def check(instance: dict[str, Any]) -> None:
    jsonschema.validate(instance, SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("distribution", Distribution)
@pytest.mark.parametrize("transport", ["9p", "virtiofs"])
@pytest.mark.parametrize("is_mac", [False, True])
def test_every_field_is_one_of_limas(
    distribution: Distribution, transport: str, is_mac: bool
) -> None:
    check(
        written(
            distribution=distribution, transport=transport, is_mac=is_mac, tools=EVERY,
            proxy="http://proxy.example.org:3128",
        )
    )  # fmt: skip


def _misspelt(instance: dict[str, Any]) -> None:
    instance["mounts"][0]["mountpoint"] = instance["mounts"][0].pop("mountPoint")


def _number_for_text(instance: dict[str, Any]) -> None:
    instance["memory"] = 8192


def _unknown_below(instance: dict[str, Any]) -> None:
    instance["mounts"][0]["9p"]["access"] = "0"


def _unknown_at_top(instance: dict[str, Any]) -> None:
    instance["sharedFolders"] = []


def _option_of_provision(instance: dict[str, Any]) -> None:
    instance["provision"][0]["sudo"] = True


@pytest.mark.parametrize(
    "spoil",
    [_misspelt, _number_for_text, _unknown_below, _unknown_at_top, _option_of_provision],
)
def test_the_schema_refuses_what_lima_would_only_warn_of(
    spoil: Callable[[dict[str, Any]], None],
) -> None:
    instance = copy.deepcopy(written())
    spoil(instance)
    with pytest.raises(jsonschema.ValidationError):
        check(instance)


def test_the_project_is_mounted_below_a_directory_of_roots_and_not_where_the_agent_looks() -> None:
    found = written()
    project, setup = found["mounts"]
    assert project["location"] == "/srv/shop" and project["writable"] is True
    assert setup["location"] == "/srv/state/guest-files" and setup["writable"] is False
    for mount in (project, setup):
        assert mount["mountPoint"].startswith(f"{HOLDER}/")
    guard = found["provision"][0]["script"]
    assert 'install -d -o root -g root -m 0700 "$HOLDER"\n' in guard
    assert (
        guard.index("install -d") < guard.index("\nmake_agent\n") < guard.rindex("\nguard_project")
    )


def test_the_agent_is_no_user_of_limas_and_limas_own_keeps_sudo() -> None:
    found = written()
    assert "user" not in found and "plain" not in found
    assert tuple(map(int, found["minimumLimaVersion"].split("."))) >= (2, 1, 3)
    assert "sudo" not in found["provision"][0]["script"].replace("and has sudo", "")


def test_the_transport_is_told_with_its_options() -> None:
    ninep = written(transport="9p")
    assert ninep["mountType"] == "9p" and ninep["vmType"] == "qemu"
    assert ninep["mounts"][0]["9p"] == {
        "securityModel": "none", "protocolVersion": "9p2000.L", "msize": "256KiB", "cache": "none",
    }  # fmt: skip
    virtiofs = written(transport="virtiofs")
    assert (virtiofs["mountType"], virtiofs["vmType"]) == ("virtiofs", "qemu")
    assert (
        virtiofs["mounts"][0]["virtiofs"] == {"queueSize": 1024}
        and "9p" not in virtiofs["mounts"][0]
    )
    mac = written(transport="virtiofs", is_mac=True)
    assert mac["vmType"] == "vz" and "virtiofs" not in mac["mounts"][0]
    assert written(transport="9p", is_mac=True)["vmType"] == "qemu"


@pytest.mark.parametrize("distribution", Distribution)
def test_images_are_pinned_for_both_architectures(distribution: Distribution) -> None:
    images = written(distribution=distribution)["images"]
    pinned = [image["arch"] for image in images if "digest" in image]
    assert sorted(pinned) == ["aarch64", "x86_64"]
    assert [image for image in images if "digest" in image] == images[: len(pinned)]
    for image in images[: len(pinned)]:
        algorithm, _, digest = image["digest"].partition(":")
        assert algorithm == "sha256" and len(digest) == 64 and int(digest, 16)
    if distribution is Distribution.UBUNTU:
        assert sorted(image["arch"] for image in images[2:]) == ["aarch64", "x86_64"]


def test_tools_are_a_list_each_once_after_what_it_needs() -> None:
    def names(*tools: Tool) -> list[str]:
        provided = lima.scripts(spec(tools=tools), {name: name for name in FILES})
        return [name.removeprefix("lima_tool_").removesuffix(".sh") for name in provided[1:]]

    assert names() == []
    assert names(Tool.CLAUDE) == ["node", "claude"]
    assert names(Tool.CLAUDE, Tool.NODE, Tool.PYTHON, Tool.CLAUDE) == ["node", "claude", "python"]
    assert names(*EVERY) == ["node", "claude", "python", "dotnet"]
    assert len(written(tools=EVERY)["provision"]) == 5


def test_a_proxy_is_set_for_all_programs_and_no_hosts_proxy_gets_in() -> None:
    assert "env" not in written() and written()["propagateProxyEnv"] is False
    found = written(proxy="http://proxy.example.org:3128")["env"]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        assert found[name] == "http://proxy.example.org:3128"
    assert "127.0.0.1" in found["no_proxy"] and found["NO_PROXY"] == found["no_proxy"]


def test_no_port_of_the_guest_shows_up_on_the_host() -> None:
    assert written()["portForwards"] == [{"guestIP": "0.0.0.0", "proto": "any", "ignore": True}]


@pytest.mark.parametrize("options", [(), ("git=readonly", "protect=.git*hub,x'y")])
def test_every_script_passes_shellcheck(options: tuple[str, ...], tmp_path: Path) -> None:
    found = written(tools=EVERY, options=options, project="/srv/it's a $(shop)")
    scripts = [one["script"] for one in (*found["provision"], *found["probes"])]
    assert len(scripts) == 6
    for number, script in enumerate(scripts):
        assert script.startswith("#!/bin/bash\n")
        # Lima expands templates in them.
        assert "{{" not in script and "#settings" not in script
        (tmp_path / f"{number}.sh").write_text(script)
    done = subprocess.run(
        ["shellcheck", "--norc", *sorted(tmp_path.iterdir())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_settings_reach_the_script_whole() -> None:
    options = ("protect=a b", "deny=x,y", "hide=it's")
    script = lima.scripts(spec(options=options), FILES)[0]
    settings = script[: script.index("# Before anything")]
    done = subprocess.run(
        ["bash", "-c", f'{settings}\nprintf "%s\\n" "$VIEW" "$OPTIONS"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "/home/agent/shop\nprotect=a b,deny=x\\,y,hide=it's\n"


@pytest.mark.parametrize(
    ("project", "name"),
    [("/a/shop", "shop"), ("/a/my shop", "my_shop"), ("/a/..x", "..x"), ("/a/-x", "project-x"),
     ("/a/été", "_t_"), ("/a/$(x)", "__x_")],
)  # fmt: skip
def test_the_views_name_needs_no_quoting_anywhere(project: str, name: str) -> None:
    assert lima.directory_name(project) == name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "a b"}, "cannot be the name"),
        ({"name": "-a"}, "cannot be the name"),
        ({"name": "a" * 33}, "cannot be the name"),
        ({"cpus": 0}, "--cpus"),
        ({"memory": 256}, "--memory"),
        ({"project": "/srv/{{.Home}}"}, "template"),
        ({"project": "/srv/a,b"}, "comma"),
        ({"project": "/srv/a\udcff"}, "not UTF-8"),
        ({"proxy": "proxy.example.org"}, "proxy"),
        ({"proxy": "ftp://proxy.example.org:1"}, "proxy"),
        ({"proxy": "http://proxy.example.org"}, "proxy"),
        ({"proxy": "http://proxy.example.org:99999"}, "proxy"),
        ({"proxy": "http://me:secret@proxy.example.org:3128"}, "credentials"),
        ({"proxy": "http://proxy.example.org:3128/$x"}, "/etc/environment"),
        ({"options": ("nosuch",)}, "nosuch"),
        ({"options": ("map=1:2",)}, "map"),
    ],
)
def test_what_lima_cannot_carry_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        spec(**changed)
    assert said in str(caught.value)


def test_a_comma_is_fine_over_virtiofs() -> None:
    check(written(project="/srv/a,b", transport="virtiofs"))


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(
        command, list(map(str, arguments)), env=environment, catch_exceptions=True
    )


def test_the_command_writes_the_file_outside_of_the_project_and_prints_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with area() as here:
        (here / "shop").mkdir()
        state = here / "state"
        monkeypatch.setenv("XDG_DATA_HOME", str(state))
        done = run("--project", here / "shop")
        assert done.exit_code == 0, done.output
        file = state / "gitguardfs/lima/agent-shop.yaml"
        check(yaml.safe_load(file.read_text()))
        lines = [line.strip() for line in done.output.splitlines()]
        assert f"limactl start --name=agent-shop --tty=false {file}" in lines
        assert "limactl shell agent-shop sudo -iu agent" in lines
        assert run("--project", here / "shop", "--cpus", "2").exit_code == 0
        (here / "elsewhere/shop").mkdir(parents=True)
        other = run("--project", here / "elsewhere/shop")
        assert "is the instance of another project" in str(other.exception), other.output
        assert str(here / "elsewhere") not in file.read_text()
        named = run("--project", here / "elsewhere/shop", "--name", "second")
        assert named.exit_code == 0, named.output
        assert "cannot restrict its network" in done.output
        assert "--attack" in done.output
        files = state / "gitguardfs/guest-files"
        assert (files / "gitguardfs/__init__.py").exists()
        assert os.access(files / "guest-setup/install.sh", os.X_OK)
        # Again, with other options: it is ours, so it is replaced.
        assert run("--project", here / "shop", "--cpus", "2").exit_code == 0
        assert yaml.safe_load(file.read_text())["cpus"] == 2
        file.write_text("# mine\n")
        refused = run("--project", here / "shop")
        assert isinstance(refused.exception, UserError)
        assert file.read_text() == "# mine\n"


def test_nothing_that_the_host_starts_lies_in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    with area() as here:
        (here / "shop").mkdir()
        (here / "link").symlink_to(here / "shop")
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "shop/state"))
        refused = run("--project", here / "shop", "--output", here / "file.yaml")
        assert "shared project" in str(refused.exception)
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        for inside in ("shop/agent.yaml", "link/agent.yaml", "shop/../shop/a.yaml"):
            refused = run("--project", here / "shop", "--output", here / inside)
            assert "shared project" in str(refused.exception), inside
        assert os.listdir(here / "shop") == []


def test_the_file_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    with area() as here:
        (here / "shop").mkdir()
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        done = run("--project", here / "shop", "--output", "-", "--no-tools", "--image", "fedora")
        assert done.exit_code == 0
        found = yaml.safe_load(done.output)
        check(found)
        assert len(found["provision"]) == 1 and "fedora" in found["images"][0]["location"]


def test_dependencies_are_kept_in_the_guest_unless_that_is_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with area() as here:
        (here / "shop").mkdir()
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        for words, options in (
            ((), "local=deps"),
            (("-o", "git=deny", "--local", "dist"), "git=deny,local=dist"),
            (("--no-local",), "''"),
        ):
            done = run("--project", here / "shop", "--output", "-", *words)
            script = yaml.safe_load(done.output)["provision"][0]["script"]
            assert f"\nOPTIONS={options}\n" in script
        refused = run("--project", here / "shop", "--no-local", "--local", "dist")
        assert "--local and --no-local contradict" in str(refused.exception)


def test_labels_are_printed_where_selinux_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with area() as here:
        (here / "shop").mkdir()
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        assert "semanage" not in run("--project", here / "shop").output
        monkeypatch.setattr("gitguardfs.host.commands.share.needs_label", lambda *_: True)
        said = run("--project", here / "shop").output
        assert f"sudo semanage fcontext -a -t svirt_home_t '{here}/shop(/.*)?'" in said
        assert f"sudo restorecon -R {here}/shop" in said


def test_a_state_directory_that_others_can_change_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with area() as here:
        (here / "shop").mkdir()
        (here / "state/gitguardfs").mkdir(parents=True)
        (here / "state/gitguardfs").chmod(0o777)
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        assert "you alone can change" in str(run("--project", here / "shop").exception)
