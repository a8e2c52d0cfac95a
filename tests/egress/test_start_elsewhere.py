"""The proxy is started in the project as a rule, where the agent may put a file of any name."""

from pathlib import Path

import pytest

from tests.egress.world import start_proxy


def test_nothing_of_the_current_directory_is_run(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("json", "asyncio", "mitmproxy", "gitguardfs", "sitecustomize"):
        (project / f"{name}.py").write_text("open('taken-over', 'w')\n")
    monkeypatch.chdir(project)
    start_proxy(state).stop()
    assert not (project / "taken-over").exists()
