"""The state directory: who runs, the key, the tenants file, the logs.

STATE/lock          held (flock) by the supervisor as long as it lives: that it is free means that nothing runs
STATE/mesh.json     what runs, rewritten whole on every change
STATE/api_key       the dev tenant's key, readable by its owner only
STATE/tenants.yaml  made once, with the tenant `dev`; yours to edit
STATE/redis/        where the private Redis runs; it writes nothing there
STATE/logs/         NAME.log, the one before in NAME.log.1
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from typing import IO, TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from services.cli.errors import CliError
from services.common.tenants import Tenants, TenantsError, hash_key, new_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOG_BYTES_MAX = 50 * 1024 * 1024
LOCK_TRIES, LOCK_RETRY_S = 4, 0.05
TAIL_BYTES = 64 * 1024
_USUAL = {"level", "logger", "message", "exc_info", "service", "time", "vllm_process_name"}


class ProcessState(BaseModel):
    """One process, as in `status --json`, and what finds it again."""

    model_config = ConfigDict(frozen=True)

    role: str
    name: str
    pid: int | None
    address: str | None
    health: str
    created: float | None = None
    """Start time in seconds since 1970 as the kernel tells it; pid and this are unique."""
    restarts: int = 0


class MeshState(BaseModel):
    """`mesh.json`."""

    model_config = ConfigDict(frozen=True)

    pid: int
    """The supervisor's."""
    created: float
    base_url: str
    grpc_target: str
    model: str
    engine: str
    cache: str = "embedded"
    """The response cache in words."""
    ca_file: str | None = None
    processes: tuple[ProcessState, ...] = ()


class StateDir:
    """Paths and files below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.logs = self.root / "logs"
        self.redis = self.root / "redis"
        self.tenants = self.root / "tenants.yaml"
        self._api_key = self.root / "api_key"
        self._mesh = self.root / "mesh.json"
        self._lock: IO[str] | None = None

    def create(self) -> None:
        """Make the directory.

        Raises:
            CliError: it can't be made.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
        except OSError as error:
            raise CliError(f"cannot use {self.root} as --state-dir: {error.strerror}") from error

    def lock(self) -> bool:
        """Take the lock for the life of this process; False when another supervisor holds it."""
        handle = (self.root / "lock").open("a", encoding="utf-8")
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_RETRY_S)  # a `status` holds it for microseconds while it looks
                continue
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            self._lock = handle
            return True
        handle.close()
        return False

    def unlock(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_running(self) -> bool:
        """Whether a supervisor holds the lock now."""
        try:
            handle = (self.root / "lock").open("r", encoding="utf-8")
        except FileNotFoundError:
            return False
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def supervisor_pid(self) -> int | None:
        """Pid of the supervisor that holds the lock; None when there is none."""
        if not self.is_running():
            return None
        text = (self.root / "lock").read_text(encoding="utf-8")
        return int(text) if text.isdigit() else None

    def wait_until_stopped(self, timeout_s: float) -> bool:
        """Wait until no supervisor holds the lock; False when one still does after `timeout_s`."""
        waiter = threading.Thread(target=self._wait_for_lock, daemon=True)
        waiter.start()
        waiter.join(timeout_s)
        return not waiter.is_alive()

    def _wait_for_lock(self) -> None:
        with (self.root / "lock").open("r", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)

    def read_mesh(self) -> MeshState | None:
        """The last mesh.json, whether its supervisor lives or not; None when there is none that can be read."""
        try:
            return MeshState.model_validate_json(self._mesh.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None

    def write_mesh(self, state: MeshState) -> None:
        """Replace mesh.json."""
        _write(self._mesh, state.model_dump_json(indent=1), mode=0o600)

    def remove_mesh(self) -> None:
        """Nothing runs any more."""
        self._mesh.unlink(missing_ok=True)

    def api_key(self) -> str | None:
        """The dev tenant's key; None when there is none."""
        try:
            return self._api_key.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def ensure_tenants(self) -> str:
        """The key, after making tenants file and key where they are missing.

        Raises:
            CliError: the tenants file can't be used, or doesn't know the key.
        """
        key = self.api_key()
        if key is None or not self.tenants.exists():
            if self.tenants.exists():
                raise CliError(
                    f"{self._api_key} is missing, and {self.tenants} holds only hashes of keys. Write a key that it "
                    "knows into the first, or remove the second to have both made anew."
                )
            key = key or new_key()
            _write(self._api_key, key + "\n", mode=0o600)
            _write(self.tenants, _dev_tenants(key), mode=0o600)
        try:
            tenants = Tenants.load(self.tenants)
        except TenantsError as error:
            raise CliError(str(error)) from error
        if tenants.find(key) is None:
            raise CliError(f"{self.tenants} has no tenant with the key in {self._api_key} ({hash_key(key)})")
        return key

    def log_path(self, name: str) -> Path:
        """Where a process writes."""
        return self.logs / f"{name}.log"

    def bound_log(self, name: str) -> None:
        """Move the log aside when it is too long. Its writer appends, so it may be running."""
        path = self.log_path(name)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.with_suffix(".log.1").write_bytes(path.read_bytes()[-LOG_BYTES_MAX:])
            os.truncate(path, 0)

    def log_tail(self, name: str, lines: int = 15) -> list[str]:
        """The last lines of a log, JSON ones made readable."""
        try:
            with self.log_path(name).open("rb") as handle:
                handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = handle.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        readable = [line for raw in text.splitlines() for line in _readable(raw)]
        return [line[:300] for line in readable[-lines:]]


def _readable(line: str) -> list[str]:
    try:
        record: Any = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(record, dict) or "message" not in record:
        return [line]
    trace = str(record.get("exc_info", "")).splitlines()
    details = "".join(f" {key}={value}" for key, value in record.items() if key not in _USUAL)
    return [f"{record.get('level', '')} {record.get('logger', '')}: {record['message']}{details}", *trace]


def _dev_tenants(key: str) -> str:
    file: Mapping[str, Any] = {"tenants": [{"id": "dev", "key_hashes": [hash_key(key)]}]}
    return "# Who may use this mesh. Keys stand here as SHA-256 hashes only.\n" + yaml.safe_dump(file, sort_keys=False)


def _write(path: Path, text: str, *, mode: int) -> None:
    """Whole or not at all, and never readable by others in between."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    draft.replace(path)
