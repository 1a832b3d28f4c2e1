"""Which workers hold which prefix blocks: the index, promises of grants, the streams that feed it, its self-check."""
