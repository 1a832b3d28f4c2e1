"""The store on a disk: a bounded directory of checksummed files that survives restarts.

DIR/ab/abcd....  one file per entry, named by its key; header, key, value. Modified time = when it expires, access
time = when it was last used, so that a start needs no more than a listing.

Writes happen behind the caller's back in one thread, in order; what waits for that thread is served from memory. A
file appears whole (written aside, then renamed). Nothing is synced: a file that a power cut tore fails its checksum
and is a miss.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from services.cache.store.base import Found, StoreStats
from services.cache.store.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

OVERHEAD_BYTES = 4096
"""What a file costs beside its content: header, the half-used last block, its inode."""
WAITING_MAX = 1024
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Values on their way to the disk; more are dropped, for a lost write costs a hit and nothing else."""
DRAFT = ".tmp"

_HEADER = struct.Struct("<4sHd16s")
_MAGIC = b"PSC1"


class _File(NamedTuple):
    ttl_s: float
    cost_bytes: int


class _Write(NamedTuple):
    key: bytes
    value: bytes | None
    """None = remove it."""
    expires: float


class DiskStore:
    """A `Store` in a directory of its own.

    Args:
        directory: made where it is missing; belongs to one process.
        bytes_max: bound on the sum of key, value and `overhead_bytes` over all files.
        clock: seconds since 1970.
    """

    name = "disk"

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        *,
        overhead_bytes: int = OVERHEAD_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._overhead_bytes = overhead_bytes
        self._clock = clock
        self._lru: Lru[_File] = Lru(bytes_max, clock, self._remove)
        self._waiting: dict[bytes, _Write] = {}
        self._wake = asyncio.Event()
        self._waiting_bytes = 0
        self._writer = ThreadPoolExecutor(1, "cache-disk-write")
        self._reader = ThreadPoolExecutor(2, "cache-disk-read")
        self._hits = self._misses = self._failures = 0
        self.up = True

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """See `Store`.

        Raises:
            OSError: the directory can't be used.
        """
        loop = asyncio.get_running_loop()
        for key, size, expires in await loop.run_in_executor(self._writer, _scan, self._directory):
            cost_bytes = size - _HEADER.size + self._overhead_bytes
            ttl_s = expires - self._clock()
            if ttl_s > 0 and self._overhead_bytes <= cost_bytes <= self._lru.maxsize:
                self._lru[key] = _File(ttl_s, cost_bytes)
            else:
                self._remove(key)
        tasks.create_task(self._write_all(), name="cache-disk")

    async def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        found = await self.lookup(key)
        return None if found is None else found.value

    async def lookup(self, key: bytes) -> Found | None:
        """The value with the rest of its lifetime."""
        file = self._lru.get(key)
        found = await self._read(key, file) if file is not None else None
        if found is None:
            self._misses += 1
        else:
            self._hits += 1
        return found

    async def _read(self, key: bytes, file: _File) -> Found | None:
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.value is not None:
            return Found(waiting.value, waiting.expires - self._clock())
        loop = asyncio.get_running_loop()
        now = self._clock()
        try:
            read = await loop.run_in_executor(self._reader, _read_file, self._path(key), key, now)
        except OSError as error:
            self._failed(error)
            read = None
        if read is not None and read[1] > now:
            self.up = True
            return Found(read[0], read[1] - now)
        if self._lru.get(key) is file:  # and not one that was put meanwhile
            del self._lru[key]
            self._remove(key)
        return None

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """See `Store`. True = on its way: a crash in the next moment loses it."""
        cost_bytes = len(key) + len(value) + self._overhead_bytes
        write = _Write(key, value, self._clock() + ttl_s)
        busy = len(self._waiting) >= WAITING_MAX or self._waiting_bytes + len(value) > WAITING_BYTES_MAX
        old = self._lru.pop(key, None)
        if busy or cost_bytes > self._lru.maxsize:
            self._failures += busy
            if old is not None:
                self._remove(key)
            return False
        self._lru[key] = _File(ttl_s, cost_bytes)
        self._queue(write)
        return True

    async def delete(self, key: bytes) -> bool:
        """See `Store`."""
        return self.forget(key)

    def forget(self, key: bytes) -> bool:
        """`delete`; the file goes when the writer comes to it."""
        if self._lru.pop(key, None) is None:
            return False
        self._remove(key)
        return True

    async def stats(self) -> StoreStats:
        """See `Store`."""
        self._lru.expire()
        return StoreStats(
            entries=len(self._lru),
            bytes=int(self._lru.currsize),
            bytes_max=int(self._lru.maxsize),
            hits=self._hits,
            misses=self._misses,
            evictions=self._lru.evictions,
            failures=self._failures,
        )

    async def close(self) -> None:
        """See `Store`: writes what still waits."""
        rest = list(self._waiting.values())
        loop = asyncio.get_running_loop()
        self._failures += await loop.run_in_executor(self._writer, self._apply, rest)
        self._waiting.clear()
        for pool in (self._reader, self._writer):
            await asyncio.to_thread(pool.shutdown)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._directory / name[:2] / name

    def _remove(self, key: bytes) -> None:
        """The file of `key` is to go. Never refused: there are no more of these than files."""
        self._queue(_Write(key, None, 0.0))

    def _queue(self, write: _Write) -> None:
        """An entry's last word is all that counts."""
        old = self._waiting.pop(write.key, None)
        self._waiting_bytes += len(write.value or b"") - len((old and old.value) or b"")
        self._waiting[write.key] = write
        self._wake.set()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes = list(self._waiting.values())
            self._failures += await loop.run_in_executor(self._writer, self._apply, writes)
            for write in writes:
                if self._waiting.get(write.key) is write:
                    del self._waiting[write.key]
                    self._waiting_bytes -= len(write.value or b"")

    def _apply(self, writes: list[_Write]) -> int:
        """Runs in the writer's thread; how many failed."""
        failed = 0
        for write in writes:
            try:
                _write_file(self._path(write.key), write, self._clock())
            except OSError as error:
                failed += 1
                self._failed(error, count=False)
        return failed

    def _failed(self, error: OSError, *, count: bool = True) -> None:
        self._failures += count
        if self.up:
            self.up = False
            log.warning("disk tier degraded: entries are lost", extra={"reason": str(error)})


def _checksum(key: bytes, expires: float, value: bytes) -> bytes:
    digest = blake2b(_HEADER.pack(_MAGIC, len(key), expires, bytes(16)), digest_size=16)
    digest.update(key)
    digest.update(value)
    return digest.digest()


def _write_file(path: Path, write: _Write, now: float) -> None:
    if write.value is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(DRAFT)
    try:
        with draft.open("wb") as handle:
            checksum = _checksum(write.key, write.expires, write.value)
            handle.write(_HEADER.pack(_MAGIC, len(write.key), write.expires, checksum))
            handle.write(write.key)
            handle.write(write.value)
        os.utime(draft, (now, write.expires))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        path.unlink(missing_ok=True)  # an older value must not answer for the new one
        raise


def _read_file(path: Path, key: bytes, now: float) -> tuple[bytes, float] | None:
    """Value and time of expiry; None when the file is gone or is not what was written."""
    try:
        data = path.read_bytes()
        if len(data) < _HEADER.size:
            return None
        magic, key_length, expires, checksum = _HEADER.unpack_from(data)
        start = _HEADER.size + key_length
        value = data[start:]
        if magic != _MAGIC or data[_HEADER.size : start] != key or _checksum(key, expires, value) != checksum:
            return None
        os.utime(path, (now, expires))
    except FileNotFoundError:
        return None
    return value, expires


def _scan(directory: Path) -> list[tuple[bytes, int, float]]:
    """Key, bytes and expiry of every file, the least recently used first; removes drafts and what is none of ours.

    Raises:
        OSError: the directory can't be used.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write to {directory}")
    found = []
    for shard in directory.iterdir():
        if len(shard.name) != 2 or not shard.is_dir():
            continue  # not ours: left alone
        for file in shard.iterdir():
            if file.suffix == DRAFT:
                file.unlink()
                continue
            try:
                key = bytes.fromhex(file.name)
            except ValueError:
                continue
            stat = file.stat()
            found.append((stat.st_atime, key, stat.st_size, stat.st_mtime))
    return [(key, size, expires) for _, key, size, expires in sorted(found)]
