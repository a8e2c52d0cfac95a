"""The command ``gitguardfs``: its options, and nothing else."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gitguardfs import __version__
from gitguardfs.core.guard import GitPolicy, Rules
from gitguardfs.core.state import XattrPolicy
from gitguardfs.errors import Exit, UserError
from gitguardfs.options import MountOptions, parse_maps, parse_o

EPILOG = """\b
Examples:
  gitguardfs /mnt/projects ~/projects --map 1000:1000
      what user 1000 of the host owns belongs to user 1000 of the guest;
      .git can be seen and not used
  gitguardfs /mnt/projects ~/projects --map auto
      the owner of /mnt/projects becomes the owner of ~/projects
  gitguardfs /mnt/share /home/me/src --map 501/1000:@20/@1000
      a Mac's user 501 and group 20, in the spelling of bindfs
  gitguardfs ~/projects /run/user/1000/guarded --git readonly --hide .env
      on the host, below the export: "git log" works in the guest
  mount -t fuse.gitguardfs /mnt/projects /home/me/projects -o map=1000:1000
  umount ~/projects

\b
Exit codes: 0 done, 1 wrong usage, 2 something is missing on this system,
32 the mount failed.
"""


class _Timeout(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not 0 <= seconds <= 86400:
            self.fail(f"{value} is not between 0 and 86400 seconds", param, ctx)
        return seconds


_GIT = click.Choice([policy.value for policy in GitPolicy])
_XATTR = click.Choice([policy.value for policy in XattrPolicy])


@click.command(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("source")
@click.argument("mountpoint")
@click.option(
    "--map",
    "map_",
    metavar="MAP",
    multiple=True,
    help="HOST:GUEST (user and group), @HOST:@GUEST (group), u1/u2:@g1/@g2 (as in "
    "bindfs) or auto. Numbers or names; repeat it or put commas between several.",
)
@click.option(
    "--git",
    type=_GIT,
    default="deny",
    show_default=True,
    help="What .git is: seen but not usable, readable, invisible, or ordinary.",
)
@click.option(
    "--deny",
    metavar="GLOB",
    multiple=True,
    help="Also deny names like this: one path component, any case. Repeatable.",
)
@click.option(
    "--protect",
    metavar="GLOB",
    multiple=True,
    help="Names that may be read and not changed. Repeatable.",
)
@click.option("--hide", metavar="GLOB", multiple=True, help="Names that are not shown. Repeatable.")
@click.option(
    "--allow-bare", is_flag=True, help="Let directories become, and be used as, bare repositories."
)
@click.option("--allow-suid", is_flag=True, help="Keep set-user-id and set-group-id bits of files.")
@click.option(
    "--cache-timeout",
    type=_Timeout(),
    default=1.0,
    show_default=True,
    help="How long the kernel may remember names and attributes; 0 is not at all.",
)
@click.option(
    "--xattr",
    type=_XATTR,
    default="none",
    show_default=True,
    help="Extended attributes (user.* only); each write costs a second request then.",
)
@click.option("--audit-log", metavar="FILE", help="Append each refusal to FILE as a line of JSON.")
@click.option(
    "--seal/--no-seal",
    "seal",
    default=None,
    help="Cover SOURCE while it is guarded, so that only the view can be used. "
    "Default: when root mounts the root of a 9p or virtiofs share.",
)
@click.option("-r", "--read-only", is_flag=True, help="Allow no changes at all.")
@click.option(
    "-f",
    "--foreground",
    is_flag=True,
    help="Stay in the foreground; for systemd, tells NOTIFY_SOCKET when it is up.",
)
@click.option("-d", "--debug", is_flag=True, help="Stay in the foreground and log every request.")
@click.option(
    "-o",
    "o",
    metavar="OPTS",
    multiple=True,
    help="Options as in fstab, with commas between: every option above by its name "
    "(map=1000:1000,git=hide,ro), and what mount(8) passes.",
)
@click.version_option(__version__, prog_name="gitguardfs", message="%(prog)s %(version)s")
def command(source: str, mountpoint: str, o: tuple[str, ...], **given: Any) -> int:
    """Show the directory SOURCE at MOUNTPOINT with mapped owners and .git out of reach.

    Any component that git could take for .git can be seen but not used: not read, changed,
    replaced, moved or planted, by any user. Run by root it serves all users; run by a user,
    that user only. It goes into the background when the mount answers.
    """  # fmt: skip
    return _run(_options(source, mountpoint, o, given))


def _options(
    source: str, mountpoint: str, o: tuple[str, ...], given: dict[str, Any]
) -> MountOptions:
    extra = parse_o(o)
    context = click.get_current_context()

    def pick(name: str, default: Any) -> Any:
        """The command line goes before -o."""
        key = {"map": "map_"}.get(name, name)
        stated = context.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT
        return given[key] if stated else extra.get(name, default)

    def both(name: str) -> list[str]:
        more = extra.get(name, [])
        assert isinstance(more, list)
        return [*given[{"map": "map_"}.get(name, name)], *more]

    if pick("seal", None) is False and extra.get("seal") is True:
        raise UserError("seal and no-seal contradict one another")
    kernel = extra.get("kernel", [])
    assert isinstance(kernel, list)
    return MountOptions(
        source=source,
        mountpoint=mountpoint,
        map=parse_maps(both("map")),
        rules=Rules(
            git=GitPolicy(_choice("git", pick("git", "deny"), _GIT)),
            allow_bare=bool(pick("allow_bare", False)),
            deny=_globs("deny", both("deny")),
            protect=_globs("protect", both("protect")),
            hide=_globs("hide", both("hide")),
        ),
        allow_suid=bool(pick("allow_suid", False)),
        cache_timeout=_Timeout().convert(pick("cache_timeout", 1.0), None, None),
        xattr=XattrPolicy(_choice("xattr", pick("xattr", "none"), _XATTR)),
        audit_log=pick("audit_log", None),
        seal=pick("seal", None),
        read_only=bool(pick("read_only", False)),
        foreground=bool(pick("foreground", False)),
        debug=bool(pick("debug", False)),
        fsname=_text(extra.get("fsname")),
        intended=_text(extra.get("mountpoint")),
        kernel=tuple(kernel),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _choice(name: str, value: str, choice: click.Choice[str]) -> str:
    if value not in choice.choices:
        raise UserError(f"{name}={value} is unknown", f"one of {', '.join(choice.choices)}")
    return value


def _globs(name: str, globs: list[str]) -> tuple[str, ...]:
    for glob in globs:
        if not glob or "/" in glob:
            raise UserError(
                f"--{name} {glob!r} is not a pattern for one path component", "leave out the /"
            )
    return tuple(globs)


def _run(options: MountOptions) -> int:
    try:
        from gitguardfs.fuse import mount  # after the usage checks: --help needs no pyfuse3
    except ImportError as error:
        from gitguardfs.fuse import seal

        missing = UserError(str(error), "install python3-pyfuse3 and python3-trio", Exit.SYSTEM)
        raise seal.fail_closed(options.source, options.seal, missing) from None
    return mount.run(options, os.environ.get("NOTIFY_SOCKET"))


def main() -> None:
    """Run the command; every mistake of the user's is one line and an exit code."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # the standard streams are there, if only as /dev/null
    os.close(spare)
    try:
        code = command.main(standalone_mode=False)
    except UserError as error:
        print(f"gitguardfs: {error}", file=sys.stderr)
        code = error.code
    except click.UsageError as error:
        print(f"gitguardfs: {error.format_message()} (see gitguardfs --help)", file=sys.stderr)
        code = Exit.USAGE
    except click.Abort:
        code = Exit.SYSTEM
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"gitguardfs: {where}{error.strerror}", file=sys.stderr)
        code = Exit.SYSTEM
    sys.exit(code)
