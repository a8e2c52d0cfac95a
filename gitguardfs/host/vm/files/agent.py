#!/usr/bin/python3 -I
"""gitguard-agent: installs, prepares and starts the agent that this VM was given, as its user.

install       only installs it
prepare       installs it if it is not there, and writes settings that are not there
hello         the same, and says how it starts
run [ARGS]    the same as prepare, and starts it

All that it says goes to standard error: standard output is the agent's.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

CONFIG = "/etc/gitguard-vm/agent.json"
RULES = "/etc/gitguard-vm/AGENTS.md"
Config = dict[str, Any]
"""The content of CONFIG, as agents.py writes it."""
END = 20
"""Characters of a key by which Claude Code remembers that the user has allowed its use."""


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, file=sys.stderr, flush=True)


def is_installed(config: Config) -> bool:
    """Return whether the agent's program is there; install it if not."""
    command, steps = config["command"], config["steps"]
    if shutil.which(command):
        return True
    if not steps:
        say(f"gitguard: {command} is not installed, and its file names no packages")
        return False
    say(f"gitguard: {config['name']} is installed now, in this VM")
    words = ["vm-apps", "-y", "--only", *steps]
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if shutil.which(command):
        return True
    say(f"gitguard: {command} is not there; to try again: {' '.join(words)}")
    return False


def prepare(config: Config) -> None:
    """Write the settings that are not there, then run the agent's own lines."""
    home = os.path.expanduser("~")
    for path, text in config["files"].items():
        write_settings(os.path.join(home, path), filled(text, config["project"]))
    if config["rules"]:
        path = os.path.join(home, config["rules"])
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(RULES, path)
    if config["prepare"]:
        words = ["sh", "-c", config["prepare"]]
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)


def filled(text: str, project: str) -> str:
    """Return a text with the project's path, and with the ends of variables, put in."""

    def end_of(match: re.Match[str]) -> str:
        return quoted(os.environ.get(match[1], "")[-END:])

    text = text.replace("@PROJECT@", quoted(project))
    return re.sub("@END:([A-Za-z0-9_]+)@", end_of, text).lstrip("\n")


def quoted(text: str) -> str:
    """Return a text as it stands within the quotes of JSON and TOML."""
    return json.dumps(text)[1:-1]


def write_settings(path: str, text: str) -> None:
    """Write a file that is not there; of JSON, what is not in the file."""
    path = os.path.realpath(path)
    if os.path.lexists(path):
        try:
            with open(path) as file:
                theirs = json.load(file)
            new = merged(json.loads(text), theirs)
        except ValueError:
            return  # not JSON
        if new == theirs:
            return
        text = json.dumps(new, indent=2) + "\n"
    elif path.endswith(".json"):
        text = json.dumps(merged(json.loads(text), {}), indent=2) + "\n"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def merged(ours: Any, theirs: Any = None) -> Any:
    """Return their value, with what only ours has: entries of tables, and of lists if not empty."""
    if isinstance(ours, dict) and isinstance(theirs or {}, dict):
        theirs = theirs or {}
        return {**theirs, **{key: merged(value, theirs.get(key)) for key, value in ours.items()}}
    if isinstance(ours, list) and isinstance(theirs or [], list):
        theirs = theirs or []
        return [*theirs, *(one for one in ours if one and one not in theirs)]
    return ours if theirs is None else theirs


def hello(config: Config) -> None:
    """Say how the agent starts, and about its key."""
    name, command = config["name"], config["command"]
    say(f"{command} starts {config['about']}; on your machine: gitguard vm run {name}")
    keys = dict(zip(config["variables"], config["keys"], strict=True))
    if found := next((variable for variable in keys if os.environ.get(variable)), None):
        say(f"Its key, {found}, is a placeholder here, which the proxy replaces.")
    elif keys:
        first, *others = keys.values()
        which = f" ({' or '.join((first, *others))})" if others else ""
        say(f"It has no key{which}. On your machine: gitguard vm secret set --preset {first}")
        if config["login"]:
            say(f"Or log in here: {config['login']}")


def main(words: list[str]) -> int:
    """Do what the first word says; return the exit status."""
    with open(CONFIG) as file:
        config = json.load(file)
    programs = os.path.expanduser("~/.local/bin")
    os.environ["PATH"] = f"{programs}:{os.environ.get('PATH', os.defpath)}"
    if not is_installed(config):
        return 1
    if words[0] == "install":
        return 0
    try:
        prepare(config)
    except OSError as error:
        say(f"gitguard: {config['name']} lacks settings: {error}")
    if words[0] == "hello":
        hello(config)
    if words[0] == "run":
        os.execvp(config["command"], [config["command"], *words[1:]])  # noqa: S606
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
