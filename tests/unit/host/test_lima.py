"""``gitguard lima``: the file has only fields that Lima knows, and all that it must have."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from gitguardfs.base import installation
from gitguardfs.base.constants import HOLDER, PROJECT_SHARE
from gitguardfs.base.errors import UserError
from gitguardfs.host.commands.lima import command
from gitguardfs.host.share import lima_yaml as lima
from gitguardfs.host.share.lima_yaml import Distribution, LimaSpec, Tool
from tests.support.mounting import area

SCHEMA = json.loads((Path(__file__).parents[1] / "lima-schema.json").read_text())


def spec(**changed: Any) -> LimaSpec:
    given = {"project": "/srv/shop", "name": "agent-shop", "setup": "/srv/state/guest-files"}
    return LimaSpec(**{**given, **changed})


def written(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(lima.render(spec(**changed)))
    return found


def check(instance: dict[str, Any]) -> None:
    jsonschema.validate(instance, SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("distribution", Distribution)
@pytest.mark.parametrize("transport", ["9p", "virtiofs"])
@pytest.mark.parametrize("is_mac", [False, True])
def test_every_field_is_one_of_limas(
    distribution: Distribution, transport: str, is_mac: bool
) -> None:
    found = written(
        distribution=distribution, transport=transport, is_mac=is_mac, tools=tuple(Tool),
        proxy="http://proxy.example.org:3128",
    )  # fmt: skip
    check(found)
    is_vz = is_mac and transport == "virtiofs"
    assert (found["mountType"], found["vmType"]) == (transport, "vz" if is_vz else "qemu")
    pinned = [image["arch"] for image in found["images"][:2] if "digest" in image]
    assert sorted(pinned) == ["aarch64", "x86_64"]
    assert distribution in found["images"][0]["location"].lower()


def test_the_template_can_be_started_by_itself() -> None:
    found = yaml.safe_load(installation.text("host/share/files/lima.yaml"))
    check(found)
    # Lima refuses a parameter that nothing uses.
    text = json.dumps([found["mounts"], found["provision"], found["probes"]])
    for name in found["param"]:
        assert f".Param.{name}}}}}" in text or f"PARAM_{name}" in text


def test_what_the_user_chooses_is_in_the_file() -> None:
    options = ("git=readonly", "deny=x,y", "hide=it's")
    project = '/srv/it\'s "a" \\ $(shop) é'
    found = written(
        cpus=2, memory=4096, disk=2048, project=project, options=options, tools=(Tool.NODE,)
    )  # fmt: skip
    assert (found["cpus"], found["memory"], found["disk"]) == (2, "4096MiB", "2048MiB")
    assert found["param"] == {
        "project": project, "setup": "/srv/state/guest-files", "name": "it_s__a______shop___",
        "options": "git=readonly,deny=x\\,y,hide=it's", "tools": "node",
    }  # fmt: skip


def test_the_project_is_mounted_below_a_directory_of_roots() -> None:
    found = written()
    places = [(mount["mountPoint"], mount["writable"]) for mount in found["mounts"]]
    assert places == [(PROJECT_SHARE, True), (f"{HOLDER}/setup", False)]
    guard = found["provision"][0]["script"]
    assert f"holder={HOLDER}\n" in guard
    assert guard.index("install -d") < guard.index("useradd") < guard.index("vm-mount")


def test_the_agent_is_no_user_of_limas_and_no_port_or_key_leaves_the_host() -> None:
    found = written()
    assert "user" not in found and "plain" not in found and "env" not in found
    assert tuple(map(int, found["minimumLimaVersion"].split("."))) >= (2, 1, 3)
    assert found["portForwards"] == [{"guestIP": "0.0.0.0", "proto": "any", "ignore": True}]
    assert found["ssh"] == dict.fromkeys(("loadDotSSHPubKeys", "forwardAgent", "forwardX11"), False)
    assert found["propagateProxyEnv"] is False
    ninep = {"securityModel": "none", "protocolVersion": "9p2000.L", "msize": "256KiB"}
    assert found["mounts"][0]["9p"] == {**ninep, "cache": "none"}


def test_a_proxy_is_set_for_all_programs() -> None:
    found = written(proxy="http://proxy.example.org:3128")["env"]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        assert found[name] == "http://proxy.example.org:3128"
    assert "127.0.0.1" in found["no_proxy"] and found["NO_PROXY"] == found["no_proxy"]


def test_every_script_passes_shellcheck(tmp_path: Path) -> None:
    found = written()
    for number, one in enumerate((*found["provision"], *found["probes"])):
        assert "{{" not in one["script"], "Lima expands templates in it"
        (tmp_path / f"{number}.sh").write_text(one["script"])
    done = subprocess.run(
        ["shellcheck", "--norc", *sorted(tmp_path.iterdir())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("tools", "installed"),
    [
        ("", []),
        ("claude node", ["nodejs npm", "npm install"]),
        ("python", ["python3 python3-pip", "python3-venv"]),
        ("dotnet", ["dotnet-sdk-8.0"]),
        ("emacs", None),
    ],
)
def test_tools_bring_what_they_need(
    tmp_path: Path, tools: str, installed: list[str] | None
) -> None:
    common = tmp_path / "common.sh"
    common.write_text(f"""
os_family() {{ echo debian; }}
die() {{ echo "$*" >&2; exit 1; }}
refresh_lists() {{ :; }}
add_packages() {{ shift; echo "$*" >>{tmp_path}/calls; }}
runuser() {{ echo npm install >>{tmp_path}/calls; }}
command() {{ return 1; }}
apt-cache() {{ [[ "$2" == dotnet-sdk-8.0 ]]; }}
dnf() {{ return 1; }}
""")
    script = written()["provision"][1]["script"]
    script = script.replace(f"{HOLDER}/setup/guest-setup/common.sh", str(common))
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "PARAM_tools": tools})
    assert (done.returncode == 0) == (installed is not None)
    calls = tmp_path / "calls"
    assert (calls.read_text().splitlines() if calls.exists() else []) == (
        ["nodejs npm", "npm install", "nodejs npm"] if "claude" in tools else installed or []
    )


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


def test_dependencies_are_kept_in_the_guest_unless_that_is_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with area() as here:
        (here / "shop").mkdir()
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        for words, options in (
            ((), "local=deps"),
            (("-o", "git=deny", "--local", "dist"), "git=deny,local=dist"),
            (("--no-local",), ""),
        ):
            done = run("--project", here / "shop", "--output", "-", *words)
            assert yaml.safe_load(done.output)["param"]["options"] == options
        refused = run("--project", here / "shop", "--no-local", "--local", "dist")
        assert "--local and --no-local contradict" in str(refused.exception)


def test_a_state_directory_that_others_can_change_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with area() as here:
        (here / "shop").mkdir()
        (here / "state/gitguardfs").mkdir(parents=True)
        (here / "state/gitguardfs").chmod(0o777)
        monkeypatch.setenv("XDG_DATA_HOME", str(here / "state"))
        assert "its owner alone can change" in str(run("--project", here / "shop").exception)
