"""The simulation: parsers, engine, figures, and policies beside each other on a small trace."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from bench.simulate.__main__ import main
from bench.simulate.engine import Costs, Worker
from bench.simulate.figures import figures, jain, jain_of_windows
from bench.simulate.synthetic import SHAPES, generate
from bench.simulate.traces import Call, TraceError, at_load, azure, mooncake, natural_load, read
from bench.simulate.world import POLICIES, Outcome, World

if TYPE_CHECKING:
    from pathlib import Path

MOONCAKE = [
    '{"timestamp": 0, "input_length": 1000, "output_length": 6, "hash_ids": [0, 1]}\n',
    "\n",
    '{"timestamp": 1500, "input_length": 600, "output_length": 4, "hash_ids": [0, 7], "tenant": "a", "class": 3}\n',
]
AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:17:03.9799600,4808,10\n"]


def test_mooncake_is_read_as_published() -> None:
    first, second = mooncake(MOONCAKE)
    assert first == Call(0.0, 1000, 6, (0, 1))
    assert second == Call(1.5, 600, 4, (0, 7), tenant="a", priority_class=3)


def test_azure_is_read_as_published() -> None:
    first, second = azure([*AZURE, "2023-11-16 18:17:04.2319600,3180,8\n"])
    assert (first.at_s, first.prompt, first.output, first.blocks) == (0.0, 4808, 10, ())
    assert second.at_s == pytest.approx(0.252)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "first line is empty"),
        ('{"timestamp": 0}\n', "line 1.*hash_ids"),
        (AZURE[0] + "yesterday,1,2\n", "line 2"),
        (AZURE[0] + "2023-11-16 18:17:03,-5,2\n", "line 2.*no count"),
        (AZURE[0], "no requests"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, detail: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=detail):
        read(path)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_seed_is_a_trace(shape: str) -> None:
    calls = generate(shape, 50, 3)
    assert calls == generate(shape, 50, 3) != generate(shape, 50, 4)
    assert [call.at_s for call in calls] == sorted(call.at_s for call in calls)
    assert all(len(call.blocks) == math.ceil(call.prompt / 512) for call in calls)


def test_load_is_reached_by_stretching_arrivals() -> None:
    calls = generate("chats", 100, 1)
    stretched = at_load(calls, 0.7, 4, 8_000.0)
    assert natural_load(stretched, 4, 8_000.0) == pytest.approx(0.7)
    assert [call.prompt for call in stretched] == [call.prompt for call in calls]


def test_a_worker_takes_the_time_that_its_costs_say() -> None:
    worker = Worker(0, Costs())
    worker.submit(0.0, 0, Call(0.0, 4096, 3, tuple(range(8))))
    ends = []
    while worker.due < math.inf:
        ends.append(worker.due)
        progress = worker.advance(worker.due)
    assert ends == pytest.approx([0.262, 0.524, 0.524 + 2 * 0.00635])
    assert [sequence.number for sequence in progress.ended] == [0]
    assert worker.matched(Call(0.0, 4096, 1, tuple(range(8)))) == 4080
    assert worker.matched(Call(0.0, 1300, 1, (0, 1, 99))) == 1024


def test_the_cache_of_a_worker_is_bounded_and_forgets_the_oldest() -> None:
    worker = Worker(0, Costs(kv_tokens=4096))
    for number in range(4):
        call = Call(0.0, 1024, 16, (2 * number, 2 * number + 1))
        worker.submit(worker.due if worker.due < math.inf else 0.0, number, call)
        while worker.due < math.inf:
            worker.advance(worker.due)
    assert worker.matched(Call(0.0, 1025, 1, (0, 1, 9))) == 512, "the end of a chain goes before its start"
    assert worker.matched(Call(0.0, 1025, 1, (6, 7, 9))) == 1024
    assert worker.free == worker.capacity
    assert set(worker.stored) == {0, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_is_served_once_and_the_engine_is_left_empty(policy: str) -> None:
    calls = at_load(generate("agents", 120, 5), 1.2, 3, 8_000.0)
    world = World(calls, 3, policy)
    outcomes = world.run()
    assert all(outcome.ttft_s > 0 and outcome.end_s >= call.at_s for call, outcome in zip(calls, outcomes, strict=True))
    assert all(0 <= outcome.hit < call.prompt for call, outcome in zip(calls, outcomes, strict=True))
    assert all(worker.free == worker.capacity and not worker.queued for worker in world.workers)


def test_the_scheduler_finds_prefixes_that_others_give_away() -> None:
    calls = at_load(generate("agents", 1_000, 7), 0.9, 8, 8_000.0)
    runs = {policy: figures(calls, World(calls, 8, policy).run(), 2_000.0) for policy in POLICIES}
    assert runs["penstock"]["hit_tokens"] > 1.2 * runs["round-robin"]["hit_tokens"]
    mean = {policy: run["ttft_ms"]["mean"] for policy, run in runs.items()}
    assert mean["penstock"] < mean["least-load"] < mean["round-robin"]
    assert mean["penstock"] < mean["prefix"]


def test_a_hot_prefix_melts_nobody() -> None:
    """All share the first blocks: by prefix alone few workers do everything."""
    calls = at_load(generate("hot", 400, 2), 1.2, 8, 8_000.0)
    mean = {}
    for policy in ("prefix", "penstock"):
        outcomes = World(calls, 8, policy).run()
        mean[policy] = sum(outcome.ttft_s for outcome in outcomes)
        if policy == "penstock":
            share = [sum(outcome.worker == number for outcome in outcomes) for number in range(8)]
            assert max(share) < 0.5 * len(calls)
    assert mean["penstock"] < mean["prefix"]


def test_short_prompts_find_a_worker_among_long_ones() -> None:
    calls = at_load(generate("mixed", 600, 1), 0.7, 8, 8_000.0)
    p99 = {}
    for bounds in ((), (512, 2048)):
        run = figures(calls, World(calls, 8, "penstock", length_bounds=bounds).run(), 2_000.0)
        p99[bounds] = run["ttft_ms_by_prompt_tokens"]["<=512"]["p99"]
    assert p99[512, 2048] < p99[()]


def test_fairness_counts_only_those_who_wait() -> None:
    assert jain([1, 1, 1]) == 1.0
    assert jain([1, 0]) == 0.5
    pairs = [(Call(0.0, 99, 1, tenant="a"), Outcome(ttft_s=25.0)) for _ in range(2)]
    assert jain_of_windows(pairs) is None
    pairs += [(Call(0.0, 99, 1, tenant="b"), Outcome(ttft_s=at)) for at in (15.0, 35.0)]
    pairs.append((Call(0.0, 99, 1, tenant="a"), Outcome(ttft_s=15.0)))
    assert jain_of_windows(pairs) == {"mean": 1.0, "min": 1.0}


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    main(["--synthetic", "chats", "--requests", "40", "--workers", "2", "--load", "0.5,1", "--policy",
          "prefix,penstock", "--json", str(out)])  # fmt: skip
    runs = json.loads(out.read_text())["runs"]
    assert [(run["policy"], run["load"]) for run in runs] == [
        ("prefix", 0.5), ("penstock", 0.5), ("prefix", 1.0), ("penstock", 1.0)
    ]  # fmt: skip
    assert set(runs[0]["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert runs[0]["prompt_tokens"] > runs[0]["hit_tokens"] > 0
    assert "penstock" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--synthetic", "chats", "--policy", "best"], ["--trace", "/nowhere"], []])
def test_bad_arguments_are_named(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
