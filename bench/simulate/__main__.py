"""Placement policies side by side in a simulated fleet.

    python -m bench.simulate --trace FILE --workers 8 --load 0.85,1.1,1.3 --policy prefix,penstock --json OUT

FILE is Mooncake's JSONL or Azure's CSV. Without one: --synthetic chats|agents|hot|mixed. `--load` is the offered
prefill work over what the workers could do with no cache hit at all, reached by stretching arrival times.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.machine import say
from bench.simulate.engine import Costs
from bench.simulate.figures import figures, plot, show
from bench.simulate.synthetic import SHAPES, generate
from bench.simulate.traces import TraceError, at_load, read
from bench.simulate.world import POLICIES, World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.traces import Call

WORKERS_MAX = 1_000


def _numbers(text: str) -> list[float]:
    values = [float(each) for each in text.split(",")]
    if not all(0.01 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError("loads are 0.01 to 100")
    return values


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    return names


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="Mooncake's JSONL or Azure's CSV")
    source.add_argument("--synthetic", choices=sorted(SHAPES), help="a generated trace")
    parser.add_argument("--requests", type=int, default=4_000, help="of a synthetic trace; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of a synthetic trace; default %(default)s")
    parser.add_argument("--workers", type=int, default=8, help=f"1 to {WORKERS_MAX}; default %(default)s")
    parser.add_argument("--load", type=_numbers, default=[0.85], help="one or more, comma-separated")
    parser.add_argument("--policy", type=_names, default=list(POLICIES), help=f"of {', '.join(POLICIES)}; default all")
    parser.add_argument("--objective-ms", type=float, default=2_000.0, help="TTFT for goodput; default %(default)s")
    parser.add_argument("--no-length-pools", action="store_true", help="penstock without its pools by prompt length")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--plot", type=Path, help="draw them there, a PNG")
    args = parser.parse_args(argv)
    if not 1 <= args.workers <= WORKERS_MAX or not 1 <= args.requests <= 1_000_000:
        parser.error(f"--workers is 1 to {WORKERS_MAX}, --requests 1 to 1,000,000")
    try:
        args.calls = read(args.trace) if args.trace else generate(args.synthetic, args.requests, args.seed)
    except (OSError, TraceError) as error:
        parser.error(str(error))
    return args


def simulate(
    calls: Sequence[Call],
    workers: int,
    loads: Sequence[float],
    policies: Sequence[str],
    objective_ms: float,
    pools: bool,
) -> list[dict[str, object]]:
    """A run per load and policy, said as they end."""
    costs, runs = Costs(), []
    for load in loads:
        stretched = at_load(calls, load, workers, costs.prefill_tokens_per_s)
        for policy in policies:
            config = {} if pools else {"length_bounds": ()}
            outcomes = World(stretched, workers, policy, costs, **config).run()
            runs.append(
                {"policy": policy, "load": load, "workers": workers, **figures(stretched, outcomes, objective_ms)}
            )
    return runs


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate, print, write."""
    args = _arguments(argv)
    name = args.trace.name if args.trace else f"{args.synthetic}, seed {args.seed}"
    say(f"{name}: {len(args.calls):,} requests, {args.workers} workers")
    runs = simulate(args.calls, args.workers, args.load, args.policy, args.objective_ms, not args.no_length_pools)
    show(runs)
    if args.json:
        args.json.write_text(json.dumps({"trace": name, "runs": runs}, indent=1) + "\n")
        say(f"wrote {args.json}")
    if args.plot:
        plot(runs, args.plot, f"{name}, {args.workers} workers")
        say(f"wrote {args.plot}")


if __name__ == "__main__":
    main()
