"""The state directory."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from services.cli import state as module
from services.cli.errors import CliError
from services.cli.state import MeshState, ProcessState, StateDir
from services.common.tenants import Tenants

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    directory = StateDir(tmp_path / "state")
    directory.create()
    return directory


def test_the_first_start_makes_a_key_that_the_tenants_file_knows(state: StateDir) -> None:
    key = state.ensure_tenants()
    tenant = Tenants.load(state.tenants).find(key)
    assert tenant is not None
    assert tenant.id == "dev"
    assert key not in state.tenants.read_text()
    assert stat.S_IMODE((state.root / "api_key").stat().st_mode) == 0o600
    assert state.ensure_tenants() == key


def test_an_edited_tenants_file_is_kept(state: StateDir) -> None:
    key = state.ensure_tenants()
    edited = state.tenants.read_text().replace("id: dev", "id: team-a")
    state.tenants.write_text(edited)
    assert state.ensure_tenants() == key
    assert state.tenants.read_text() == edited


def test_a_key_that_nobody_holds_is_refused(state: StateDir) -> None:
    state.ensure_tenants()
    (state.root / "api_key").write_text("sk-penstock-other\n")
    with pytest.raises(CliError, match="no tenant with the key"):
        state.ensure_tenants()
    (state.root / "api_key").unlink()
    with pytest.raises(CliError, match="is missing"):
        state.ensure_tenants()


def test_a_broken_tenants_file_is_refused_by_field(state: StateDir) -> None:
    state.ensure_tenants()
    state.tenants.write_text("tenants: [{id: dev, key_hashes: [nonsense]}]")
    with pytest.raises(CliError, match=r"tenants\.0\.key_hashes\.0"):
        state.ensure_tenants()


def test_one_supervisor_at_a_time(state: StateDir) -> None:
    other = StateDir(state.root)
    assert (state.is_running(), state.supervisor_pid()) == (False, None)
    assert state.lock()
    assert not other.lock()
    assert other.is_running()
    assert other.supervisor_pid() is not None
    assert not other.wait_until_stopped(0.01)
    state.unlock()
    assert other.wait_until_stopped(10)
    assert other.lock()
    other.unlock()


def test_the_lock_of_a_dead_supervisor_is_free(state: StateDir) -> None:
    script = (
        "import pathlib, sys\nfrom services.cli.state import StateDir\n"
        "assert StateDir(pathlib.Path(sys.argv[1])).lock()\nimport os; os.kill(os.getpid(), 9)"
    )
    result = subprocess.run([sys.executable, "-c", script, str(state.root)], check=False, timeout=60)
    assert result.returncode == -9
    assert not state.is_running()
    assert state.lock()
    state.unlock()


def test_mesh_json_is_written_whole_and_read_back(state: StateDir) -> None:
    assert state.read_mesh() is None
    mesh = MeshState(
        pid=1, created=2.5, base_url="http://x", grpc_target="y", model="nano", engine="simulator",
        processes=(ProcessState(role="worker", name="worker-0", pid=7, address="a:1", health="serving", created=1.0),),
    )  # fmt: skip
    state.write_mesh(mesh)
    assert state.read_mesh() == mesh
    (state.root / "mesh.json").write_text('{"pid": ')
    assert state.read_mesh() is None
    state.remove_mesh()
    state.remove_mesh()
    assert [path.name for path in state.root.iterdir()] == ["logs"]


def test_logs_are_bounded_without_losing_the_end(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 100)
    path = state.log_path("worker-0")
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 90)
        state.bound_log("worker-0")
        assert path.stat().st_size == 90
        writer.write(b"b" * 90)
        state.bound_log("worker-0")
        writer.write(b"c")
        assert path.read_bytes() == b"c", "the writer goes on at the new end"
    assert state.logs.joinpath("worker-0.log.1").read_bytes() == b"a" * 10 + b"b" * 90


def test_the_tail_of_a_log_is_readable(state: StateDir) -> None:
    lines = [
        "plain " * 100,
        json.dumps(
            {"level": "ERROR", "logger": "x", "message": "broke", "code": 7, "exc_info": "Traceback\nValueError: no"}
        ),
        json.dumps([1, 2]),
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ]
    state.log_path("w").write_text("\n".join(["early"] * 50 + lines))
    tail = state.log_tail("w", 6)
    assert tail[1:5] == ["ERROR x: broke code=7", "Traceback", "ValueError: no", "[1, 2]"]
    assert len(tail[0]) == 300
    assert state.log_tail("nobody") == []
