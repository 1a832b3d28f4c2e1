"""The `penstock` command, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from services.cli.ports import is_free
from tests.e2e.harness import PENSTOCK, Mesh, assert_gone, penstock, run_penstock, start_mesh
from tests.redis_server import BINARY, needs_redis

if TYPE_CHECKING:
    from pathlib import Path


def ask(mesh: Mesh, *more: str) -> str:
    return penstock("chat", "Hello there", "--max-tokens", "12", "--state-dir", str(mesh.state_dir), *more)


def test_status_json_has_exactly_the_documented_shape(sim_mesh: Mesh) -> None:
    answer = json.loads(penstock("status", "--json", "--state-dir", str(sim_mesh.state_dir)))
    assert list(answer) == ["base_url", "grpc_target", "api_key", "ca_file", "processes"]
    assert answer["base_url"].startswith("http://127.0.0.1:")
    assert answer["api_key"].startswith("sk-penstock-")
    assert answer["ca_file"] is None
    names = [process["name"] for process in answer["processes"]]
    assert sorted(names) == [
        "cache-0", "gateway-0", "gateway-1", *(["redis-0"] if BINARY else []), "router-0", "router-1",
        "worker-0", "worker-1",
    ]  # fmt: skip
    for process in answer["processes"]:
        assert list(process) == ["role", "name", "pid", "address", "health"]
        assert process["name"].startswith(process["role"])
        assert psutil.pid_exists(process["pid"])
        assert process["health"] == "serving"
    gateways = [process["address"] for process in answer["processes"] if process["role"] == "gateway"]
    assert answer["base_url"] == f"http://{gateways[0]}"


def test_status_for_people_names_every_process(sim_mesh: Mesh) -> None:
    text = penstock("status", "--state-dir", str(sim_mesh.state_dir))
    assert all(process.name in text for process in sim_mesh.processes())
    assert f"{sim_mesh.base_url}/v1" in text
    assert "response cache: " + ("Redis " if BINARY else "embedded") in text


def test_chat_answers_one_question_and_says_how_fast(sim_mesh: Mesh) -> None:
    text = ask(sim_mesh)
    assert "TTFT" in text
    assert "12 tokens" in text


def test_chat_keeps_the_conversation_until_exit(sim_mesh: Mesh) -> None:
    result = subprocess.run(
        [str(PENSTOCK), "chat", "--max-tokens", "4", "--state-dir", str(sim_mesh.state_dir)],
        input="Hello\nAnd again\n/nonsense\n/exit\nnever sent\n",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.count("4 tokens") == 2
    assert "there is no /nonsense" in result.stdout


def test_chat_with_an_unknown_model_says_so(sim_mesh: Mesh) -> None:
    result = run_penstock("chat", "Hello", "--model", "nonesuch", "--state-dir", str(sim_mesh.state_dir))
    assert result.returncode == 1
    assert "nonesuch" in result.stderr


def test_a_second_up_says_where_the_first_one_is(sim_mesh: Mesh) -> None:
    for detach in ((), ("--detach",)):
        result = run_penstock("up", "--engine", "sim", "--state-dir", str(sim_mesh.state_dir), *detach)
        assert result.returncode == 1
        assert f"already running at {sim_mesh.base_url}" in result.stderr
    assert all(process.health == "serving" for process in sim_mesh.processes())


def test_down_where_nothing_runs_is_no_error(tmp_path: Path) -> None:
    assert "Nothing is running" in penstock("down", "--state-dir", str(tmp_path / "state"))
    result = run_penstock("status", "--json", "--state-dir", str(tmp_path / "state"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "nothing is running" in result.stderr


def test_the_key_is_private_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with start_mesh(state) as mesh:
        first = mesh.api_key
        assert stat.S_IMODE((state / "api_key").stat().st_mode) == 0o600
        assert first not in (state / "tenants.yaml").read_text()
        mesh.down()
        assert not (state / "mesh.json").exists()
    with start_mesh(state) as mesh:
        assert mesh.api_key == first
        assert "12 tokens" in ask(mesh)


def test_a_taken_port_is_named_with_its_flag_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flag, other in (("--http-port", "--grpc-port"), ("--grpc-port", "--http-port")):
            for detach in ((), ("--detach",)):
                result = run_penstock(
                    "up", "--engine", "sim", flag, str(port), other, "0", "--state-dir", str(tmp_path / "s"), *detach
                )
                assert result.returncode == 1
                assert f"port {port} is taken" in result.stderr
                assert flag in result.stderr
    assert not list((tmp_path / "s" / "logs").glob("gateway*"))


def test_gateways_listen_two_ports_apart(tmp_path: Path) -> None:
    base = _free_run_of_ports(4)
    flags = ("--gateways", "2", "--http-port", str(base), "--grpc-port", str(base + 1))
    with start_mesh(tmp_path / "state", *flags) as mesh:
        assert mesh.addresses("gateway") == [f"127.0.0.1:{base}", f"127.0.0.1:{base + 2}"]
        assert mesh.grpc_target == f"127.0.0.1:{base + 1}"


def _free_run_of_ports(count: int) -> int:
    """First of `count` neighbouring ports that are free now."""
    return next(
        first for first in range(15_000, 19_000, count) if all(is_free(first + offset) for offset in range(count))
    )


@pytest.mark.parametrize(
    "name", [pytest.param("redis-0", marks=needs_redis), "cache-0", "router-0", "worker-0", "gateway-0"]
)
def test_what_is_killed_comes_back_at_the_same_address(crash_mesh: Mesh, name: str) -> None:
    before = crash_mesh.process(name)
    pid = crash_mesh.kill(name)
    crash_mesh.wait_until_restarted(name, pid)
    assert crash_mesh.process(name).address == before.address
    crash_mesh.wait_until(lambda now: all(p.health == "serving" for p in now), "all serving")
    assert "12 tokens" in ask(crash_mesh)
    assert f"{name} was killed by SIGKILL, it starts again in" in crash_mesh.logs("supervisor")


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    with start_mesh(tmp_path / "state", "--workers", "2") as mesh:
        known = mesh.family()
        assert len(known) > 6
        os.kill(mesh.supervisor_pid, signal.SIGKILL)
        assert_gone(known, mesh.marker)
        result = run_penstock("status", "--state-dir", str(mesh.state_dir))
        assert result.returncode == 1
        assert "Nothing is running" in penstock("down", "--state-dir", str(mesh.state_dir))
    with start_mesh(tmp_path / "state") as again:
        assert "12 tokens" in ask(again)


def test_a_process_that_never_starts_ends_up_with_its_log(tmp_path: Path) -> None:
    model = tmp_path / "broken"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for detach in ((), ("--detach",)):
        result = run_penstock(
            "up", "--engine", "sim", "--model", str(model), "--http-port", "0", "--grpc-port", "0",
            "--state-dir", str(tmp_path / "state"), *detach,
        )  # fmt: skip
        assert result.returncode == 1
        assert "worker-0 ended with status 1, 3 times in a row" in result.stderr
        assert "tokenizer" in result.stderr, "the end of the worker's log"
        assert run_penstock("status", "--state-dir", str(tmp_path / "state")).returncode == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine", "sim", "--model", "./nowhere"), "there is no directory"),
        (("--engine", "sim", "--", "--max-model-len", "64"), "the simulator takes none"),
        (("--engine", "sim", "stray"), "unexpected argument"),
        (("--engine", "neither"), "neither"),
        (("--workers", "0"), "--workers"),
        (("--engine", "sim", "--redis", "redis://x", "--embedded"), "contradict"),
    ],
)
def test_wrong_flags_are_refused_by_name(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    result = run_penstock("up", "--state-dir", str(tmp_path / "state"), *flags)
    assert result.returncode in (1, 2)
    assert message in result.stderr


def test_interrupting_a_foreground_up_stops_everything(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [str(PENSTOCK), "up", "--engine", "sim", "--http-port", "0", "--grpc-port", "0", "--state-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        text = ""
        for line in process.stdout:
            text += line
            if "stop it (or Ctrl-C here)" in line:
                break
        known = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
    assert process.wait(timeout=60) == 0, text
    assert "Stopped." in text
    assert_gone(known, "none")


def test_embedded_starts_no_redis_and_says_so(tmp_path: Path) -> None:
    with start_mesh(tmp_path / "state", "--embedded") as mesh:
        assert not mesh.addresses("redis")
        assert "response cache: embedded (--embedded" in penstock("status", "--state-dir", str(mesh.state_dir))
        assert "12 tokens" in ask(mesh)
