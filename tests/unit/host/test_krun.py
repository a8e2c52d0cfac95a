"""``gitguard krun``: its three files, podman's command lines, and what is refused."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.constants import LOCAL_STORE, PRIVATE_STORE, PROJECT_SHARE
from gitguardfs.base.errors import UserError
from gitguardfs.base.installation import PACKAGE_DIRECTORY, PACKAGE_PARENT
from gitguardfs.host.share import krun_text as krun
from gitguardfs.host.share.krun_text import ContainerNetwork, KrunSpec
from tests.support.mounting import area
from tests.support.people import AGENT

FILES = Path(PACKAGE_DIRECTORY, "host/share/files")
PYTHON_BIN = Path(sys.executable).parent
"""Where pip has put the programs of the test requirements."""

# Writes down how it was called; knows the images that a file beside it lists.
PODMAN = """\
#!/bin/sh
here=$(dirname "$0")
case "$1 $2" in
    "--version "* | "version "*) echo "podman version 5.4.0"; exit ;;
    "inspect -t") echo 0123456789ab; exit ;;
    "image exists") grep -qxF "$3" "$here/images"; exit ;;
esac
printf '%s\\0' "$@" >>"$here/calls"
printf '\\n' >>"$here/calls"
[ "$1" != run ] || exit 7
"""


def spec(**changed: Any) -> KrunSpec:
    given = {"project": "/srv/shop", "uid": 1000, "gid": 1000}
    return KrunSpec(**{**given, **changed})


OPTIONS = ("protect=a$b c", "git=readonly")
SPECS = (
    spec(),
    spec(network=ContainerNetwork.NONE, options=(*OPTIONS, "local=deps"), cpus=2, memory=4096),
    spec(project="/srv/it's a $(shop)"),
)


def test_podmans_command_has_all_that_the_microvm_needs() -> None:
    words = krun.run(spec(cpus=2, memory=4096, options=OPTIONS), ("ls", "-l"), terminal=True)
    assert words[:2] == ["podman", "run"] and words[-2:] == ["ls", "-l"]
    name = spec().name
    for word in (
        "--rm", "--interactive", "--tty", "--annotation=krun.cpus=2",
        "--annotation=krun.ram_mib=4096", "--userns=keep-id", "--user=0:0",
        f"--volume=/srv/shop:{PROJECT_SHARE}:z", f"--volume={name}-venv:/home/agent/.venv",
        f"--volume={name}-config:/home/agent/.claude",
        "--env=GITGUARD_OPTIONS=protect=a$b c,git=readonly", "--runtime=krun",
    ):  # fmt: skip
        assert words.count(word) == 1, word
    volumes = (f"--volume={name}-git:{PRIVATE_STORE}", f"--volume={name}-local:{LOCAL_STORE}")
    assert set(volumes) <= set(krun.run(spec(options=("local=deps",)), (), terminal=False))
    assert not set(volumes) & set(words)
    assert words[-3] == f"localhost/{name}"
    assert not [word for word in words if word.startswith(("--network", "--privileged", "--cap"))]
    assert "--tty" not in krun.run(spec(), (), terminal=False)
    assert "--network=none" in krun.run(spec(network=ContainerNetwork.NONE), (), terminal=False)


def test_projects_of_one_name_share_nothing() -> None:
    other = spec(project="/home/me/shop")
    assert other.image != spec().image
    assert not set(krun.volumes(other).values()) & set(krun.volumes(spec()).values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"project": "/srv/a:b"}, "colon"),
        ({"project": "/srv/a\nb"}, "control"),
        ({"uid": 0}, "ordinary user"),
        ({"cpus": 0}, "--cpus"),
        ({"memory": 128}, "--memory"),
        ({"options": ("nosuch",)}, "nosuch"),
    ],
)
def test_what_podman_cannot_carry_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        spec(**changed)
    assert said in str(caught.value)


def test_the_scripts_pass_shellcheck() -> None:
    done = subprocess.run(
        ["shellcheck", *sorted(FILES.glob("*.sh"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_passes_hadolint() -> None:
    done = subprocess.run(
        [PYTHON_BIN / "hadolint", FILES / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@dataclass
class Host:
    """A user of the host, with a project and a podman that only writes down its calls."""

    area: Path

    @property
    def project(self) -> Path:
        return self.area / "it's a $shop"

    @property
    def sandbox(self) -> Path:
        (found,) = (self.area / "state/gitguardfs/krun").iterdir()
        return found / ".agent-sandbox"

    def program(self, name: str, text: str) -> None:
        (self.area / "bin" / name).write_text(text)
        (self.area / "bin" / name).chmod(0o755)

    kvm: str = "/dev/null"
    """A stand-in for /dev/kvm that all users may open."""

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        code = f"import gitguardfs.host.share.kvm as kvm; kvm.KVM_DEVICE = {self.kvm!r}; "
        code += "from gitguardfs.commands.gitguard import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env={
                "PATH": str(self.area / "bin") + ":/usr/bin:/bin",
                "PYTHONPATH": PACKAGE_PARENT,
                "XDG_DATA_HOME": str(self.area / "state"),
                "HOME": str(self.area),
            },
            cwd=self.area, user=AGENT, group=AGENT, extra_groups=[], capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def krun(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("krun", verb, "--project", self.project, *words)

    def calls(self) -> list[list[str]]:
        text = (self.area / "bin/calls").read_text()
        return [line.split("\0")[:-1] for line in text.split("\n")[:-1]]


@pytest.fixture
def host() -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    with area() as here:
        made = Host(here)
        (here / "bin").mkdir()
        for directory in (made.project, here / "state", here / "bin"):
            directory.mkdir(exist_ok=True)
            os.chown(directory, AGENT, AGENT)
        yield made


def test_init_writes_outside_of_the_project_and_says_what_comes_next(host: Host) -> None:
    done = host.krun("init", "-o", "git=readonly")
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(host.project) == []
    assert sorted(os.listdir(host.sandbox)) == [
        "AGENTS.md", "Dockerfile", "compose.yaml", "entrypoint.sh", "settings.json", "setup",
    ]  # fmt: skip
    assert "git blame` work here" in (host.sandbox / "AGENTS.md").read_text()
    assert "gitguard krun build" in done.stdout and "The network is open" in done.stdout
    assert (host.sandbox / "setup/guest-setup/install.sh").exists()
    assert (host.area / "state/gitguardfs").stat().st_mode & 0o777 == 0o700
    assert "closed" in host.krun("init", "--network", "none").stdout


def test_dependencies_are_kept_in_the_microvm_unless_that_is_declined(host: Host) -> None:
    for words, expected in (
        ((), ",local=deps"),
        (("--local", "dist", "-o", "deny=x"), ",deny=x,local=dist"),
        (("--no-local",), ""),
    ):
        assert host.krun("init", *words).returncode == 0
        assert f"git=private{expected}" in shlex.split(host.krun("run", "--dry-run").stdout)[-2]
        told = "Directories called" in (host.sandbox / "AGENTS.md").read_text()
        assert told == bool(expected)
    refused = host.krun("init", "--no-local", "--local", "deps")
    assert refused.returncode == 2 and "--local and --no-local contradict" in refused.stderr


def test_init_again_changes_nothing_or_what_is_asked_for(host: Host) -> None:
    host.krun("init")
    before = {path: path.read_bytes() for path in host.sandbox.iterdir() if path.is_file()}
    again = host.krun("init")
    assert (again.returncode, again.stderr) == (0, "") and "written" not in again.stdout
    assert {path: path.read_bytes() for path in before} == before
    other = host.krun("init", "--cpus", "2", "--memory", "4G")
    assert other.returncode == 0 and "compose.yaml: written" in other.stdout
    assert "--annotation=krun.ram_mib=4096" in host.krun("run", "--dry-run").stdout


@pytest.mark.parametrize("name", ["AGENTS.md", "Dockerfile", "entrypoint.sh", "compose.yaml"])
def test_a_file_that_was_changed_by_hand_stays(host: Host, name: str) -> None:
    host.krun("init")
    (host.sandbox / name).write_text("# mine\n")
    refused = host.krun("init", "--cpus", "2")
    assert refused.returncode == 2 and f"{name} was changed by hand" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (host.sandbox / name).read_text() == "# mine\n"
    assert "--annotation=krun.cpus=4" in host.krun("run", "--dry-run").stdout
    assert host.krun("init", "--force").returncode == 0
    assert (host.sandbox / name).read_text() != "# mine\n"


def test_a_sandbox_within_the_project_is_refused(host: Host) -> None:
    done = host.run("krun", "init", "--project", host.area / "state")
    assert done.returncode == 2 and "shared project" in done.stderr
    assert os.listdir(host.area / "state") == []


def test_build_and_run_need_init_first(host: Host) -> None:
    for verb in ("build", "run"):
        done = host.krun(verb)
        assert done.returncode == 3 and "gitguard krun init" in done.stderr, done.stderr


def test_a_dry_run_prints_podmans_command_and_needs_no_podman(host: Host) -> None:
    host.krun("init")
    built = host.krun("build", "--dry-run")
    assert (built.returncode, built.stderr) == (0, "")
    assert built.stdout.startswith("podman build --tag=localhost/gitguard-it-s-a-shop-")
    assert f"--build-arg=AGENT_UID={AGENT}" in built.stdout
    ran = host.krun("run", "--dry-run", "--", "claude", "--version")
    assert ran.returncode == 0 and ran.stdout.endswith("claude --version\n")


def test_what_is_missing_is_one_line(host: Host) -> None:
    host.krun("init")
    for verb, missing in (("build", "podman is"), ("run", "podman and krun are")):
        done = host.krun(verb)
        assert done.returncode == 3 and f"{missing} not installed" in done.stderr
        assert done.stderr.count("\n") == 1
    host.program("podman", PODMAN)
    done = host.krun("run")
    assert done.returncode == 3 and "krun" in done.stderr and done.stderr.count("\n") == 1


def test_build_brings_the_copy_of_gitguardfs_up_to_date_and_calls_podman(host: Host) -> None:
    host.program("podman", PODMAN)
    host.krun("init")
    old = host.sandbox / "setup/gitguardfs/commands/gitguardfs.py"
    old.write_text("")
    assert host.krun("build").returncode == 0
    assert old.read_text() != ""
    ((verb, *_, context),) = host.calls()
    assert (verb, context) == ("build", str(host.sandbox))


def test_run_calls_podman_and_returns_its_status(host: Host) -> None:
    host.program("podman", PODMAN)
    host.program("krun", "#!/bin/sh\n")
    host.krun("init")
    image = sandbox_image(host)
    (host.area / "bin/images").write_text(f"{image}\n")
    done = host.krun("run", "--", "ls", "-l")
    assert (done.returncode, done.stderr) == (7, "")
    assert host.calls()[-1][-3:] == [image, "ls", "-l"]


def test_what_a_run_needs_besides_podman_is_said(host: Host) -> None:
    host.program("podman", PODMAN)
    host.program("krun", "#!/bin/sh\n")
    (host.area / "bin/images").write_text("localhost/another\n")
    host.krun("init")
    done = host.krun("run")
    assert done.returncode == 3 and f"there is no image {sandbox_image(host)}" in done.stderr
    assert "gitguard krun build" in done.stderr
    kvm = host.area / "kvm"
    host.kvm = str(kvm)
    done = host.krun("run")
    assert done.returncode == 3 and "firmware" in done.stderr and done.stderr.count("\n") == 1
    kvm.touch(mode=0o600)  # root's
    assert "usermod -aG kvm" in host.krun("run").stderr
    assert not (host.area / "bin/calls").exists()


def sandbox_image(host: Host) -> str:
    settings = json.loads((host.sandbox / "settings.json").read_text())["spec"]
    settings["network"] = ContainerNetwork(settings["network"])
    settings["options"] = tuple(settings["options"])
    return KrunSpec(**settings).image


def test_settings_that_cannot_be_read_are_named(host: Host) -> None:
    host.krun("init")
    settings = host.sandbox / "settings.json"
    good = json.loads(settings.read_text())
    for bad in ("", "[]", "{}", json.dumps({**good, "spec": {**good["spec"], "more": 1}})):
        settings.write_text(bad)
        done = host.krun("run", "--dry-run")
        assert done.returncode == 2 and "gitguard krun init" in done.stderr, (bad, done.stderr)
    other = {**good, "spec": {**good["spec"], "project": "/etc"}}
    settings.write_text(json.dumps(other))
    assert "another project" in host.krun("run", "--dry-run").stderr


@pytest.mark.parametrize("one", SPECS, ids=["plain", "closed", "quoted"])
def test_podman_compose_gives_podman_the_same(one: KrunSpec, tmp_path: Path) -> None:
    """podman-compose reads the file as it was meant: what it would call podman with is compared."""
    (tmp_path / "compose.yaml").write_text(krun.compose(one))
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "podman").write_text(PODMAN)
    (tmp_path / "podman").chmod(0o755)
    done = subprocess.run(
        [PYTHON_BIN / "podman-compose", "run", "--rm", "--no-deps", "agent", "ls"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    calls = (tmp_path / "calls").read_text().split("\n")[:-1]
    run = next(line for line in calls if line.startswith("run\0"))
    given = _options(run.split("\0")[:-1])
    wanted = _options(krun.run(one, ("ls",), terminal=True)[1:])
    for option, values in wanted.items():
        assert values <= given.get(option, set()), (option, values, given)
    # podman refuses ids of a container's own within a pod.
    assert "--pod" not in given
    assert given.get("--network", set()) == {"none"} or "--network" not in wanted


SHORT = {"-v": "--volume", "-e": "--env", "-i": "--interactive", "-u": "--user", "-t": "--tty"}
VOLUME = re.compile(r"type=volume,source=([^,]+),destination=([^,]+)")
FLAGS = ("--rm", "--interactive", "--tty", "-i", "--init")


def _options(words: list[str]) -> dict[str, set[str]]:
    """The options of ``podman run`` with their values, in whichever spelling."""
    found: dict[str, set[str]] = {}
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        if not equals and word not in FLAGS:
            value = next(rest)
        volume = VOLUME.fullmatch(value) if name == "--mount" else None
        if volume is not None:
            name, value = "--volume", f"{volume[1]}:{volume[2]}"
        found.setdefault(SHORT.get(name, name), set()).add(value)
    return found
