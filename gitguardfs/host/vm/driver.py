"""`vm up`: starts everything in order, runs the session, and stops everything in reverse order.

A shell that ends, an error and a signal all stop what was started. If `vm up` was killed by `kill
-9`, the next start cleans up: the locks tell what still runs.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import ssl as tls
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gitguardfs.base import columns
from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown
from gitguardfs.host.credentials import secrets as credentials
from gitguardfs.host.egress import upstream_proxy
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.files import create_files, read_allowlist
from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.egress.start import StartedProxy
from gitguardfs.host.share import qemu
from gitguardfs.host.share.directory import existing_directory
from gitguardfs.host.share.packages import check_installed
from gitguardfs.host.vm import (
    accelerators,
    agents,
    company_proxy,
    config_file,
    ending,
    fetching,
    first_start,
    forwarding,
    git_place,
    host_guard,
    image_store,
    images,
    keys,
    logs,
    ports,
    provision,
    qmp,
    ready,
    running,
    seed,
    settings,
    shared_login,
    shares,
    ssh,
    trusted_programs,
    watcher,
    watching,
    welcome,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.boot import has_panicked
from gitguardfs.host.vm.launch import Launch, boot
from gitguardfs.host.vm.phases import Phase
from gitguardfs.host.vm.qemu_command import IS_ARM
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.options import config_files

MIN_FREE_BYTES = 1 << 30
"""Bytes that must be free for the VM's disk at the start; it grows."""


@dataclass(frozen=True)
class UpArguments:
    """The arguments of `vm up`."""

    settings: Settings
    allow: tuple[str, ...] = ()
    """Presets and lines to add to the allowlist."""
    words: tuple[str, ...] = ()
    """The command to run instead of a shell."""
    upstream_proxy: str | None = None
    """The company's proxy; None for the remembered one, "" for none."""
    upstream_ca: str | None = None
    """A file with certificate authorities to trust for servers, besides the system's; None for
    the remembered one, "" for none."""
    remembered: Settings | None = None
    """The settings without those of gitguard.toml; None if there is no such file."""
    file_keys: tuple[str, ...] = ()
    """Names of the options in gitguard.toml."""
    file_allow: tuple[str, ...] = ()
    """Presets and lines that gitguard.toml allows."""
    restricted: bool = True
    """False only in tests; see qemu_command.Machine."""

    def showing(self, names: tuple[str, ...]) -> UpArguments:
        """Return these arguments with more names to show, which are remembered."""
        new, remembered = (
            dataclasses.replace(one, show=(*one.show, *names))
            for one in (self.settings, self.remembered or self.settings)
        )
        return dataclasses.replace(self, settings=new, remembered=remembered)


def up_arguments(state: State, given: dict[str, Any], words: tuple[str, ...] = ()) -> UpArguments:
    """Return the arguments of a start with the options ``given``, by the names in UP_OPTIONS.

    An option counts before its key in gitguard.toml, and that before what is remembered. Raises
    UserError, OSError.
    """
    file = config_file.read(state)
    saved = settings.load_saved(state)
    own = config_file.of_settings(given)
    own["share"] = shares.resolved(
        own.get("share") or (), state.project, *saved.settings.others_writable
    )
    remembered = settings.merged(saved.remembered, own)
    there = dataclasses.replace(saved.remembered, share=shares.present(saved.remembered.share))
    new = config_file.merged(file, there, own)
    shares.check(new.shares, states.own_directories())
    images.refuse_in_project("gitguard.toml", state.config, state.project, *new.others_writable)
    # The disk stays one of the image that it was made from.
    remembered = dataclasses.replace(remembered, image=new.image)

    def kept_apart(name: str) -> str | None:
        """Return the value of an option that Settings do not have; "" to forget the file's."""
        value: str | None = given.get(name)
        if value is None and name in file.values:
            value = file.values[name]
            return None if value == config_file.kept(state, name) else value
        return "" if value is None and name in saved.file_keys else value

    return UpArguments(
        new,
        allow=given.get("allow", ()),
        words=words,
        upstream_proxy=kept_apart("upstream_proxy"),
        upstream_ca=kept_apart("upstream_ca"),
        remembered=remembered,
        file_keys=tuple(file.values),
        file_allow=file.values.get("allow", ()),
    )


def up(state: State, arguments: UpArguments) -> int:
    """Start the VM, run a shell or a command in it, and stop it. Returns the command's status.

    Raises UserError.
    """
    existing_directory(state.project)
    own = arguments.settings
    programs = (qemu.program(IS_ARM), *trusted_programs.PROGRAMS, *host_guard.programs(own))
    check_installed(*programs)
    trusted_programs.check(own, *programs)
    authority = _authority(arguments)
    agent = agents.of(own)  # its mistakes are said before a start
    if arguments.upstream_proxy:
        upstream_proxy.setting(arguments.upstream_proxy)
    if not state.has_disk:
        ready.check_image(state, own.image)
    accelerators.warn_without_kvm(platform.system())
    with ExitStack() as stack:
        states.create(state)
        stack.enter_context(_session(state))
        lock = running.take_lock(state)
        stack.callback(os.close, lock)
        stack.enter_context(first_start.undone_if_it_fails(state))
        states.remove_leftovers()
        _remember(state, arguments, authority)
        published = tuple(map(ports.parsed, own.publish))
        forwarding.check_free(published)
        fetching.require_room(state.directory, MIN_FREE_BYTES, "the VM needs", "make room")
        company_proxy.prepare(state, arguments.upstream_proxy)
        files = state.files
        cache = states.cache_directory()
        with image_store.in_use(cache):
            image = ready.disk_for(state, own, cache)
        pairs = keys.ensure(state)
        ca = ca_certificate(files.directory)
        proxy = StartedProxy(files.directory)
        stack.callback(proxy.stop)
        exported = stack.enter_context(host_guard.exported(own, state.name))
        owners = [(st.st_uid, st.st_gid) for st in (os.stat(one.directory) for one in exported)]
        repository = git_place.repository(own)
        secrets = credentials.load(files.directory)
        guest_files = provision.guest_files(own, ca, secrets, owners, repository)
        seed.write(state.seed, provision.content(state.name, guest_files, pairs, ca, agent))
        given = exported if repository is None else (*exported, repository)
        stack.enter_context(watcher.started(state, own))
        launch = Launch(state, own, image, pairs, given, lock, proxy, arguments.restricted)
        if new := [name for name in own.package if name not in settings.load(state).package]:
            print(f"this start installs in the guest: {', '.join(new)}", file=sys.stderr)
        stack.enter_context(logs.size_limited(state.console))
        with Phase("Boot", state.console) as phase:
            guest, _ = boot(stack, launch, phase)
        stack.enter_context(forwarding.published(state, guest, published))
        settings.save(state, own, arguments.remembered, arguments.file_keys)
        with open(state.ready, "wb"):
            pass
        stack.enter_context(shared_login.opened(state, guest))
        if not arguments.words:
            allowlist = Allowlist.parse(read_allowlist(files))
            for line in welcome.lines(own, allowlist, columns.width_of(sys.stderr)):
                print(line, file=sys.stderr)
        if agent is not None and agents.is_run(arguments.words):
            login = agent.login_ports(secret.name for secret in secrets)
            stack.enter_context(forwarding.for_login(state, guest, login))
        first = "" if agent is None else agents.PREPARE if arguments.words else agents.HELLO
        return _session_in(state, guest, arguments.words, first)


def _remember(state: State, arguments: UpArguments, authority: bytes | None) -> None:
    """Save what this start was given, before anything that can end it.

    If it is ended then, the next one must not share or allow more. Raises OSError.
    """
    saved = settings.load_saved(state)
    new, remembered = arguments.settings, arguments.remembered or arguments.settings
    settings.save(
        state,
        settings.before_start(saved.settings, new),
        settings.before_start(saved.remembered, remembered),
        tuple(dict.fromkeys((*saved.file_keys, *arguments.file_keys))),
    )
    is_new = not state.files.allowlist.exists()
    for_agent = _allowed_for_agent(state, new)
    create_files(state.files.directory, arguments.allow, arguments.file_allow, for_agent)
    if is_new and not (arguments.allow or arguments.file_allow or for_agent):
        print(
            "no model is allowed yet: stop the VM, then gitguard vm up --agent claude",
            file=sys.stderr,
        )
    if authority is not None:
        config_files.put(state.files.upstream_ca, authority or None)


def _allowed_for_agent(state: State, new: Settings) -> tuple[str, ...]:
    """Return presets and lines for the agent. UserError, OSError.

    A VM that was made without the agent also needs what that is installed from.
    """
    agent = agents.of(new)
    if agent is None:
        return ()
    install = () if ready.has_agent(state, agent) else agent.install.presets
    return (*agent.allow, *install)


def _authority(arguments: UpArguments) -> bytes | None:
    """Return the content of --upstream-ca; None to leave the remembered one, b"" to forget it.

    Raises UserError if it cannot be used, OSError.
    """
    if not arguments.upstream_ca:
        return None if arguments.upstream_ca is None else b""
    own = arguments.settings
    images.refuse_in_project(
        "the authority", arguments.upstream_ca, own.project, *own.others_writable
    )
    with open(arguments.upstream_ca, "rb") as certificate:
        text = certificate.read()
    try:
        tls.SSLContext(tls.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (tls.SSLError, ValueError) as error:
        raise UserError(f"{shown(arguments.upstream_ca)} holds no certificate: {error}") from None
    return text


@contextmanager
def _session(state: State) -> Iterator[None]:
    """Hold the session's lock. SIGTERM and SIGHUP meanwhile become a UserError."""
    fd = states.take(state.session_lock)
    if fd is None:
        pid = running.session_pid(state)
        raise UserError(
            f"the VM is already in use (by process {pid})" if pid else "the VM is already in use",
            "gitguard vm ssh opens another shell, gitguard vm up --publish PORT a port;"
            " gitguard vm stop stops the VM",
            Exit.SYSTEM,
        )
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        with ending.by_exception():
            yield
    except SystemExit:
        raise UserError("stopped", code=Exit.SYSTEM) from None
    finally:
        os.close(fd)


def refuse_root() -> None:
    """Raise UserError for root: QEMU would have root's rights, and the share too."""
    if os.geteuid() == 0:
        raise UserError(
            "gitguard vm up does not run as root: QEMU would have root's rights",
            "run it as the project's user",
            Exit.SYSTEM,
        )


def _session_in(state: State, guest: ssh.SshGuest, words: tuple[str, ...], first: str = "") -> int:
    """Run the shell or the command in the guest, after ``first``; return its exit status."""
    terminal = sys.stdin.isatty() and (not words or sys.stdout.isatty())
    # In a session with a terminal, that is the agent's.
    with watching.reported(state, at_once=not terminal and sys.stderr.isatty()):
        login = shared_login.path(state)
        process = subprocess.Popen(ssh.session(guest, words, terminal, keys.AGENT, first, login))
        try:
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status == ssh.FAILED and not _answers(state):
        if has_panicked(state):
            print("the guest's kernel panicked; gitguard vm logs shows it", file=sys.stderr)
        else:
            print("the VM was stopped", file=sys.stderr)
        return GitguardExit.FAILED
    return status


def _answers(state: State) -> bool:
    try:
        return qmp.status(state) == "running"
    except qmp.NoAnswerError:
        return False
