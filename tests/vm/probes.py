"""Probes of the network, run in the guest: it prints the names of those that are answered."""

from tests.vm.world import World

PROBE = r"""
import os, socket, struct, subprocess

if os.geteuid() == 0:  # what root can add: a route and a name server, as DHCP would give them
    subprocess.run(["ip", "route", "replace", "default", "via", "10.0.2.2"], check=False)

def tcp(host, port):
    with socket.create_connection((host, port), 3) as peer:
        peer.settimeout(3)
        if port == PORT:
            return peer.recv(5) == b"HOST\n"
        return True

def dns(host):
    query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\7example\3com\0"
    query += struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(3)
        peer.sendto(query, (host, 53))
        return len(peer.recv(512)) > 0

def tftp(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(2)
        peer.sendto(b"\0\1x\0octet\0", (host, 69))
        # QEMU's own server says "access violation" (5) to everything, as long as it has no
        # directory to serve; a file would come as data (3).
        return peer.recv(512)[:2] != b"\0\5"

def ping(host):
    done = subprocess.run(["ping", "-c", "1", "-W", "2", host], capture_output=True)
    return done.returncode == 0

PROBES = {
    "proxy": (tcp, "10.0.2.100", 8080),
    "proxy-other-port": (tcp, "10.0.2.100", 80),
    "host-port": (tcp, "10.0.2.2", PORT),
    "host-ssh": (tcp, "10.0.2.2", 22),
    "name-server-tcp": (tcp, "10.0.2.3", 53),
    "name-server": (dns, "10.0.2.3"),
    "smb": (tcp, "10.0.2.4", 445),
    "tftp": (tftp, "10.0.2.2"),
    "gateway-dns": (dns, "10.0.2.2"),
    "public-dns": (dns, "9.9.9.9"),
    "public-web": (tcp, "1.1.1.1", 443),
    "public-http": (tcp, "93.184.215.14", 80),
    "metadata": (tcp, "169.254.169.254", 80),
    "gateway-ping": (ping, "10.0.2.2"),
}
for name, (probe, *arguments) in PROBES.items():
    try:
        if probe(*arguments):
            print(name)
    except (OSError, ValueError):
        pass
if os.geteuid() == 0:
    subprocess.run(["ip", "route", "del", "default"], check=False)
"""


def probe(world: World, port: int, root: bool) -> set[str]:
    """Run the probes in the guest; return the names of those that were answered."""
    script = PROBE.replace("PORT", str(port))
    name = "/tmp/probe-root.py" if root else "/tmp/probe.py"
    world.sh(f"cat > {name} <<'END'\n{script}\nEND", root)
    return set(world.sh(f"python3 {name}", root).split())
