"""The simulated engine alone, without a worker around it: what of a worker's CPU is the simulator's own loop.

`python -m bench.sim_alone SEQUENCES STEP_MS TOKENS` runs the engine that `services.worker` would make, paced as there,
on as many sequences as one worker of `bench.token` has, and reads its steps and nothing else. It prints the CPU
microseconds of this process per token.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import uvloop
from penstock.v1 import engine_pb2

from bench import machine
from bench.processes import worker_flags
from services.common.settings import load
from services.worker import card
from services.worker.app import make_engine
from services.worker.engine.base import EngineRequest
from services.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from services.worker.engine.base import Engine

PROMPT_TOKENS = 24
MARGIN_STEPS = 4


def engine(step_ms: float) -> Engine:
    """As `python -m services.worker` makes it for `bench.token`."""
    flags = [part for name, value in worker_flags(step_ms).items() for part in (f"--{name}", str(value))]
    settings = load(WorkerSettings, flags, prog="python -m bench.sim_alone")
    return make_engine(settings, card.ModelSource(settings.model), ())


async def microseconds_per_token(sequences: int, step_ms: float, tokens: int) -> float:
    """CPU of this process per token between the first and the last steps."""
    sim = engine(step_ms)
    await sim.start()
    sampling = engine_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True)
    prompt = np.arange(PROMPT_TOKENS, dtype=np.uint32)
    sim.submit([EngineRequest(number, prompt, PROMPT_TOKENS, 0, sampling) for number in range(sequences)])
    me = [os.getpid()]
    produced, counted_from, before, result = 0, 0, 0.0, 0.0
    async with contextlib.aclosing(sim.steps()) as steps:
        async for step in steps:
            produced += len(step.tokens)
            if not counted_from and produced >= MARGIN_STEPS * sequences:
                counted_from, before = produced, machine.cpu_s(me)
            if produced >= (tokens - MARGIN_STEPS) * sequences:
                result = (machine.cpu_s(me) - before) / (produced - counted_from) * 1e6
                break
    await sim.stop()
    return result


if __name__ == "__main__":
    answer = uvloop.run(microseconds_per_token(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
    machine.say(f"{answer:.4f}")
