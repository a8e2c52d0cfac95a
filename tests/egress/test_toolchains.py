"""Package managers and languages, with nothing set but what the guest of ``vm up`` has.

Each does its smallest real act through the proxy: it fetches or installs a package of one file. The
address of the registry is that of a server of the tests.
"""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.host.vm import guest_tools
from tests.egress import guest as guests
from tests.egress.guest import Guest
from tests.egress.upstream import Upstream
from tests.egress.world import World

SITE = "https://allowed.test"
NODE_PROGRAMS = Path(__file__).parents[2] / ".venv/node/node_modules"
JDKS = sorted({path.resolve() for path in Path("/usr/lib/jvm").glob("*/bin/javac")})
NODE = """
const http = require('http'), https = require('https');
const { Worker, isMainThread } = require('worker_threads');
const get = (module, url, options = {}) => new Promise((resolve, reject) =>
  module.get(url, options, (answer) => {
    let text = '';
    answer.on('data', (part) => { text += part; }).on('end', () => resolve(text));
  }).on('error', reject));
const text = async (url) => (await fetch(url)).text();
async function main() {
  console.log(await text('https://allowed.test/one'), await text('http://allowed.test/one'));
  for (const agent of [{}, { agent: false }, 'own']) {
    const own = (module) => ({ agent: new module.Agent({ keepAlive: true }) });
    const options = (module) => (agent === 'own' ? own(module) : agent);
    console.log(await get(https, 'https://allowed.test/one', options(https)),
      await get(http, 'http://allowed.test/one', options(http)));
  }
  console.log((await fetch('https://allowed.test/two', { method: 'POST', body: 'abc' })).status);
  console.log((await text('https://other.test/')).includes('gitguard vm allow'));
  if (!isMainThread) process.exit();
  const local = http.createServer((_, answer) => answer.end('local'));
  local.listen(0, '127.0.0.1', async () => {
    const url = `http://127.0.0.1:${local.address().port}/`;
    console.log(await text(url), await get(http, url));
    local.close();
    local.closeAllConnections();
    new Worker(__filename, { stderr: true });
  });
}
main();
"""
NODE_SAYS = "one one\n" * 4 + "200\ntrue\n"
NODE_LIBRARIES = """
const http = require('http'), https = require('https'), net = require('net'), tls = require('tls');
const get = (module, url, options) => new Promise((resolve, reject) => {
  const request = module.get(url, options, (answer) => {
    let text = '';
    answer.on('data', (part) => { text += part; });
    answer.on('end', () => resolve([text, request.socket]));
  });
  request.on('error', reject);
});
// As agentkeepalive does, which clients of models use.
const kept = ({ Agent }) => class extends Agent {
  createConnection(...options) {
    const socket = super.createConnection(...options);
    this.limit = socket.timeout;
    return socket;
  }
};
async function main() {
  for (const [module, url, port] of [[https, 'https://allowed.test', 8443],
                                     [http, 'http://allowed.test', 8080]]) {
    const agent = new (kept(module))({ keepAlive: true, maxSockets: 1, timeout: 500000 });
    const got = await Promise.all([1, 2, 3].map(() => get(module, `${url}/one`, { agent })));
    const [sockets, texts] = [new Set(got.map(([_, socket]) => socket)), got.map(([text]) => text)];
    console.log(...texts, sockets.size, agent.limit);
    // As the package ws does.
    const createConnection = (options) => {
      const { connect } = module === https ? tls : net;
      return connect({ ...options, path: undefined, servername: options.host });
    };
    console.log((await get(module, `${url}:${port}/one`, { createConnection, headers: {} }))[0]);
    await get(module, `${url}:53/`, { agent }).catch((error) => console.log(error.message));
  }
  console.log(await (await fetch('http://allowed.test:8080/one')).text());
  const first = (socket, target) => new Promise((resolve) => {
    socket.on('error', (error) => resolve(error.message));
    socket.on('data', (data) => resolve(String(data).split('\\r\\n')[0]));
    const fields = ['Host: allowed.test', 'Connection: close'];
    socket.write([`GET ${target} HTTP/1.1`, ...fields, '', ''].join('\\r\\n'));
  });
  // As http2.connect does.
  const secure = tls.connect(443, 'allowed.test', { servername: 'allowed.test' }, () => {});
  console.log(await first(secure, '/one'));
  // As the ProxyAgent of undici 8 does.
  const { hostname, port } = new URL(process.env.http_proxy);
  const lookup = (_, { all }, found) => (
    all ? found(null, [{ address: hostname, family: 4 }]) : found(null, hostname, 4)
  );
  const plain = net.connect({ highWaterMark: 65536, host: 'allowed.test', port, lookup });
  console.log(await first(plain, 'http://allowed.test/one'));
  for (const host of ['127.0.0.5', '0.0.0.0']) {
    for (const module of [http, https]) {
      const agent = new module.Agent();
      const url = `${module === http ? 'http' : 'https'}://${host}:9/`;
      await get(module, url, { agent }).catch((error) => console.log(error.code));
    }
  }
  // Of another protocol, which must not wait for the proxy in vain.
  const other = net.connect({ host: 'allowed.test', port: 5432 });
  other.on('error', (error) => console.log(error.code));
}
main();
"""
NODE_LIBRARIES_SAY = (
    "one one one 1 500000\none\nthe proxy answers 418 Blocked - run gitguard-blocked\n" * 2
    + "one\nHTTP/1.1 200 OK\nHTTP/1.1 200 OK\n"
    + "ECONNREFUSED\n" * 4
    + "EAI_AGAIN\n"
)
JAVA = """
import java.net.*;
import java.net.http.*;

public class Fetch {
    public static void main(String[] addresses) throws Exception {
        for (String address : addresses) {
            URLConnection connection = new URL(address).openConnection();
            System.out.println(new String(connection.getInputStream().readAllBytes()));
            HttpRequest request = HttpRequest.newBuilder(URI.create(address)).build();
            HttpClient client = HttpClient.newHttpClient();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }
}
"""
GEM = """
require 'rubygems/package'
spec = Gem::Specification.new('one', '1.0.0') do |it|
  it.summary, it.authors, it.files = 'one', ['one'], ['one.rb']
end
File.write('one.rb', '')
Gem::Package.build(spec, true)
listed = [['one', Gem::Version.new('1.0.0'), 'ruby']]
File.binwrite('specs', Gem::Util.gzip(Marshal.dump(listed)))
File.binwrite('spec', Gem.deflate(Marshal.dump(spec)))
"""


@pytest.fixture(scope="module")
def running_guest(_shared: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with guests.running(_shared, tmp_path_factory.mktemp("guest")) as guest:
        yield guest


@pytest.fixture
def guest(running_guest: Guest, world: World) -> Iterator[Guest]:
    """The guest, which may read everything of two sites."""
    world.allow(*(f"GET {site}/*" for site in (SITE, f"{SITE}:8443", "http://allowed.test",
                                               "http://allowed.test:8080")),
                "POST https://allowed.test/two", "GET https://github.com/*",
                "GET https://codeberg.org/*", "GET https://git.other.test/*")  # fmt: skip
    world.upstream.files["/one"] = b"one"
    yield running_guest
    world.upstream.files.clear()


def program(name: str) -> Path:
    """A program, of the system if there is one."""
    found = shutil.which(name, path=SYSTEM_PATH) or shutil.which(name)
    if found is None:
        pytest.skip(f"not installed: {name}")
    return Path(found)


def tar_of(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("command", ["curl -sS", "wget -qO-"])
def test_a_download(guest: Guest, command: str, scheme: str, tmp_path: Path) -> None:
    name, option = command.split()
    said = guest.run([program(name), option, f"{scheme}://allowed.test/one"], tmp_path)
    assert said == "one"


def test_node(guest: Guest, world: World, tmp_path: Path) -> None:
    """fetch, http and https, in the main thread and another; without the proxy on this machine."""
    script = tmp_path / "x.js"
    script.write_text(NODE)
    said = guest.run([program("node"), script], tmp_path)
    assert said.endswith(f"{NODE_SAYS}local local\n{NODE_SAYS}")
    assert world.upstream.raw.count(b"GET /one HTTP/1.1") == 16


def test_libraries_of_node(guest: Guest, tmp_path: Path) -> None:
    """An Agent of their own, or none, gets its connection at once, and keeps to its limits."""
    script = tmp_path / "x.js"
    script.write_text(NODE_LIBRARIES)
    assert guest.run([program("node"), script], tmp_path) == NODE_LIBRARIES_SAY


@pytest.mark.parametrize("command", ["npm", "pnpm", "yarn", "berry"])
def test_a_package_of_javascript(
    guest: Guest, upstream: Upstream, command: str, tmp_path: Path
) -> None:
    package = tar_of("package/package.json", b'{"name": "one", "version": "1.0.0"}')
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    dist = {
        "tarball": f"{SITE}/npm/one/-/one-1.0.0.tgz", "integrity": integrity,
        "shasum": hashlib.sha1(package).hexdigest(),
    }  # fmt: skip
    version = {"name": "one", "version": "1.0.0", "dist": dist}
    listed = {"name": "one", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version},
              "time": {"1.0.0": "2020-01-01T00:00:00.000Z"}}  # fmt: skip
    upstream.files |= {"/npm/one": json.dumps(listed).encode(), "/npm/one/-/one-1.0.0.tgz": package}
    (tmp_path / "package.json").write_text('{"name": "x", "dependencies": {"one": "1.0.0"}}')
    (tmp_path / ".npmrc").write_text(f"registry={SITE}/npm/\n")
    (tmp_path / ".yarnrc").write_text(f'registry "{SITE}/npm/"\n')
    (tmp_path / ".yarnrc.yml").write_text(
        f"npmRegistryServer: {SITE}/npm\nnodeLinker: node-modules\n"
    )
    words: list[str | Path] = {
        "npm": [program("npm")],
        "pnpm": [program("node"), NODE_PROGRAMS / "pnpm/bin/pnpm.cjs"],
        "yarn": [program("node"), NODE_PROGRAMS / "yarn/bin/yarn.js"],
        "berry": [program("node"), NODE_PROGRAMS / "yarn-berry/bin/yarn.js"],
    }[command]
    guest.run([*words, "install"], tmp_path)
    assert "1.0.0" in (tmp_path / "node_modules/one/package.json").read_text()


@pytest.mark.parametrize("command", ["pip", "uv"])
def test_a_package_of_python(
    guest: Guest, upstream: Upstream, command: str, tmp_path: Path
) -> None:
    buffer, info = io.BytesIO(), "one-1.0.0.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("one.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{info}/RECORD", f"one.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    name = "one-1.0.0-py3-none-any.whl"
    upstream.files |= {
        "/simple/one/": f'<a href="/{name}">{name}</a>'.encode(), f"/{name}": buffer.getvalue()
    }  # fmt: skip
    words: list[str | Path] = {
        "pip": [sys.executable, "-m", "pip", "install"],
        "uv": [Path(sys.executable).parent / "uv", "pip", "install"],
    }[command]
    options = ["--no-deps", "--target", "target", "--index-url", f"{SITE}/simple"]
    guest.run([*words, *options, "one"], tmp_path)
    assert (tmp_path / "target/one.py").exists()


@pytest.mark.parametrize("jdk", JDKS, ids=lambda jdk: jdk.parts[-3])
def test_java(guest: Guest, world: World, jdk: Path, tmp_path: Path) -> None:
    """Its own trust store does not have the proxy's authority, as that of a tarball has not."""
    (tmp_path / "Fetch.java").write_text(JAVA)
    subprocess.run([jdk, "Fetch.java"], cwd=tmp_path, check=True)
    addresses = [f"{scheme}://allowed.test/one" for scheme in ("http", "https")]
    said = guest.run([jdk.with_name("java"), "Fetch", *addresses], tmp_path)
    assert said.splitlines()[1:] == ["one"] * 4  # the first names the variable
    assert b"h2c" not in world.upstream.raw
    options = ["-list", "-keystore", guest_tools.JAVA_TRUST, "-storepass", "changeit"]
    assert "gitguard-vm" in guest.run([jdk.with_name("keytool"), *options], tmp_path)


def test_a_module_of_go(guest: Guest, upstream: Upstream, tmp_path: Path) -> None:
    module, buffer = "module example.test/one\n", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        content.writestr("example.test/one@v1.0.0/go.mod", module)
        content.writestr("example.test/one@v1.0.0/one.go", "package one\n")
    upstream.files |= {
        "/go/example.test/one/@v/v1.0.0.info": b'{"Version": "v1.0.0"}',
        "/go/example.test/one/@v/v1.0.0.mod": module.encode(),
        "/go/example.test/one/@v/v1.0.0.zip": buffer.getvalue(),
    }
    (tmp_path / "go.mod").write_text("module x\n\nrequire example.test/one v1.0.0\n")
    command = [program("go"), "mod", "download", "-json"]
    said = guest.run(command, tmp_path, GOPROXY=f"{SITE}/go", GONOSUMDB="*", GOFLAGS="-modcacherw")
    assert '"Version": "v1.0.0"' in said


def test_a_crate(guest: Guest, upstream: Upstream, tmp_path: Path) -> None:
    manifest = b'[package]\nname = "smoke"\nversion = "1.0.0"\n\n[lib]\npath = "x.rs"\n'
    crate = tar_of("smoke-1.0.0/Cargo.toml", manifest)
    line = {"name": "smoke", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False,
            "cksum": hashlib.sha256(crate).hexdigest()}  # fmt: skip
    upstream.files |= {
        "/index/config.json": json.dumps({"dl": f"{SITE}/crates/{{crate}}"}).encode(),
        "/index/sm/ok/smoke": json.dumps(line).encode(), "/crates/smoke": crate,
    }  # fmt: skip
    project(tmp_path, 'smoke = { version = "1", registry = "x" }')
    said = guest.run([cargo(), "fetch"], tmp_path, CARGO_REGISTRIES_X_INDEX=f"sparse+{SITE}/index/")
    assert "Downloaded smoke" in said


def test_a_crate_by_ssh(guest: Guest, upstream: Upstream, tmp_path: Path) -> None:
    repository = tmp_path / "two"
    repository.mkdir()
    project(repository, "", "two")
    upstream.files |= served("/one/two.git", repository)
    (tmp_path / "x").mkdir()
    project(tmp_path / "x", 'two = { git = "ssh://git@github.com/one/two.git" }')
    guest.run([cargo(), "fetch"], tmp_path / "x")
    assert "ssh://git@github.com/one/two.git" in (tmp_path / "x/Cargo.lock").read_text()


def cargo() -> Path:
    """Cargo that knows sparse registries, since 1.68; rustup's, if it is there."""
    toolchains = sorted(Path.home().glob(".rustup/toolchains/*/bin/cargo"))
    found = toolchains[0] if toolchains else program("cargo")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, said.split()[1].split(".")[:2])) < (1, 68):
        pytest.skip(f"too old: {said}")
    return found


def project(directory: Path, dependency: str, name: str = "x") -> None:
    (directory / "src").mkdir()
    (directory / "src/lib.rs").touch()
    (directory / "Cargo.toml").write_text(
        f'[package]\nname = "{name}"\nversion = "1.0.0"\n\n[dependencies]\n{dependency}\n'
    )


def served(at: str, work_tree: Path) -> dict[str, bytes]:
    """The files of a repository with all of a directory, as a server without git serves them."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x.test", "-C", str(work_tree)]
    for words in ("init -q -b main", "add .", "commit -q -m x", "update-server-info"):
        subprocess.run([*git, *words.split()], check=True)
    top = work_tree / ".git"
    found = {f"{at}/{path.relative_to(top)}": path.read_bytes() for path in top.rglob("*")
             if path.is_file()}  # fmt: skip
    found[f"{at}/info/refs?service=git-upload-pack"] = found[f"{at}/info/refs"]
    return found


@pytest.mark.parametrize(
    "address",
    ["https://github.com/one/two.git", "git@github.com:one/two.git", "git@codeberg.org:one/two.git",
     "ssh://git@github.com/one/two.git", "ssh://git.other.test/one/two.git",
     "git+ssh://git@codeberg.org/one/two.git", "ssh+git://git.other.test/one/two.git",
     "ssh://git@codeberg.org:22/one/two.git", "ssh://git@ssh.github.com:443/one/two.git"],
)  # fmt: skip
def test_git(guest: Guest, upstream: Upstream, address: str, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two/file").write_text("two")
    upstream.files |= served("/one/two.git", tmp_path / "two")
    git = program("git")
    shown = guest.run([git, "ls-remote", "--get-url", address], tmp_path)
    assert re.fullmatch(r"https://[a-z.]+/one/two\.git\n", shown), "a name of a user would stay"
    guest.run([git, "clone", "-q", address, "clone"], tmp_path)
    assert (tmp_path / "clone/file").read_text() == "two"


def test_a_gem(guest: Guest, upstream: Upstream, tmp_path: Path) -> None:
    gem = program("gem")
    subprocess.run(
        [program("ruby"), "-e", GEM], cwd=tmp_path, stdout=subprocess.DEVNULL, check=True
    )
    file = (tmp_path / "one-1.0.0.gem").read_bytes()
    upstream.files |= {
        "/gems/specs.4.8.gz": (tmp_path / "specs").read_bytes(),
        "/gems/quick/Marshal.4.8/one-1.0.0.gemspec.rz": (tmp_path / "spec").read_bytes(),
        "/gems/gems/one-1.0.0.gem": file,
        "/gems/info/one": b"---\n1.0.0 |checksum:%s\n" % hashlib.sha256(file).hexdigest().encode(),
    }
    guest.run([gem, "install", "one", "--clear-sources", "--source", f"{SITE}/gems/",
               "--install-dir", "gems", "--no-document"], tmp_path)  # fmt: skip
    assert (tmp_path / "gems/gems/one-1.0.0/one.rb").exists()
