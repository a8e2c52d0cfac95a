"""Files that are written into the guest: settings for proxy, CA and git, and rules for agents.

Each tool has its own setting for a proxy and a certificate authority, so these two are
written in many forms.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gitguardfs.base import installation, quote, secret_names
from gitguardfs.base.constants import AGENT, NOT_PROXIED, SYSTEM_PATH
from gitguardfs.guest.systemd import CHANGES, TEMPLATE
from gitguardfs.host.credentials.secrets import Secret
from gitguardfs.host.egress.urls import BLOCKED_URL
from gitguardfs.host.share import agent_rules
from gitguardfs.host.vm import guest_secrets, guest_tools
from gitguardfs.host.vm.qemu_command import GUEST_ADDRESS, PROXY_ADDRESS, PROXY_PORT
from gitguardfs.host.vm.settings import Settings
from gitguardfs.names.rules import GitMode

if TYPE_CHECKING:
    from gitguardfs.host.vm.agents import Agent

PROXY = guest_tools.PROXY
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""Debian's bundle of trusted certificates; PROGRAM appends the proxy's authority."""
CA_FILE = "/usr/local/share/ca-certificates/gitguard-vm.crt"
"""The proxy's authority, where update-ca-certificates finds it when a package runs that."""
AUTHORIZED_KEYS = "/etc/gitguard-vm/keys"
"""The directory with a file of authorized keys for each user."""
BLOCKED_PROGRAM = "/usr/local/bin/gitguard-blocked"
"""Shows what the proxy has blocked: programs such as pip do not show the proxy's answer."""
CONFIG = "/etc/gitguard-vm/config"
"""The settings that the program reads."""
HIDDEN_NAMES = "/etc/gitguard-vm/hidden-names.bash"
"""Says in the agent's shell which option shows a hidden name."""
PROGRAM = "/usr/local/sbin/gitguard-vm"
"""The program that sets the guest up, and prepares it at each start."""
CLOCK_PROGRAM = "/usr/local/sbin/gitguard-vm-clock"
"""The program that keeps the clock in step with the host's."""

UNITS = "/etc/systemd/system"
"""The directory of the units of this guest."""

PANIC_TIMEOUT = -1
"""Reboot at once after a panic. With -no-reboot that ends QEMU; otherwise sessions would hang."""

RULES = f"""
- This is a sandbox VM. Never run `git push`, and never ask for credentials that would allow it.
- There is no direct internet. HTTP and HTTPS go through a proxy ({PROXY}) with an allowlist. A
  response with status 418, or 426 for a WebSocket, says what to ask the human for. Many programs do
  not show it, pip among them: `gitguard-blocked` prints the last of these texts. Do not look for
  another way out.
- SSH has no way out. Git uses HTTPS where an address says SSH (`git@github.com:`, `ssh://`).
- What you change in the project changes on the human's disk at once. There is no undo.
- A variable whose value begins with `gitguard-secret-` holds the place of a secret that you never
  have. Send it to the secret's service like the secret. In the URL or the header of another
  request the proxy refuses it; in a body it passes, and stays what it is. A request that holds the
  secret itself ends its use.
"""

_RULES_OF_NAMES = """\
- Environment files and keys are hidden here, by their names: `.env`, `.env.local`, `.envrc`,
  `id_ed25519`, `.netrc`, `*.p12` and others. The human may have one that you do not see. Making one
  (`cp .env.example .env`) fails with `Permission denied`, also for `git clone` and `git checkout`.
  Do not use another name instead: ask the human to stop the VM and to use
  `gitguard vm up --show .env`. `.env.example` and `.env.template` are not hidden.
"""

_BLOCKED = f"""\
#!/bin/sh
# Prints what the proxy has blocked of late, and what to ask the human for. The proxy itself answers
# for this host name. With -q and --noproxy, curl follows no settings of the user's.
exec curl -q --silent --show-error --fail-with-body --max-time 30 \\
    --noproxy '' --proxy {PROXY} {BLOCKED_URL}
"""


_START_UNIT = f"""\
[Unit]
Description=What this VM is given by its host
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} start

[Install]
WantedBy=sysinit.target
"""

_GUARD_UNIT = f"""\
[Unit]
Description=The guarded project
Requires=gitguard-vm-start.service
After=gitguard-vm-start.service ssh.service sshd.service
Wants=gitguard-vm-end.service gitguard-vm-clock.service {CHANGES}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PROGRAM} guard

[Install]
WantedBy=multi-user.target
"""

_END_UNIT = f"""\
[Unit]
Description=Tells the host that the start of this VM has failed
# It waits for the guard's end, whatever that is: a job that is canceled fails no unit.
After=gitguard-vm-guard.service
ConditionPathExists=!/run/gitguard-vm.told
DefaultDependencies=no
Before=shutdown.target
Conflicts=shutdown.target

[Service]
Type=oneshot
ExecStart={PROGRAM} end
"""

_CLOCK_UNIT = f"""\
[Unit]
Description=The clock in step with the host's, also after a pause

[Service]
ExecStart={CLOCK_PROGRAM}
Restart=always
RestartSec=5s
"""

# A damaged disk, for example, cancels all other jobs.
_IN_EMERGENCY = "[Unit]\nWants=gitguard-vm-end.service\n"


# The machine has little hardware, and always the same. An emulated guest takes many seconds to look
# at all devices of the kernel's, and to load drivers for parts that nothing uses.
_HARDWARE = ("block", "input", "net", "virtio", "virtio-ports")
_TRIGGER = (
    "[Service]\nExecStart=\nExecStart=-udevadm trigger --type=devices --action=add {}\n".format(
        " ".join(f"--subsystem-match={name}" for name in _HARDWARE)
    )
)
_DRIVERS = f"""\
# In place of systemd's file of this name.
ACTION!="remove", SUBSYSTEM=="{"|".join(_HARDWARE)}", ENV{{MODALIAS}}=="?*", \\
    RUN{{builtin}}+="kmod load $env{{MODALIAS}}"
# An initial RAM disk that root makes here has these rules too, and needs this for its disk.
ACTION!="remove", SUBSYSTEM=="pci", ENV{{MODALIAS}}=="pci:v00001AF4*", \\
    RUN{{builtin}}+="kmod load $env{{MODALIAS}}"
"""
# One process loads all, instead of one each by modprobe@.service. The button is the one by which
# the host shuts the guest down: it alone of the dozens of ACPI devices needs a driver.
_MODULES = "".join(
    f"{name}\n" for name in ("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "fuse", "button")
)
_NETWORK = f"""\
# An address, but no route and no name server.
ACTION=="add", SUBSYSTEM=="net", DRIVERS=="virtio_net", \\
    RUN+="/bin/ip link set dev $name addrgenmode none up", \\
    RUN+="/bin/ip address replace {GUEST_ADDRESS}/24 dev $name"
"""


@dataclass(frozen=True)
class GuestFile:
    """A file of the guest that belongs to root."""

    path: str
    content: str | bytes
    mode: int = 0o644

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return self.content if isinstance(self.content, bytes) else self.content.encode()


def files(
    settings: Settings,
    units: dict[str, str],
    ca: str | None = None,
    services: Sequence[str] = (),
    secrets: tuple[Secret, ...] = (),
    agent: Agent | None = None,
) -> list[GuestFile]:
    """Return all files for the guest. ``units`` has the texts of shares and guards, by path.

    A disk that VMs are to share has neither an authority ``ca`` (PEM), nor ``services`` that guard
    the shares, nor secrets. Raises OSError.
    """
    rules = agent_rules.text(GitMode(settings.git_mode), settings.local) + RULES
    rules += _RULES_OF_NAMES if settings.hide_secrets else ""
    rules += _about_others(settings)
    project, *_ = settings.shares
    return [
        *([] if ca is None else [GuestFile(CA_FILE, ca)]),
        GuestFile("/etc/sysctl.d/50-gitguard-vm.conf", f"kernel.panic = {PANIC_TIMEOUT}\n"),
        GuestFile(
            guest_secrets.ENVIRONMENT,
            _environment_file(agent.environment if agent else ())
            + guest_secrets.environment(secrets),
        ),
        GuestFile("/etc/systemd/system.conf.d/50-gitguard-vm.conf", _systemd("Manager")),
        GuestFile("/etc/systemd/user.conf.d/50-gitguard-vm.conf", _systemd("Manager")),
        GuestFile("/etc/apt/apt.conf.d/95gitguard-vm", _apt()),
        GuestFile("/etc/pip.conf", f"[global]\nproxy = {PROXY}\ncert = {BUNDLE}\n"),
        GuestFile(
            guest_secrets.NPMRC,
            f"proxy={PROXY}\nhttps-proxy={PROXY}\ncafile={BUNDLE}\n" + guest_secrets.npm(secrets),
        ),
        GuestFile(guest_secrets.GITCONFIG, _git(settings) + guest_secrets.git(secrets)),
        GuestFile("/etc/ssh/sshd_config.d/10-gitguard-vm.conf", _sshd()),
        GuestFile("/etc/claude-code/CLAUDE.md", rules),
        GuestFile("/etc/claude-code/managed-settings.json", _managed_settings()),
        GuestFile("/etc/gitguard-vm/AGENTS.md", rules),
        *(
            GuestFile(path, *file)
            for path, file in (agent.guest_files(project.view) if agent else {}).items()
        ),
        *(GuestFile(path, content) for path, content in guest_tools.files(ca).items()),
        GuestFile(BLOCKED_PROGRAM, _BLOCKED, 0o755),
        GuestFile(CONFIG, _config(settings, services, agent)),
        GuestFile(HIDDEN_NAMES, _hidden_names(settings, *(one.view for one in settings.shares))),
        GuestFile("/etc/profile.d/gitguard-vm.sh", _PROFILE),
        GuestFile(PROGRAM, installation.text("host/vm/guest.sh"), 0o755),
        GuestFile("/etc/systemd/journald.conf.d/50-gitguard-vm.conf", _JOURNAL),
        GuestFile(f"{UNITS}/gitguard-vm-start.service", _START_UNIT),
        GuestFile(f"{UNITS}/gitguard-vm-guard.service", _GUARD_UNIT),
        GuestFile(f"{UNITS}/gitguard-vm-end.service", _END_UNIT),
        GuestFile(CLOCK_PROGRAM, installation.text("host/vm/files/clock.sh"), 0o755),
        GuestFile(f"{UNITS}/gitguard-vm-clock.service", _CLOCK_UNIT),
        GuestFile(f"{UNITS}/emergency.target.d/50-gitguard-vm.conf", _IN_EMERGENCY),
        GuestFile(f"{UNITS}/systemd-udev-trigger.service.d/50-gitguard-vm.conf", _TRIGGER),
        GuestFile("/etc/udev/rules.d/80-drivers.rules", _DRIVERS),
        GuestFile("/etc/modules-load.d/50-gitguard-vm.conf", _MODULES),
        # sshd reads the same settings a second time, to look for mistakes.
        GuestFile(f"{UNITS}/ssh.service.d/50-gitguard-vm.conf", "[Service]\nExecStartPre=\n"),
        GuestFile("/etc/udev/rules.d/90-gitguard-vm.rules", _NETWORK),
        # The host is told once the guarded view is there.
        GuestFile(
            f"{UNITS}/{TEMPLATE}.d/50-gitguard-vm.conf",
            "[Unit]\nBefore=gitguard-vm-guard.service\n",
        ),
        *(GuestFile(f"{UNITS}/{path}", text) for path, text in units.items()),
    ]


def _about_others(settings: Settings) -> str:
    """Return the rule that names the shares besides the project; "" without any."""
    rows = [
        f"  - `{share.view}`" + ("" if share.is_writable else ", which you can only read")
        for share in settings.shares[1:]
    ]
    return "\n".join(["- These are directories of the human's too:", *rows, ""]) if rows else ""


def environment() -> dict[str, str]:
    """Return the variables by which programs find the proxy and trust its certificates."""
    proxies = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"), PROXY
    )
    bundles = dict.fromkeys(
        (
            "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
            "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
        ),
        BUNDLE,
    )  # fmt: skip
    return {
        **proxies,
        "no_proxy": NOT_PROXIED,
        "NO_PROXY": NOT_PROXIED,
        **bundles,
        "CARGO_HTTP_PROXY": PROXY,
        "NPM_CONFIG_GLOBALCONFIG": "/etc/npmrc",
        **guest_tools.environment(),
    }


_PROFILE = f"""\
# Only for a person's bash: its prompt explains a command that failed.
[ -z "${{BASH_VERSION-}}" ] || [ -z "${{PS1-}}" ] || . {HIDDEN_NAMES}
"""
_JOURNAL = "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\n"


def _environment_file(more: Iterable[tuple[str, str]]) -> str:
    # pam_env(8) takes a value within double quotes literally.
    variables = {"PATH": SYSTEM_PATH, **environment(), **dict(more)}
    lines = [f'{name}="{value}"' for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def _systemd(section: str) -> str:
    words = " ".join(quote.systemd_word(f"{name}={value}") for name, value in environment().items())
    # An emulated guest on a busy host takes longer than systemd waits by default.
    return f"[{section}]\nDefaultEnvironment={words}\nDefaultTimeoutStartSec=300s\n"


def _apt() -> str:
    return (
        f'Acquire::http::Proxy "{PROXY}";\nAcquire::https::Proxy "{PROXY}";\n'
        f'Acquire::https::CAInfo "{BUNDLE}";\nAcquire::Retries "2";\n'
    )


def _git(settings: Settings) -> str:
    return (
        "[user]\n"
        f"\tname = {_git_value(settings.git_name)}\n\temail = {_git_value(settings.git_email)}\n"
        f"[http]\n\tproxy = {PROXY}\n\tsslCAInfo = {BUNDLE}\n"
        f"{guest_tools.git_rules()}"
    )


def _git_value(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _sshd() -> str:
    # GatewayPorts: the host, which alone has a key, chooses the address of the tunnel in the guest.
    return (
        f"AuthorizedKeysFile {AUTHORIZED_KEYS}/%u\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nGatewayPorts clientspecified\nUseDNS no\n"
        "X11Forwarding no\nAllowAgentForwarding no\nPrintMotd no\n"
        "MaxSessions 1000\n"  # of one login: those of the agent's user share it
    )


def _hidden_names(settings: Settings, *views: str) -> str:
    if not settings.hide_secrets:  # a file that another start has written would stay
        return ""
    values = {
        "VIEWS": f"({shlex.join(views)})",
        "SHOW": f"({shlex.join(settings.show)})",
        "SECRETS": shlex.quote(secret_names.HIDDEN),
        "EXAMPLES": shlex.quote(secret_names.EXAMPLES),
    }
    lines = "".join(f"GITGUARD_{name}={value}\n" for name, value in values.items())
    return lines + installation.text("host/vm/files/hidden-names.bash")


def _managed_settings() -> str:
    rules = {"permissions": {"deny": ["Bash(git push)", "Bash(git push:*)"]}}
    return json.dumps(rules, indent=2) + "\n"


def _config(settings: Settings, services: Sequence[str], agent: Agent | None) -> str:
    view, *views = (share.view for share in settings.shares)
    values = {
        "AGENT": AGENT,
        "BUNDLE": BUNDLE,
        "CA_FILE": CA_FILE,
        "PROXY_ADDRESS": PROXY_ADDRESS,
        "PROXY_PORT": str(PROXY_PORT),
        "VIEW": view,
        "SERVICE": services[0] if services else "",
        "GIT": settings.git_mode,
        "PANIC_TIMEOUT": str(PANIC_TIMEOUT),
    }
    lists = {
        "MORE_VIEWS": views,
        "MORE_SERVICES": services[1:],
        "MORE_PACKAGES": settings.package,
        "AGENT_PACKAGES": agent.install.debian_packages if agent else (),
    }
    return "".join(
        (
            *(f"{name}={shlex.quote(value)}\n" for name, value in values.items()),
            *(f"{name}=({shlex.join(words)})\n" for name, words in lists.items()),
        )
    )
