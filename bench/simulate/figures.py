"""What a run comes to: TTFT, hits, goodput, fairness; as JSON, as a table, as a plot."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench.machine import quantile, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bench.simulate.traces import Call
    from bench.simulate.world import Outcome

WINDOW_S = 10.0
BOUNDS = (512, 2_048)
CLASSES = {1: "interactive", 2: "standard", 3: "batch"}


def figures(calls: Sequence[Call], outcomes: Sequence[Outcome], objective_ms: float) -> dict[str, Any]:
    """Of one run. `goodput`: calls per second whose first token came within the objective."""
    pairs = list(zip(calls, outcomes, strict=True))
    seconds = max(outcome.end_s for outcome in outcomes)
    prompt, hit = sum(call.prompt for call in calls), sum(outcome.hit for outcome in outcomes)
    classes = {
        name: _of([pair for pair in pairs if pair[0].priority_class == number], seconds, objective_ms)
        for number, name in CLASSES.items()
        if any(call.priority_class == number for call in calls)
    }
    lengths = {
        name: _ttft([outcome for call, outcome in pairs if low < call.prompt <= high])
        for name, low, high in _pools()
        if any(low < call.prompt <= high for call in calls)
    }
    return {
        **_of(pairs, seconds, objective_ms),
        "hit_tokens": hit,
        "prompt_tokens": prompt,
        "hit_rate": round(hit / prompt, 4),
        "jain": jain_of_windows(pairs),
        "seconds": round(seconds, 1),
        "classes": classes,
        "ttft_ms_by_prompt_tokens": lengths,
    }


def jain(shares: Iterable[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 = equal, 1/n = one has all (Jain, Chiu and Hawe 1984)."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def jain_of_windows(pairs: Sequence[tuple[Call, Outcome]]) -> dict[str, float] | None:
    """Jain's index over the tokens of tenants that were backlogged all through a 10 s window; None without such."""
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)
    served: dict[tuple[str, int], int] = defaultdict(int)
    end = 0.0
    for call, outcome in pairs:
        first = call.at_s + outcome.ttft_s
        waits[call.tenant].append((call.at_s, first))
        served[call.tenant, int(first / WINDOW_S)] += call.prompt - outcome.hit + call.output
        end = max(end, first)
    if len(waits) < 2:
        return None
    backlogged = {tenant: _backlogged(spans, int(end / WINDOW_S) + 1) for tenant, spans in waits.items()}
    found = []
    for window in range(int(end / WINDOW_S)):
        tenants = [tenant for tenant, marks in backlogged.items() if marks[window] and marks[window + 1]]
        if len(tenants) >= 2:
            found.append(jain(served[tenant, window] for tenant in tenants))
    return {"mean": round(sum(found) / len(found), 4), "min": round(min(found), 4)} if found else None


def _backlogged(spans: Sequence[tuple[float, float]], windows: int) -> list[bool]:
    """Whether something waits at the start of each window."""
    steps = [0] * (windows + 2)
    for begin, end in spans:
        first, last = int(begin / WINDOW_S) + 1, int(end / WINDOW_S)
        if first <= last:
            steps[first] += 1
            steps[last + 1] -= 1
    marks, waiting = [], 0
    for step in steps[: windows + 1]:
        waiting += step
        marks.append(waiting > 0)
    return marks


def _of(pairs: Sequence[tuple[Call, Outcome]], seconds: float, objective_ms: float) -> dict[str, Any]:
    good = sum(outcome.ttft_s * 1e3 <= objective_ms for _, outcome in pairs)
    return {
        "requests": len(pairs),
        "ttft_ms": _ttft([outcome for _, outcome in pairs]),
        "goodput": round(good / seconds, 3),
        "output_tokens_per_s": round(sum(call.output for call, _ in pairs) / seconds, 1),
    }


def _ttft(outcomes: Sequence[Outcome]) -> dict[str, float]:
    values = [outcome.ttft_s * 1e3 for outcome in outcomes]
    return {
        "mean": round(sum(values) / len(values), 1),
        **{f"p{percent}": round(quantile(values, percent / 100), 1) for percent in (50, 90, 99)},
    }


def _pools() -> list[tuple[str, float, float]]:
    low, high = BOUNDS
    return [(f"<={low}", 0, low), (f"<={high}", low, high), (f">{high}", high, float("inf"))]


def show(runs: Sequence[Mapping[str, Any]]) -> None:
    """A table of all runs."""
    rows = []
    for run in runs:
        ttft, lengths = run["ttft_ms"], run["ttft_ms_by_prompt_tokens"]
        short = next(iter(lengths.values()))["p99"] if lengths else 0.0
        cells = [f"{ttft[key]:,.0f}" for key in ("mean", "p50", "p90", "p99")]
        fair = f"{run['jain']['mean']:.3f}" if run["jain"] else "-"
        share = f"{100 * run['hit_rate']:.1f}"
        rows.append((f"{run['load']:g}", run["policy"], *cells, f"{short:,.0f}", share, f"{run['goodput']:.2f}", fair))
    table(
        ("load", "policy", "TTFT ms mean", "p50", "p90", "p99", "p99 shortest", "hit %", "goodput/s", "Jain"),
        rows,
    )


def plot(runs: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Mean and p99 TTFT and the hit rate over load, a line per policy."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4))
    policies = list(dict.fromkeys(run["policy"] for run in runs))
    for policy in policies:
        mine = sorted((run for run in runs if run["policy"] == policy), key=lambda run: float(run["load"]))
        loads = [run["load"] for run in mine]
        for axis, values in zip(
            axes,
            (
                [run["ttft_ms"]["mean"] / 1e3 for run in mine],
                [run["ttft_ms"]["p99"] / 1e3 for run in mine],
                [100 * run["hit_rate"] for run in mine],
            ),
            strict=True,
        ):
            axis.plot(loads, values, marker="o", label=policy)
    for axis, name in zip(axes, ("mean TTFT, s", "p99 TTFT, s", "prompt tokens from cache, %"), strict=True):
        axis.set_xlabel("offered prefill work / capacity without cache")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    for axis in axes[:2]:
        axis.set_yscale("log")
    axes[0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
