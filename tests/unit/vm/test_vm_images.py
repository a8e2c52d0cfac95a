"""Images: fetched from a real server, resumed, checked; and local ones."""

import dataclasses
import gzip
import hashlib
import os
import shutil
import subprocess
import threading
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.vm import fetching, images
from gitguardfs.host.vm.fetching import RemoteFile
from tests.support.boot_sector import BOOTS

CONTENT = bytes(range(256)) * 20_000
SUM = hashlib.sha512(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; breaks the connection after ``stop_after`` bytes."""

    daemon_threads = True
    stop_after: int | None = None
    knows_ranges = True
    status: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/image.qcow2"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        begin = int(wanted[6:-1]) if wanted and self.server.knows_ranges else 0
        if begin >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        end = len(CONTENT) if self.server.stop_after is None else self.server.stop_after
        self.wfile.write(CONTENT[begin:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_an_image_is_fetched_once(server: Server, tmp_path: Path) -> None:
    remote = RemoteFile(server.url, SUM)
    path = fetching.fetch(remote, str(tmp_path / "cache"))
    assert Path(path).read_bytes() == CONTENT
    assert fetching.fetch(remote, str(tmp_path / "cache")) == path
    assert server.ranges == [None]
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_broken_download_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.stop_after = 1_000_000
    with pytest.raises(UserError, match=r"run the command again to resume"):
        fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))
    assert sum(len(p.read_bytes()) for p in tmp_path.glob("*.part")) == 1_000_000
    server.stop_after = None
    path = fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))
    assert Path(path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000000-"]


def test_a_server_without_ranges_begins_anew(server: Server, tmp_path: Path) -> None:
    part = tmp_path / f"{RemoteFile(server.url, SUM).file_name}.part"
    part.write_bytes(b"x" * 1000)
    server.knows_ranges = False
    path = fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))
    assert Path(path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wrong checksum"):
        fetching.fetch(RemoteFile(server.url, "0" * 128), str(tmp_path))
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".lock"]


def test_a_full_disk_is_known_before(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, fetching.KEPT_FREE + 1_000_000))
    with pytest.raises(UserError, match=r"MiB free, and the image needs"):
        fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: usage(0, 0, fetching.KEPT_FREE + len(CONTENT))
    )
    fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))


def test_no_server_or_a_missing_image_is_one_line(server: Server, tmp_path: Path) -> None:
    with Server() as gone:
        url = gone.url
    with pytest.raises(UserError, match=r"cannot fetch .*refused .*--image FILE"):
        fetching.fetch(RemoteFile(url, SUM), str(tmp_path))
    server.status = 404
    with pytest.raises(UserError, match=r"cannot fetch .*404"):
        fetching.fetch(RemoteFile(server.url, SUM), str(tmp_path))


def test_a_url_wants_a_checksum(server: Server, tmp_path: Path) -> None:
    image = images.obtain(f"{server.url}#sha512={SUM.upper()}", "x86_64", str(tmp_path))
    assert Path(image.disk).read_bytes() == CONTENT
    for wrong in (server.url, f"{server.url}#sha512={SUM[:-1]}", f"ftp://x/y#sha512={SUM}"):
        with pytest.raises(UserError, match=r"has no checksum"):
            images.obtain(wrong, "x86_64", str(tmp_path))
    for no_url in ("[x/y", "127.0.0.1:x/y", "127.0.0.1/\N{SNOWMAN}", ":/y"):
        with pytest.raises(UserError, match=r"cannot fetch"):
            images.obtain(f"http://{no_url}#sha512={SUM}", "x86_64", str(tmp_path))


def test_what_is_pinned_is_dated_and_has_a_kernel_with_9p() -> None:
    assert {machine for _, machine in images.PINNED} == {"x86_64", "aarch64"}
    for remote in images.PINNED.values():
        assert len(bytes.fromhex(remote.sha512)) == 64
        assert remote.url.startswith("https://")
        assert "latest" not in remote.url
        assert "genericcloud" not in remote.url


def test_the_default_is_fetched_for_this_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def fetch(remote: RemoteFile, _: str) -> str:
        asked.append(remote.url)
        return "x"

    monkeypatch.setattr(fetching, "fetch", fetch)
    images.obtain("debian-13", "x86_64", str(tmp_path))
    images.obtain("debian-13", "arm64", str(tmp_path))
    assert ["amd64" in asked[0], "arm64" in asked[1]] == [True, True]
    with pytest.raises(UserError, match=r"for riscv64"):
        images.obtain("debian-13", "riscv64", str(tmp_path))


# Local ones


def test_a_local_file_and_a_directory_with_a_kernel(tmp_path: Path) -> None:
    for name in ("disk.img", "vmlinuz", "initrd"):
        (tmp_path / name).write_text("x")
    assert images.obtain(str(tmp_path / "disk.img"), "x86_64", "") == images.Image(
        str(tmp_path / "disk.img")
    )
    whole = images.obtain(str(tmp_path), "x86_64", "")
    assert (whole.disk, whole.kernel, whole.initrd) == tuple(
        str(tmp_path / name) for name in ("disk.img", "vmlinuz", "initrd")
    )
    assert whole.append == images.APPEND
    (tmp_path / "cmdline").write_text("root=/dev/vda\nquiet\n")
    assert images.obtain(str(tmp_path), "x86_64", "").append == "root=/dev/vda quiet"
    (tmp_path / "vmlinuz").unlink()
    assert images.obtain(str(tmp_path), "x86_64", "").kernel is None
    (tmp_path / "disk.img").unlink()
    with pytest.raises(UserError, match=r"holds neither disk.qcow2 nor disk.img"):
        images.obtain(str(tmp_path), "x86_64", "")
    with pytest.raises(UserError, match=r"there is no image"):
        images.obtain(str(tmp_path / "none"), "x86_64", "")


def test_an_image_that_the_agent_could_change_is_refused(tmp_path: Path) -> None:
    """The VM would boot the agent's image, whose root reaches the raw share."""
    project, outside = tmp_path / "project", tmp_path / "project-images"
    for directory in (project, outside):
        directory.mkdir()
        for name in ("disk.img", "vmlinuz", "initrd"):
            (directory / name).write_text("x")
    own = images.obtain(str(outside), "x86_64", "")
    images.refuse_image_in_project(own, str(project))
    (project / "link.img").symlink_to(outside / "disk.img")
    (tmp_path / "way").symlink_to(project)
    (outside / "led.img").symlink_to(project / "disk.img")
    bad = [
        images.obtain(str(path), "x86_64", "")
        for path in (project / "disk.img", project / "link.img", tmp_path / "way/link.img",
                     outside / "led.img", project)
    ]  # fmt: skip
    bad += [
        dataclasses.replace(own, **{part: str(project / part)}) for part in ("kernel", "initrd")
    ]
    for image in bad:
        with pytest.raises(UserError, match=r"lies in the project .*move it|could change it"):
            images.refuse_image_in_project(image, str(project))


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="not installed: qemu-img")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (BOOTS, ""),
        (b"root:x:0:0:root:/root:/bin/bash\n" * 40, "neither a partition table nor a boot sector"),
        (b"", "neither a partition table nor a boot sector"),
        (bytes(1 << 20), "neither a partition table nor a boot sector"),
        (BOOTS[:32769] + b"CD001" + BOOTS, "it is a CD"),
        (b"\xfd7zXZ\0" + BOOTS[6:], "compressed, unpack it first"),
        (gzip.compress(BOOTS), "compressed, unpack it first"),
    ],
    ids=["boot sector", "text", "empty", "zeros", "CD", "xz", "gzip"],
)  # fmt: skip
def test_what_is_no_disk_is_said(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "disk.img").write_bytes(content)
    image = images.Image(str(tmp_path / "disk.img"))
    if not why:
        images.check_boots(image)
        return
    with pytest.raises(UserError, match=why):
        images.check_boots(image)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="not installed: qemu-img")
def test_a_qcow2_or_a_filesystem_with_a_kernel_needs_no_boot_sector(tmp_path: Path) -> None:
    raw, made = tmp_path / "disk.img", tmp_path / "disk.qcow2"
    raw.write_bytes(bytes(1 << 20))
    images.check_boots(images.Image(str(raw), kernel="/vmlinuz"))
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", made, "1M"], check=True)
    images.check_boots(images.Image(str(made)))
    subprocess.run(["qemu-img", "create", "-q", "-f", "vdi", made, "1M"], check=True)
    with pytest.raises(UserError, match=r"has the format vdi .*qemu-img convert"):
        images.check_boots(images.Image(str(made)))


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="not installed: qemu-img")
def test_a_disk_is_an_overlay_of_one_image(tmp_path: Path) -> None:
    base, disk = (tmp_path / name for name in ("base.img", "disk.qcow2"))
    base.write_bytes(bytes(1 << 20))
    images.ensure_overlay(images.Image(str(base)), str(disk))
    said = subprocess.run(
        ["qemu-img", "info", disk], capture_output=True, text=True, check=True
    ).stdout
    assert "20 GiB" in said
    assert str(base) in said
    for damage in (b"", b"x" * 1000, bytes(4096) + disk.read_bytes()[4096:], b"QFI\xfbx", None):
        damaged = tmp_path / "damaged.qcow2"
        if damage is None:  # it must not be waited for
            damaged.unlink()
            os.mkfifo(damaged)
        else:
            damaged.write_bytes(damage)
        with pytest.raises(UserError, match=r"damaged.qcow2 is damaged, .*vm reset"):
            images.backing_of(str(damaged))


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="not installed: qemu-img")
@pytest.mark.parametrize(
    "options",
    [
        ["-f", "qcow2", "-F", "raw", "-b", "SECRET", "IMAGE"],
        ["-f", "qcow2", "-o", "data_file=SECRET,data_file_raw=on", "IMAGE", "1M"],
        ["-f", "qcow2", "-u", "-F", "raw", "-b", "nbd://127.0.0.1:9/x", "IMAGE", "1M"],
        ["-f", "qcow2", "-u", "-F", "raw", "-b", 'json:{"driver":"file","filename":"SECRET"}',
         "IMAGE", "1M"],
        ["-f", "vmdk", "-o", "subformat=monolithicFlat", "IMAGE", "1M"],
    ],
    ids=["backing file", "data file", "protocol", "json", "list of files"],
)  # fmt: skip
@pytest.mark.parametrize("is_made_first", [False, True])
def test_an_image_that_leads_to_other_files_is_refused(
    tmp_path: Path, options: list[str], is_made_first: bool
) -> None:
    """QEMU would follow it into the project, or show the guest any file of the user's."""
    secret, image, disk = tmp_path / "secret", tmp_path / "image", tmp_path / "disk.qcow2"
    secret.write_bytes(b"secret" * 100_000)
    if is_made_first:  # the VM's disk is there already
        image.write_bytes(bytes(1 << 20))
        images.ensure_overlay(images.Image(str(image)), str(disk))
        image.unlink()
    words = [w.replace("SECRET", str(secret)).replace("IMAGE", str(image)) for w in options]
    subprocess.run(["qemu-img", "create", "-q", *words], check=True)
    with pytest.raises(UserError, match=r"the image .*(leads to|has the format).*qemu-img convert"):
        images.ensure_overlay(images.Image(str(image)), str(disk))
    assert disk.exists() == is_made_first
