"""Wrong settings stop the start and are named; vLLM's environment is only ever completed."""

from __future__ import annotations

import pytest

from services.common.settings import load
from services.worker.engine.vllm_env import cpu_ranges, environment
from services.worker.settings import WorkerSettings


def read(*argv: str) -> WorkerSettings:
    return load(WorkerSettings, ["--model", "m", *argv], prog="worker")


def test_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SIM_STEP_MS", "20")
    settings = read("--engine", "sim", "--routers", "a:1,b:2", "--name", "worker-3")
    assert (settings.sim_step_ms, settings.routers, settings.worker_id) == (20.0, ("a:1", "b:2"), "worker-3")
    assert (settings.served_name, read("--served-model-name", "nano").served_name) == ("m", "nano")
    assert settings.max_sequences == 256


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--engine", "tpu"], "PENSTOCK_ENGINE (--engine)"),
        (["--tensor-parallel-size", "0"], "PENSTOCK_TENSOR_PARALLEL_SIZE"),
        (["--max-sequences", "0"], "PENSTOCK_MAX_SEQUENCES"),
        (["--sim-step-ms", "-1"], "PENSTOCK_SIM_STEP_MS"),
        (["--port", "70000"], "PENSTOCK_PORT"),
        (["--model", ""], "PENSTOCK_MODEL (--model)"),
        (["--host", "0.0.0.0"], "PENSTOCK_ADVERTISE (--advertise)"),
    ],
)
def test_a_wrong_setting_is_named(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*argv)
    assert caught.value.code == 2
    assert named in capsys.readouterr().err


def test_vllms_environment_is_completed_not_overwritten() -> None:
    plain = environment({}, tensor_parallel_size=1, max_sequences=300, cpus=[0, 1], debug=False)
    assert plain["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert plain["VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"] == "300"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in plain
    two = environment(
        {"VLLM_CPU_KVCACHE_SPACE": "4"}, tensor_parallel_size=2, max_sequences=8, cpus=[0, 1], debug=False
    )
    assert "VLLM_CPU_KVCACHE_SPACE" not in two
    assert (two["VLLM_CPU_OMP_THREADS_BIND"], two["VLLM_CPU_NUM_OF_RESERVED_CPU"]) == ("0|1", "0")
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "4|5"}
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment(
        bound, tensor_parallel_size=2, max_sequences=8, cpus=[0, 1], debug=False
    )
    few = environment({}, tensor_parallel_size=2, max_sequences=8, cpus=[0], debug=False)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in few


def test_processors_are_shared_out_evenly() -> None:
    assert cpu_ranges([5, 0, 1, 4, 8], 2) == "0,1|4,5"
