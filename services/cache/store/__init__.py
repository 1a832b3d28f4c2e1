"""Where the cache keeps its entries: the interface, and its in-process implementation."""

from services.cache.store.base import Store, StoreStats
from services.cache.store.memory import MemoryStore

__all__ = ["MemoryStore", "Store", "StoreStats"]
