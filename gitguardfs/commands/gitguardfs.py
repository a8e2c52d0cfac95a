"""The command ``gitguardfs``: its options, and the call that mounts."""

from __future__ import annotations

import os
import platform

import click

from gitguardfs import __version__
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands.run import run
from gitguardfs.options.mount_options import MountOptions, build
from gitguardfs.options.parsing import RawOptions, add, asks_for_seal, merge, parse_o, spelling_of
from gitguardfs.options.table import MOUNT, OPTIONS, SECTIONS, Option

EPILOG = """\b
Examples:
  gitguardfs /mnt/projects ~/projects --map 1000:1000
      what user 1000 of the host owns belongs to user 1000 of the guest;
      .git is closed, and in no listing
  gitguardfs /mnt/projects ~/projects --map auto
      the owner of /mnt/projects becomes the owner of ~/projects
  gitguardfs /mnt/share /home/agent/src --map 501/1000:@20/@1000
      a Mac's user 501 and group 20, in the spelling of bindfs
  gitguardfs ~/projects /run/user/1000/guarded --git readonly --hide .env
      on the host, below the export: "git log" works in the guest
  mount -t fuse.gitguardfs /mnt/projects /home/agent/projects -o map=1000:1000
  umount ~/projects

In docs/ of the source, bindfs.md compares the options with those of bindfs, and security.md has the
rules of the guard.

\b
Exit codes, as of mount(8): 0 done, 1 wrong usage, 2 an error of the system,
32 the mount failed.
"""


class _Command(click.Command):
    """A command whose --help lists the options in the sections of the table."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            spelling = spelling_of(error.option_name.removeprefix("--"))
            if spelling is None:
                raise
            raise UserError(f"no such option: {error.option_name}", f"write {spelling}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                sections[_section(param)].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _TableOption(click.Option):
    """An option of the table. Its values are collected in order; ``build`` checks them later."""

    def __init__(self, option: Option) -> None:
        super().__init__(
            [f"--{option.name}", *([option.short] if option.short else [])],
            is_flag=not option.metavar,
            multiple=option.multiple,
            metavar=option.metavar or None,
            default=None,
            help=option.help,
            hidden=option.hidden,
            expose_value=False,
            callback=self._collect,
        )
        self.option = option

    def _collect(self, ctx: click.Context, _param: click.Parameter, value: object) -> None:
        if ctx.get_parameter_source(self.name or "") is not click.core.ParameterSource.COMMANDLINE:
            return
        for one in value if isinstance(value, tuple) else (value,):
            add(_given(ctx), self.option, one if self.option.metavar else None)


def _section(param: click.Parameter) -> str:
    return param.option.section if isinstance(param, _TableOption) else MOUNT


def _given(ctx: click.Context) -> RawOptions:
    given: RawOptions = ctx.meta.setdefault("gitguardfs.given", {})
    return given


def _fuse_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from gitguardfs.sessions.choice import INSTALL

    try:
        from gitguardfs.sessions.pyfuse3_session.session import versions
    except ImportError as error:
        raise UserError(str(error), INSTALL, Exit.SYSTEM) from None
    click.echo(versions())
    ctx.exit()


@click.command(
    cls=_Command,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("source")
@click.argument("mountpoint")
@click.option(
    "-o",
    "o",
    metavar="OPTS",
    multiple=True,
    help="Options as in fstab, with commas between: every option above by its name "
    "(map=1000:1000,git=hide,ro), and what mount(8) passes.",
)
@click.option(
    "--fuse-version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_fuse_version,
    help="Show the versions of libfuse and pyfuse3 and exit.",
)
@click.version_option(
    __version__, "-V", "--version", prog_name="gitguardfs", message="%(prog)s %(version)s"
)
@click.pass_context
def command(ctx: click.Context, source: str, mountpoint: str, o: tuple[str, ...]) -> int:
    """Show the directory SOURCE at MOUNTPOINT with mapped owners and .git out of reach.

    Any component that git could take for .git is closed: no user can read, change, replace,
    move or plant it, and listings leave it out. Run by root it serves all users; run by a user,
    that user only. It goes into the background when the mount answers. A daemon of root's that is
    killed is started again.
    """  # fmt: skip
    if platform.system() != "Linux":
        hint = "in the guest; gitguard share runs here"
        raise UserError("gitguardfs runs on Linux only", hint, Exit.SYSTEM)
    return _run(_options(source, mountpoint, o, _given(ctx)))


# The options of the table, in its order, come before those that every command has.
command.params[2:2] = [_TableOption(option) for option in OPTIONS if not option.in_o_only]


def _options(source: str, mountpoint: str, o: tuple[str, ...], given: RawOptions) -> MountOptions:
    try:
        return build(source, mountpoint, merge(parse_o(o), given))
    except UserError as error:
        from gitguardfs.mounting import seal

        # A mistake in fstab shows only at boot, when nobody looks: so the source is sealed.
        raise seal.fail_closed(source, asks_for_seal(o, given), error) from None


def _run(options: MountOptions) -> int:
    try:
        # Imported after the usage checks: --help works without pyfuse3.
        from gitguardfs.mounting import run as mount
        from gitguardfs.sessions import choice

        kind = choice.session_kind(
            options.session.value,
            options.allow_suid,
            options.needs_kernel_session,
            options.enable_ioctl,
        )
    except (ImportError, UserError) as error:
        from gitguardfs.mounting import seal

        fault = UserError(str(error), code=Exit.SYSTEM) if isinstance(error, ImportError) else error
        raise seal.fail_closed(options.source, options.seal, fault) from None
    notify_socket = os.environ.get("NOTIFY_SOCKET")
    is_main = os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())  # systemd.exec(5)
    return mount.run(options, notify_socket, bool(notify_socket) and is_main, kind)


def main() -> None:
    """Run ``gitguardfs``. A user's mistake becomes one line and an exit code."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # descriptors 0, 1 and 2 are open from here on, if only on /dev/null
    os.close(spare)
    run(command, "gitguardfs")
