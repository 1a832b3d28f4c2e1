"""`python -m services.cache`."""

from __future__ import annotations

import sys

from services.cache.app import CacheApp
from services.cache.settings import CacheSettings
from services.common import lifecycle, logs, settings


def main() -> None:
    """Run the cache service until SIGTERM."""
    config = settings.load(CacheSettings, sys.argv[1:], prog="penstock-cache")
    logs.configure(config.name or "cache", config.log_level)
    lifecycle.run(CacheApp(config), drain_s=config.drain_s, announce_to=config.announce)


if __name__ == "__main__":
    main()
