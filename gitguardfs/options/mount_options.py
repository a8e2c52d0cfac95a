"""The options of one mount, validated and frozen.

No module that uses them reads the command line or the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from gitguardfs.base.errors import UserError, warn
from gitguardfs.names.rules import GitMode, GuardRules, LinkMode
from gitguardfs.options.accounts import group_id, user_id
from gitguardfs.options.change_policy import (
    ChangePolicy,
    ChangeRule,
    Deletion,
    SymlinkPolicy,
    XattrPolicy,
)
from gitguardfs.options.id_maps import IdMapSpec, add_passwd_files, parse_maps, parse_mirror
from gitguardfs.options.overrides import Overrides
from gitguardfs.options.parsing import RawOptions, check_glob, seconds, spelled
from gitguardfs.options.permissions import Perms

_SUFFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class SessionKind(Enum):
    """What takes the requests of a mount from the kernel."""

    AUTO = "auto"
    """The kernel's session where that can serve, and pyfuse3's elsewhere."""
    KERNEL = "kernel"
    PYFUSE3 = "pyfuse3"


@dataclass(frozen=True)
class MountOptions:
    """The options of one mount."""

    source: str
    mountpoint: str
    map: IdMapSpec = field(default_factory=IdMapSpec)
    rules: GuardRules = field(default_factory=GuardRules)
    policy: ChangePolicy = field(default_factory=ChangePolicy)
    overrides: Overrides = field(default_factory=Overrides)
    symlinks: SymlinkPolicy | None = None
    """None: symlinks are shown as symlinks."""
    allow_suid: bool = False
    cache_timeout: float = 1.0
    audit_log: str | None = None
    private_store: str | None = None
    """The directory of the agent's repositories of ``--git=private``; None for the default."""
    repository: str | None = None
    """The git directory that the source's ``.git`` leads to, outside of the source."""
    local: tuple[str, ...] = ()
    """The names of the guest's own directories: patterns, and ``deps``."""
    local_store: str | None = None
    """The directory of ``--local``; None for the default."""
    seal: bool | None = None
    """None: seal if root mounts the root of a 9p or virtiofs share."""
    allow_holders: bool = False
    """Start although processes hold files or directories of the source from before the seal."""
    source_owner: int | None = None
    """The user whose FUSE file system the source may be in."""
    nonempty: bool = False
    """Mount over a directory that is not empty."""
    read_only: bool = False
    read_rate: float | None = None
    """In bytes per second, as ``write_rate``; None for no limit."""
    write_rate: float | None = None
    direct_io: bool = False
    session: SessionKind = SessionKind.AUTO
    enable_ioctl: bool = False
    lock_forwarding: bool = False
    """Whether locks are those of the source's files, for its programs too."""
    allow_other: bool = True
    foreground: bool = False
    debug: bool = False
    fsname: str | None = None
    expected_mountpoint: str | None = None
    """``-o mountpoint=``: the mount point as in fstab; mount(8) resolves it before we see it."""
    kernel: tuple[str, ...] = ()
    """Mount options that are only passed to the kernel (noatime, sync, noexec, dev ...)."""
    needs_root: str | None = None
    """The name of a given option that needs root; None if there is none."""
    given: tuple[str, ...] = field(default=(), compare=False)
    """The options that were given, as in ``-o``, unquoted."""

    @property
    def needs_kernel_session(self) -> str:
        """The name of a given option that only the kernel's session serves; "" if there is none."""
        ioctl = "enable-ioctl" if self.enable_ioctl else ""
        return "enable-lock-forwarding" if self.lock_forwarding else ioctl


def build(source: str, mountpoint: str, given: RawOptions) -> MountOptions:
    """Build the options of a mount from what was given. Raises UserError for a bad value."""
    _check_supported(given)
    values = _Values(given)
    rules = GuardRules(
        git=values.one_of("git", GitMode, GitMode.DENY),
        allow_bare=values.flag("allow_bare"),
        links=values.one_of("links", LinkMode, LinkMode.GUARDED),
        deny=values.globs("deny"),
        protect=values.globs("protect"),
        hide=values.globs("hide"),
        hide_secrets=values.flag("hide_secrets"),
        show=values.globs("show"),
    )
    is_plain = rules.git is GitMode.OFF
    timeout = values.read("cache_timeout", seconds)
    return MountOptions(
        source=source,
        mountpoint=mountpoint,
        map=_map(values),
        rules=rules,
        policy=_policy(values, XattrPolicy.RW if is_plain else XattrPolicy.NONE),
        overrides=_overrides(values),
        symlinks=_symlinks(values),
        allow_suid=values.flag("allow_suid") or is_plain,
        cache_timeout=1.0 if timeout is None else timeout,
        audit_log=values.text("audit_log"),
        private_store=values.text("private_store"),
        repository=values.text("repository"),
        local=values.globs("local"),
        local_store=values.text("local_store"),
        seal=given.get("seal"),  # type: ignore[arg-type]  # a flag's value or nothing
        allow_holders=values.flag("allow_holders"),
        source_owner=values.read("source_owner", user_id),
        nonempty=values.flag("nonempty"),
        read_only=values.flag("read_only"),
        read_rate=values.read("read_rate", _rate),
        write_rate=values.read("write_rate", _rate),
        direct_io=values.flag("direct_io"),
        session=values.one_of("session", SessionKind, SessionKind.AUTO),
        enable_ioctl=values.flag("enable_ioctl"),
        lock_forwarding=values.flag("lock_forwarding"),
        allow_other=not values.flag("no_allow_other"),
        foreground=values.flag("foreground"),
        debug=values.flag("debug"),
        fsname=values.text("fsname"),
        expected_mountpoint=values.text("mountpoint"),
        kernel=tuple(values.texts("kernel")),
        needs_root=_needs_root(given),
        given=spelled(given),
    )


class _Values:
    """Converts the given values to their types; raises UserError for a bad one."""

    def __init__(self, given: RawOptions) -> None:
        self._given = given

    def flag(self, key: str) -> bool:
        return bool(self._given.get(key, False))

    def text(self, key: str) -> str | None:
        value = self._given.get(key)
        return None if value is None else str(value)

    def texts(self, key: str) -> list[str]:
        values = self._given.get(key, [])
        assert isinstance(values, list)
        return values

    def read(self, key: str, reader: Callable[[str], T]) -> T | None:
        """Return the value converted by ``reader``, whose ValueError becomes a UserError."""
        text = self.text(key)
        if text is None:
            return None
        try:
            return reader(text)
        except ValueError as error:
            raise UserError(f"--{key.replace('_', '-')}: {error}") from None

    def one_of(self, key: str, kind: type[E], default: E) -> E:
        text = self.text(key)
        if text is None:
            return default
        try:
            return kind(text)
        except ValueError:
            choices = ", ".join(str(member.value) for member in kind)
            name = key.replace("_", "-")
            raise UserError(f"{name}={text} is unknown", f"one of {choices}") from None

    def globs(self, key: str) -> tuple[str, ...]:
        globs = self.texts(key)
        for glob in globs:
            check_glob(glob, f"--{key} ")
        return tuple(globs)

    def perms(self, key: str) -> Perms | None:
        perms = self.read(key, Perms)
        for rule in perms.without_effect if perms is not None else ():
            warn(
                f"{rule!r} in {key.replace('_', '-')} has no effect: it names none of u, g, o and a"
            )
        return perms


def _rate(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([kMGT]?)", text)
    rate = float(match[1]) * 1024 ** _SUFFIXES[match[2]] if match else 0.0
    if rate <= 0:
        raise ValueError(f"{text!r} is not a number of bytes a second, such as 500k or 2M")
    return rate


def _whole(text: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _alignment(text: str) -> int:
    if (alignment := _whole(text)) <= 0:
        raise ValueError(f"{text} is not a number of bytes")
    return alignment


def _map(values: _Values) -> IdMapSpec:
    maps = values.texts("map")
    spec = add_passwd_files(
        parse_maps(maps),
        _files(values, "map_passwd"),
        _files(values, "map_group"),
    )
    uid_offset, gid_offset = values.read("uid_offset", _whole), values.read("gid_offset", _whole)
    if maps and not (uid_offset is None and gid_offset is None):
        raise UserError("--map cannot be combined with --uid-offset or --gid-offset")
    return replace(spec, uid_offset=uid_offset or 0, gid_offset=gid_offset or 0)


def _files(values: _Values, key: str) -> list[tuple[str, bool]]:
    paths = ((values.text(key), False), (values.text(f"{key}_rev"), True))
    return [(path, rev) for path, rev in paths if path is not None]


def _policy(values: _Values, xattr: XattrPolicy) -> ChangePolicy:
    return ChangePolicy(
        create_as_mounter=values.text("create") == "mounter",
        create_for_user=values.read("create_for_user", user_id),
        create_for_group=values.read("create_for_group", group_id),
        create_with_perms=values.perms("create_with_perms"),
        chown=values.one_of("chown", ChangeRule, ChangeRule.NORMAL),
        chgrp=values.one_of("chgrp", ChangeRule, ChangeRule.NORMAL),
        chmod=values.one_of("chmod", ChangeRule, ChangeRule.NORMAL),
        chmod_filter=values.perms("chmod_filter"),
        chmod_allow_x=values.flag("chmod_allow_x"),
        delete_deny=values.flag("delete_deny"),
        rename_deny=values.flag("rename_deny"),
        xattr=values.one_of("xattr", XattrPolicy, xattr),
    )


def _overrides(values: _Values) -> Overrides:
    mirror, only = values.text("mirror"), values.text("mirror_only")
    if mirror is not None and only is not None:
        raise UserError("--mirror and --mirror-only cannot be combined")
    for old, new in (("old_user", "force-user"), ("old_group", "force-group")):
        if values.text(old) is not None:
            warn(f"--{old.removeprefix('old_')} is an old name of --{new}")
    user = values.read("force_user", user_id)
    group = values.read("force_group", group_id)
    listed = mirror if only is None else only
    return Overrides(
        force_user=values.read("old_user", user_id) if user is None else user,
        force_group=values.read("old_group", group_id) if group is None else group,
        perms=values.perms("perms"),
        mirror=None if listed is None else parse_mirror(listed, only is not None),
        hide_hard_links=values.flag("hide_hard_links"),
        ctime_from_mtime=values.flag("ctime_from_mtime"),
        realistic_permissions=values.flag("realistic_permissions"),
        block_devices_as_files=values.flag("block_devices_as_files"),
    )


def _symlinks(values: _Values) -> SymlinkPolicy | None:
    deletion = values.one_of("resolved_symlink_deletion", Deletion, Deletion.SYMLINK_ONLY)
    if not values.flag("resolve_symlinks"):
        return None
    if values.texts("local"):
        raise UserError(
            "--local and --resolve-symlinks cannot be combined",
            "a symlink would show a directory of the share that the view does not show",
        )
    return SymlinkPolicy(deletion)


def _check_supported(given: RawOptions) -> None:
    """Raise UserError for an empty value, and for options of bindfs that are unsafe to ignore."""
    for key, value in given.items():
        if value == "" or (isinstance(value, list) and "" in value):
            name = key.removeprefix("old_").replace("_", "-")
            raise UserError(f"{name} has an empty value", "give one, or leave the option out")
    _Values(given).read("forward_odirect", _alignment)


def _needs_root(given: RawOptions) -> str | None:
    if given.get("create") == "user":
        return "create-as-user"
    if "dev" in _Values(given).texts("kernel"):
        return "dev"
    if given.get("local"):
        return "local"
    if given.get("session") == SessionKind.KERNEL.value:
        return "session kernel"
    for key in ("create_for_user", "create_for_group"):
        if key in given:
            return key.replace("_", "-")
    return None
