"""Where the cache keeps its entries: the interface, a module per tier, and the tiers as one store."""

from services.cache.store.base import Found, Store, StoreStats
from services.cache.store.disk import DiskStore
from services.cache.store.link import Down, RedisLink
from services.cache.store.memory import MemoryStore
from services.cache.store.redis import RedisStore
from services.cache.store.tiered import TieredStore

__all__ = ["DiskStore", "Down", "Found", "MemoryStore", "RedisLink", "RedisStore", "Store", "StoreStats", "TieredStore"]
