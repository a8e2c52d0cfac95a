"""vm-apps.sh, run for real by an unprivileged user: fetching, checking and installing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.internet import Internet, cut, internet, redirect, stalled
from tests.support.mounting import area

SETUP = Path(__file__).parents[3] / "guest-setup"
NOBODY = 65534
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
GO = f"go1.99.1.linux-{ARCH}.tar.gz"
NVM = "nvm-sh/nvm/archive/refs/tags/v0.40.6.tar.gz"
LIST = "go.dev/dl/?mode=json"
PACKAGE = "@anthropic-ai/claude-code"

NVM_SH = """
nvm() {
    local bin=$NVM_DIR/versions/node/v99.0.0/bin undefined=$nvm_knows_nothing_of_nounset
    case "$1" in
        --version) echo 0.40.6 ;;
        which) echo "$bin/node" ;;
        alias) [ "$2 $3" = 'default lts/*' ] ;;
        install) [ "$2" = --lts ] && mkdir -p "$bin" && for tool in node npm npx; do
            ln -sf "$(PATH=/usr/local/bin:/usr/bin command -v "$tool")" "$bin/$tool"; done ;;
    esac
}
false
"""


def archive(top: str, **files: str) -> bytes:
    """A tar archive with files in one directory, as upstream's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{top}/{name.replace('__', '/')}")
            member.mode, member.size = 0o755, len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


GO_ARCHIVE = archive(
    "go",
    bin__go=f"#!/bin/sh\necho go version go1.99.1 linux/{ARCH}\n",
    bin__gofmt="#!/bin/sh\n",
    src__big=random.Random(1).randbytes(200_000).hex(),
)
NVM_ARCHIVE = archive("nvm-0.40.6", **{"nvm.sh": NVM_SH})
CLAUDE = archive(
    "package",
    **{
        "package.json": json.dumps(
            {
                "name": PACKAGE,
                "version": "9.9.9",
                "bin": {"claude": "c.js"},
                "scripts": {"postinstall": "cp real.js c.js"},
            }
        ),
        "c.js": "#!/usr/bin/env node\nprocess.exit(1)\n",
        "real.js": "#!/usr/bin/env node\nconsole.log('claude 9.9.9')\n",
    },
)


UV_SCRIPT = """#!/bin/sh
case "$*" in
    --version) echo uv 0.10.2 ;;
    "tool install --with pip --python 3.12 aider-chat")
        cd ~/.local/bin && printf '#!/bin/sh\\necho aider 9.9\\n' >aider && chmod 755 aider ;;
    *) exit 1 ;;
esac
"""
UV_URL = "files.pythonhosted.org/packages/uv.whl"


def wheel() -> bytes:
    """A wheel of uv with a program, as PyPI's: no file in it is executable."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("uv", "uvx"):
            archive.writestr(f"uv-0.10.2.data/scripts/{name}", UV_SCRIPT)
    return packed.getvalue()


WHEEL = wheel()


def uv_files(checksum: str = "", url: str = f"https://{UV_URL}") -> bytes:
    """PyPI's list of uv's files: not in order, with other machines' and a withdrawn one."""
    machine = os.uname().machine
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]

    def file(version: str, machine: str, yanked: bool = False) -> dict[str, object]:
        tags = f"manylinux_2_17_{machine}.manylinux2014_{machine}"
        return {
            "filename": f"uv-{version}-py3-none-{tags}.whl",
            "yanked": yanked,
            "hashes": {"sha256": checksum or sha256(WHEEL)},
            "url": url if version == "0.10.2" else "https://files.pythonhosted.org/no",
        }

    found = [file("0.10.2", machine), file("0.9.30", machine), file("0.11.0", other),
             file("0.11.0", machine, True), {"filename": "uv-0.11.0.tar.gz"},
             {"filename": f"uv-0.11.0-py3-none-musllinux_1_1_{machine}.whl"}]  # fmt: skip
    return json.dumps({"files": found}).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def releases(version: str = "go1.99.1", checksum: str = sha256(GO_ARCHIVE)) -> bytes:
    """Go's list: a release candidate first, and other systems' files."""

    def file(**given: str) -> dict[str, str]:
        return {"os": "linux", "arch": ARCH, "kind": "archive", "version": version,
                "sha256": checksum, "filename": "x", **given}  # fmt: skip

    other = [file(os="darwin"), file(arch="riscv64"), file(kind="installer")]
    candidate = {"version": "go2rc1", "stable": False, "files": [file(version="go2rc1")]}
    return json.dumps(
        [candidate, {"version": version, "stable": True, "files": [*other, file()]}]
    ).encode()


class User:
    """An unprivileged user with a home, and the scripts of this checkout."""

    def __init__(self, place: Path, net: Internet) -> None:
        self.net = net
        self.home = place / "home"
        self.home.mkdir()
        os.chown(self.home, NOBODY, NOBODY)
        (self.home / ".curlrc").write_text(f'cacert = "{net.certificate}"\n')
        (self.home / ".npmrc").write_text(
            f"cafile={net.certificate}\nregistry=https://registry.npmjs.org/\n"
            "fetch-retries=0\nupdate-notifier=false\n"
            "strict-allow-scripts=true\n"  # npm 11 is then as strict as npm 12
        )
        self.setup = place / "guest-setup"
        shutil.copytree(SETUP, self.setup)
        script = self.setup / "vm-apps.sh"
        text, count = re.subn(
            r"(?m)^NVM_SHA256=[0-9a-f]{64}$", f"NVM_SHA256={sha256(NVM_ARCHIVE)}",
            script.read_text(),
        )  # fmt: skip
        assert count == 1
        script.write_text(text)
        self.bin = place / "bin"
        self.bin.mkdir()
        entry = f"nobody:x:{NOBODY}:{NOBODY}::{self.home}:/bin/bash"
        for name, code in (("getent", f"echo '{entry}'"), ("dpkg-query", "printf installed"),
                           ("rpm", "exit 0")):  # fmt: skip
            (self.bin / name).write_text(f"#!/bin/sh\n{code}\n")
            (self.bin / name).chmod(0o755)

    def command(self, *arguments: str, as_root: bool = False) -> list[str]:
        drop = [] if as_root else ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}",
                                   "--clear-groups"]  # fmt: skip
        return [*drop, str(self.setup / "vm-apps.sh"), "-y", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.home),
                "https_proxy": self.net.proxy}  # fmt: skip

    def run(self, *steps: str, as_root: bool = False) -> subprocess.CompletedProcess[str]:
        who = ["--user", "nobody"] if as_root else []
        return subprocess.run(
            self.command(*who, "--only", *steps, as_root=as_root), env=self.environment, cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def says(self, tool: str, *arguments: str) -> str:
        """Run a tool of ~/.local/bin and return what it prints."""
        return subprocess.run(
            [self.home / ".local/bin" / tool, *arguments], capture_output=True, text=True,
            check=True, env={"PATH": f"{self.home}/.local/bin:{os.environ['PATH']}"},
        ).stdout.strip()  # fmt: skip

    def left(self) -> list[str]:
        """Return the names in ~/.local, except for the lock."""
        found = (self.home / ".local").rglob("*")
        return sorted(p.name for p in found if p.name not in ("opt", "bin", ".vm-apps.lock"))


@pytest.fixture
def user() -> Iterator[User]:
    with area() as place:
        hosts = subprocess.run(
            [SETUP / "vm-apps.sh", "--hosts", "--only", "go", "node", "claude", "uv"],
            check=True, capture_output=True, text=True,
        ).stdout.split()  # fmt: skip
        with internet(place, hosts) as net:
            net.pages = {
                LIST: releases(),
                f"go.dev/dl/{GO}": redirect(f"https://dl.google.com/go/{GO}"),
                f"dl.google.com/go/{GO}": GO_ARCHIVE,
                f"github.com/{NVM}": redirect("https://codeload.github.com/nvm"),
                "codeload.github.com/nvm": NVM_ARCHIVE,
                f"registry.npmjs.org/{PACKAGE.replace('/', '%2f')}": registry_entry(),
                "registry.npmjs.org/claude.tgz": CLAUDE,
                "pypi.org/simple/uv/": uv_files(),
                UV_URL: WHEEL,
            }
            yield User(place, net)


def registry_entry(content: bytes = CLAUDE) -> bytes:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    dist = {"tarball": "https://registry.npmjs.org/claude.tgz", "integrity": integrity}
    version = {"name": PACKAGE, "version": "9.9.9", "bin": {"claude": "c.js"}, "dist": dist,
               "hasInstallScript": True}  # fmt: skip
    return json.dumps(
        {"name": PACKAGE, "dist-tags": {"latest": "9.9.9"}, "versions": {"9.9.9": version}}
    ).encode()


def failed(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 1
    assert message in done.stderr, done.stderr


def test_go_is_fetched_checked_and_installed(user: User) -> None:
    done = user.run("go")
    assert done.returncode == 0, done.stderr
    assert user.says("go", "version") == f"go version go1.99.1 linux/{ARCH}"
    assert (user.home / ".local/bin/gofmt").resolve() == user.home / ".local/opt/go1.99.1/bin/gofmt"
    assert set(user.net.hosts) == {"go.dev", "dl.google.com"}
    assert not (user.home / ".local/opt/.vm-apps").exists()
    for path in user.home.rglob("*"):
        assert path.lstat().st_uid in (NOBODY, 0 if path.parent == user.home else NOBODY)


def test_go_that_is_there_is_not_fetched_again(user: User) -> None:
    assert user.run("go").returncode == 0
    user.net.fetched.clear()
    done = user.run("go")
    assert (done.returncode, done.stderr) == (0, "")
    assert "installed already: go1.99.1" in done.stdout
    assert user.net.fetched == [LIST]
    assert not [name for name in user.left() if "~" in name]


@pytest.mark.parametrize("damage", ["other", "one more byte", "empty"])
def test_what_has_another_checksum_is_not_installed(user: User, damage: str) -> None:
    content = {"other": GO_ARCHIVE[:-1] + b"x", "one more byte": GO_ARCHIVE + b"x", "empty": b""}
    user.net.pages[f"dl.google.com/go/{GO}"] = content[damage]
    failed(user.run("go"), f"the file from https://go.dev/dl/{GO} does not have the checksum")
    assert user.left() == []


def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(user: User) -> None:
    user.net.pages[f"dl.google.com/go/{GO}"] = cut(GO_ARCHIVE, 5000)
    failed(user.run("go"), f"cannot fetch https://go.dev/dl/{GO}")
    assert user.left() == []
    user.net.pages[f"dl.google.com/go/{GO}"] = GO_ARCHIVE
    assert user.run("go").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing_in_the_way(user: User, number: int) -> None:
    arrived, go_on = threading.Event(), threading.Event()
    user.net.pages[f"dl.google.com/go/{GO}"] = stalled(GO_ARCHIVE, 5000, arrived, go_on)
    process = subprocess.Popen(
        user.command("--only", "go"), env=user.environment, cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert arrived.wait(60)
    failed(user.run("go"), "another vm-apps.sh is running")
    os.killpg(process.pid, number)
    assert process.wait(60) != 0
    go_on.set()
    assert not (user.home / ".local/opt/go1.99.1").exists()
    assert not list((user.home / ".local/bin").iterdir())
    user.net.pages[f"dl.google.com/go/{GO}"] = GO_ARCHIVE
    assert user.run("go").returncode == 0


@pytest.mark.parametrize(
    "content",
    [b"<html>sign in first</html>", b"[]", releases(version="go1.2/../../../x"),
     releases(checksum="x"), releases(checksum=sha256(GO_ARCHIVE) + "\n"), b'[{"stable": true}]'],
)  # fmt: skip
def test_a_list_that_is_not_one_is_refused(user: User, content: bytes) -> None:
    user.net.pages[LIST] = content
    done = user.run("go")
    failed(done, "is not as expected")
    assert done.stderr.count("\n") == 1
    assert user.net.fetched == [LIST]
    assert user.left() == []


def test_a_redirect_to_plain_http_is_refused(user: User) -> None:
    user.net.pages[f"go.dev/dl/{GO}"] = redirect(f"{user.net.proxy}/plain")
    user.net.pages["http:/plain"] = GO_ARCHIVE
    failed(user.run("go"), "cannot fetch")
    assert "http:/plain" not in user.net.fetched
    assert user.left() == []


def test_a_command_of_the_users_own_is_kept(user: User) -> None:
    own = user.home / ".local/bin/go"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    for path in (user.home / ".local", own.parent, own):
        os.chown(path, NOBODY, NOBODY)
    assert user.run("go").returncode == 0
    assert own.is_symlink()
    assert own.with_name("go.~1~").read_text() == "mine"


def test_node_comes_by_nvm_whose_checksum_is_pinned(user: User) -> None:
    (user.home / ".bashrc").write_text("alias mine=true\n")
    os.chown(user.home / ".bashrc", NOBODY, NOBODY)
    for _ in range(2):
        done = user.run("node")
        assert done.returncode == 0, done.stderr
    assert "nvm is there already: 0.40.6" in done.stdout
    assert user.net.fetched == [f"github.com/{NVM}", "codeload.github.com/nvm"]
    for tool in ("node", "npm", "npx"):
        target = os.readlink(user.home / ".local/bin" / tool)
        assert target == str(user.home / f".nvm/versions/node/v99.0.0/bin/{tool}")
    assert user.says("node", "--version").startswith("v")
    text = (user.home / ".bashrc").read_text()
    assert text.startswith("alias mine=true\n") and text.count("nvm.sh") == 2
    assert (user.home / ".bashrc.~1~").read_text() == "alias mine=true\n"
    assert not (user.home / ".bashrc.~2~").exists()
    shell = ["bash", "--norc", "-c", ". ~/.bashrc; nvm --version"]
    said = subprocess.run(shell, env={"HOME": str(user.home)}, capture_output=True, text=True)
    assert said.stdout == "0.40.6\n", said.stderr


def test_an_nvm_with_another_checksum_is_not_installed(user: User) -> None:
    user.net.pages["codeload.github.com/nvm"] = archive("nvm", **{"nvm.sh": "touch ~/pwned"})
    failed(user.run("node"), "does not have the checksum")
    assert not (user.home / ".nvm").exists() and not (user.home / "pwned").exists()
    assert user.left() == []


def test_uv_is_fetched_checked_and_installs_an_agent(user: User) -> None:
    done = user.run("uv", "aider")
    assert done.returncode == 0, done.stderr
    assert (user.says("uv", "--version"), user.says("aider")) == ("uv 0.10.2", "aider 9.9")
    assert user.net.fetched == ["pypi.org/simple/uv/", UV_URL]
    user.net.fetched.clear()
    done = user.run("uv", "aider")
    assert "installed already: uv 0.10.2" in done.stdout
    assert "uv tool upgrade aider-chat brings it up to date" in done.stdout
    assert user.net.fetched == ["pypi.org/simple/uv/"]
    assert not [name for name in user.left() if "~" in name]


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"{}", b'{"files": []}', uv_files(checksum="x"),
     uv_files(url="https://elsewhere.test/uv.whl")],
)  # fmt: skip
def test_a_list_of_uvs_files_that_is_not_one_is_refused(user: User, content: bytes) -> None:
    user.net.pages["pypi.org/simple/uv/"] = content
    failed(user.run("uv"), "or is not as expected")
    assert user.net.fetched == ["pypi.org/simple/uv/"] and user.left() == []


def test_a_uv_with_another_checksum_is_not_installed(user: User) -> None:
    user.net.pages[UV_URL] = WHEEL + b"x"
    failed(user.run("uv"), "does not have the checksum")
    assert user.left() == []


def test_an_agent_names_what_it_needs(user: User) -> None:
    failed(user.run("aider"), "aider needs uv: --only uv aider")


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_the_claude_cli_is_installed_by_npm_as_the_user(user: User) -> None:
    done = user.run("claude")
    assert done.returncode == 0, done.stderr
    assert user.says("claude") == "claude 9.9.9"
    assert set(user.net.hosts) == {"registry.npmjs.org"}
    assert (user.home / ".local/bin/claude").lstat().st_uid == NOBODY
    user.net.fetched.clear()
    assert "installed already" in user.run("claude").stdout
    assert user.net.fetched == []


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_a_package_with_another_checksum_is_not_installed(user: User) -> None:
    user.net.pages["registry.npmjs.org/claude.tgz"] = archive(
        "package", **{"package.json": '{"name": "x", "version": "9.9.9"}', "c.js": "evil"}
    )
    done = user.run("claude")
    failed(done, f"npm could not install {PACKAGE}")
    assert "EINTEGRITY" in done.stderr
    assert not (user.home / ".local/bin/claude").exists()


def test_root_installs_as_the_user_and_follows_no_symlink(user: User) -> None:
    done = user.run("go", as_root=True)
    assert done.returncode == 0, done.stderr
    for path in (user.home / ".local").rglob("*"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (NOBODY, NOBODY), path
    roots = user.home.parent / "roots"
    roots.mkdir()
    shutil.rmtree(user.home / ".local/opt")
    (user.home / ".local/opt").symlink_to(roots)
    done = user.run("go", as_root=True)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr
    assert list(roots.iterdir()) == []
