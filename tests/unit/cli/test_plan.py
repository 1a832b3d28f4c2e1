"""From flags to processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from services.cli.errors import CliError
from services.cli.options import BUNDLED_MODEL, UpOptions
from services.cli.plan import Machine, Plan, ProcessSpec, make_plan, served_name
from services.cli.ports import INTERNAL_PORTS, Ports, choose_ports

CPU = Machine(gpus=(), cores=(0, 1), vllm="cpu")
GPUS = Machine(gpus=("0", "1", "2", "3"), cores=tuple(range(16)), vllm="gpu")
BARE = Machine(gpus=(), cores=(0, 1), vllm="absent")
PORTS = Ports(gateway_http=(8000, 8002), gateway_grpc=(8001, 8003), routers=(1, 2), workers=(3, 4), cache=5)


def plan(options: UpOptions, machine: Machine = CPU) -> Plan:
    ports = Ports(
        gateway_http=PORTS.gateway_http[: options.gateways],
        gateway_grpc=PORTS.gateway_grpc[: options.gateways],
        routers=PORTS.routers[: options.routers],
        workers=PORTS.workers[: options.workers],
        cache=5,
        redis=6,
    )
    return make_plan(options, machine, ports, Path("/state/tenants.yaml"))


def flags(spec: ProcessSpec) -> dict[str, str]:
    own = spec.argv[3 : spec.argv.index("--") if "--" in spec.argv else None]
    return dict(zip(own[::2], own[1::2], strict=True))


def named(mesh: Plan, name: str) -> ProcessSpec:
    return next(spec for spec in mesh.processes if spec.name == name)


def test_everybody_knows_whom_they_need() -> None:
    mesh = plan(UpOptions(engine="sim", workers=2, gateways=2, routers=2))
    assert [spec.name for spec in mesh.processes] == [
        "cache-0", "router-0", "router-1", "worker-0", "worker-1", "gateway-0", "gateway-1",
    ]  # fmt: skip
    routers = "127.0.0.1:1,127.0.0.1:2"
    assert flags(named(mesh, "worker-1"))["--routers"] == routers
    gateway = named(mesh, "gateway-1")
    assert gateway.address == "127.0.0.1:8002"
    given = flags(gateway)
    assert (given["--http-port"], given["--grpc-port"], given["--routers"]) == ("8002", "8003", routers)
    assert (given["--cache"], given["--tenants"]) == ("127.0.0.1:5", "/state/tenants.yaml")
    assert (mesh.base_url, mesh.grpc_target) == ("http://127.0.0.1:8000", "127.0.0.1:8001")
    assert (mesh.model, mesh.engine) == ("nano", "simulator")


def test_a_private_redis_where_there_is_one() -> None:
    machine = Machine(gpus=(), cores=(0, 1), vllm="cpu", redis_server="/bin/redis-server", redis_version="7.0.15")
    mesh = plan(UpOptions(engine="sim"), machine)
    assert [spec.name for spec in mesh.processes][:2] == ["redis-0", "cache-0"]
    spec = named(mesh, "redis-0")
    assert (spec.argv[0], spec.address) == ("/bin/redis-server", "127.0.0.1:6")
    given = dict(zip(spec.argv[1::2], spec.argv[2::2], strict=True))
    assert given["--dir"] == "/state/redis"
    assert (given["--bind"], given["--port"], given["--save"]) == ("127.0.0.1", "6", "")
    assert given["--maxmemory-policy"] == "allkeys-lru"
    assert named(mesh, "cache-0").env == {"PENSTOCK_REDIS": "redis://127.0.0.1:6/0"}
    assert mesh.cache == "Redis 7.0.15"


def test_a_redis_that_is_there_already_is_used_and_its_password_stays_secret() -> None:
    machine = Machine(gpus=(), cores=(0, 1), vllm="cpu", redis_server="/bin/redis-server", redis_version="7.0.15")
    mesh = plan(UpOptions(engine="sim", redis="redis://me:secret@db.example:6380/1"), machine)
    assert not [spec for spec in mesh.processes if spec.role == "redis"]
    cache = named(mesh, "cache-0")
    assert cache.env == {"PENSTOCK_REDIS": "redis://me:secret@db.example:6380/1"}
    assert not any("secret" in word for word in cache.argv)
    assert mesh.cache == "Redis at db.example:6380"


def test_without_redis_the_cache_is_embedded_and_says_why() -> None:
    assert plan(UpOptions(engine="sim")).cache.startswith("embedded (no redis-server here")
    machine = Machine(gpus=(), cores=(0, 1), vllm="cpu", redis_server="/bin/redis-server", redis_version="7.0.15")
    mesh = plan(UpOptions(engine="sim", embedded=True), machine)
    assert mesh.cache.startswith("embedded (--embedded")
    assert named(mesh, "cache-0").env == {"PENSTOCK_REDIS": ""}
    assert not [spec for spec in mesh.processes if spec.role == "redis"]
    with pytest.raises(CliError, match="contradict"):
        plan(UpOptions(engine="sim", embedded=True, redis="redis://x"), machine)


def test_workers_on_gpus_see_their_own_only() -> None:
    mesh = plan(UpOptions(workers=2, tensor_parallel_size=2, model="org/model"), GPUS)
    assert [named(mesh, f"worker-{i}").env for i in range(2)] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"},
    ]  # fmt: skip
    assert flags(named(mesh, "worker-0"))["--tensor-parallel-size"] == "2"
    assert flags(named(mesh, "worker-0"))["--served-model-name"] == "org/model"


def test_workers_on_the_cpu_are_bound_to_cores() -> None:
    mesh = plan(UpOptions(workers=2, model=str(BUNDLED_MODEL)))
    env = named(mesh, "worker-1").env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert env["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert mesh.notes == ()
    assert plan(UpOptions(workers=2, tensor_parallel_size=2)).notes


def test_engine_flags_go_to_the_worker_after_two_dashes() -> None:
    spec = named(plan(UpOptions(engine_args=("--quantization", "awq"))), "worker-0")
    assert spec.argv[-3:] == ("--", "--quantization", "awq")


@pytest.mark.parametrize(
    ("options", "machine", "message"),
    [
        (UpOptions(), BARE, r"vLLM is not installed.*scripts/setup\.sh --engine vllm"),
        (UpOptions(workers=2, tensor_parallel_size=4), GPUS, "need 8 GPUs, this machine has 4"),
        (UpOptions(pipeline_parallel_size=2), CPU, "no pipeline parallelism"),
        (UpOptions(), Machine((), (0, 1), "gpu"), "none is visible"),
        (UpOptions(engine="sim", engine_args=("--max-model-len", "9")), BARE, "the simulator takes none"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(options: UpOptions, machine: Machine, message: str) -> None:
    with pytest.raises(CliError, match=message):
        plan(options, machine)


def test_served_names(tmp_path: Path) -> None:
    model = tmp_path / "my-model"
    model.mkdir()
    with pytest.raises(CliError, match=r"no config\.json"):
        served_name(str(model))
    (model / "config.json").write_text("{}")
    assert served_name(str(model)) == "my-model"
    assert served_name(f"{model}/") == "my-model"
    assert served_name("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    for wrong in ("./nowhere", "/nowhere", "~/nowhere", "a/b/c", ""):
        with pytest.raises(CliError, match="no directory"):
            served_name(wrong)


def test_ports_are_distinct_and_out_of_the_way_of_outgoing_connections() -> None:
    ports = choose_ports(UpOptions(workers=8, routers=4, gateways=4, http_port=0, grpc_port=0))
    every = [*ports.gateway_http, *ports.gateway_grpc, *ports.routers, *ports.workers, ports.cache]
    assert len(set(every)) == len(every) == 21
    assert all(port in INTERNAL_PORTS for port in every)


def test_fixed_ports_that_cannot_be_had_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CliError, match=rf"port {port} is taken .* --grpc-port"):
            choose_ports(UpOptions(http_port=0, grpc_port=port))
    with pytest.raises(CliError, match="over 65535"):
        choose_ports(UpOptions(http_port=65_534, gateways=2, grpc_port=0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(CliError, match=f"port {port} is asked for twice"):
        choose_ports(UpOptions(http_port=port, grpc_port=port))
