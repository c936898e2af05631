"""What tests install for themselves: with root rights or sudo without a password, else they say why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.servers import apt, chromium, postgres
from tests.support.servers.cache import NotAvailableError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH besides the system's tools; what its programs are called with goes to `calls`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("env", "sh", "true", "chmod"):
        (folder / tool).symlink_to(
            next(Path(place) / tool for place in ("/usr/bin", "/bin") if Path(place, tool).exists())
        )
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CAIRN_TEST_CACHE", str(tmp_path / "cache"))
    return folder


def add(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "{name} $@" >> {folder.parent}/calls\n{body}\n')
    program.chmod(0o755)


def calls(folder: Path) -> list[str]:
    return (folder.parent / "calls").read_text().splitlines()


def test_chromium_is_installed_where_it_is_missing(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    add(programs, "apt-get", f'case "$*" in *install*) ln -s /bin/sh {programs}/chromium;; esac')
    (programs / "ln").symlink_to("/bin/ln")
    assert chromium.chromium() == str(programs / "chromium")
    update, install = calls(programs)
    assert "update" in update
    assert install.endswith("install -y --no-install-recommends chromium")


def test_chromium_that_is_there_is_taken(programs: Path) -> None:
    add(programs, "google-chrome", "")
    assert chromium.chromium() == str(programs / "google-chrome")


def test_a_user_with_sudo_and_no_password_installs_as_root(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    add(programs, "sudo", 'shift; exec "$@"')
    add(programs, "apt-get", "")
    apt.install("something")
    assert [line.split()[0] for line in calls(programs)] == ["sudo", "sudo", "apt-get", "sudo", "apt-get"]
    assert calls(programs)[-1].endswith("something")


@pytest.mark.parametrize("wanted", [chromium.chromium, postgres._programs])
def test_without_root_rights_the_reason_is_given(
    wanted: object, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    add(programs, "sudo", "exit 1")
    add(programs, "apt-get", "")
    assert callable(wanted)
    with pytest.raises(NotAvailableError, match="with apt-get and root rights the tests would install it"):
        wanted()
    assert not any(line.startswith("apt-get") for line in calls(programs))


def test_a_package_that_cannot_be_installed_is_named_with_the_answer(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    add(programs, "apt-get", "echo 'E: no such package' >&2; exit 100")
    with pytest.raises(NotAvailableError, match="cannot install chromium: E: no such package"):
        chromium.chromium()
