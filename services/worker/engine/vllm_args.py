"""From our settings and vLLM's own flags to vLLM's engine arguments and requests' parameters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from vllm import SamplingParams
from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

from services.worker.engine.base import EngineStartError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from services.worker.engine.base import EngineRequest
    from services.worker.settings import WorkerSettings

_SEED_MASK = 2**63 - 1


def parse_flags(settings: WorkerSettings, flags: Sequence[str]) -> tuple[AsyncEngineArgs, dict[str, LoRARequest]]:
    """Engine arguments, and the adapters by served name.

    Model, revision, parallel sizes and scheduling policy are ours; `--lora-modules NAME=PATH ...` is read as in
    vLLM's server.

    Raises:
        EngineStartError: settings that vLLM can't work with.
        SystemExit: a flag that vLLM doesn't know; vLLM has written which.
    """
    parser = FlexibleArgumentParser(prog="python -m services.worker ... --")
    parser.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH")
    parser = AsyncEngineArgs.add_cli_args(parser)
    given = parser.parse_args(list(flags))
    loras = _adapters(given.lora_modules)
    given.model = settings.model
    given.served_model_name = [settings.served_name]
    given.tensor_parallel_size = settings.tensor_parallel_size
    given.pipeline_parallel_size = settings.pipeline_parallel_size
    given.scheduling_policy = "priority"
    given.disable_log_stats = True  # only vLLM's own log lines: the worker's listener is always called
    given.enable_lora = given.enable_lora or bool(loras)
    given.max_loras = max(given.max_loras or 1, len(loras), 1)
    if settings.revision:
        given.revision = given.tokenizer_revision = settings.revision
    if given.max_num_seqs is None:
        given.max_num_seqs = settings.max_sequences
    if given.structured_outputs_config == parser.get_default("structured_outputs_config"):
        # White space between JSON's tokens is legal without end, and small models write it until max_tokens.
        given.structured_outputs_config = StructuredOutputsConfig(backend="guidance", disable_any_whitespace=True)
    if current_platform.is_cpu():
        _fit_to_cpu(given, settings, parser)
    return AsyncEngineArgs.from_cli_args(given), loras


def _fit_to_cpu(given: argparse.Namespace, settings: WorkerSettings, parser: FlexibleArgumentParser) -> None:
    if settings.pipeline_parallel_size > 1:
        raise EngineStartError(
            "PENSTOCK_PIPELINE_PARALLEL_SIZE (--pipeline-parallel-size) is over 1: vLLM's CPU backend can't do that; "
            "use --tensor-parallel-size"
        )
    given.enforce_eager = True
    if given.dtype == parser.get_default("dtype"):
        given.dtype = "float32"  # bfloat16 is slower there and not batch-invariant


def _adapters(modules: Sequence[str]) -> dict[str, LoRARequest]:
    """NAME=PATH, or vLLM's JSON form {"name": ..., "path": ...}."""
    found: dict[str, LoRARequest] = {}
    for number, module in enumerate(modules, start=1):
        try:
            if module.startswith("{"):
                entry = json.loads(module)
                name, path = entry["name"], entry["path"]
            else:
                name, path = module.split("=", 1)
        except (ValueError, KeyError, TypeError) as error:
            raise EngineStartError(f"--lora-modules {module!r} is not NAME=PATH") from error
        if not name or not path or name in found:
            raise EngineStartError(f"--lora-modules {module!r}: name and path must be there, and the name once")
        found[name] = LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)
    return found


def sampling_params(request: EngineRequest) -> SamplingParams:
    """vLLM's parameters of one sequence. Zero stands for "not set" in top_p and repetition_penalty.

    Raises:
        ValueError: vLLM refuses a value, or the sequence can't be continued from produced tokens.
    """
    wanted = request.sampling
    _check_movable(request)
    return SamplingParams(
        max_tokens=wanted.max_tokens,
        min_tokens=wanted.min_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p or 1.0,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        presence_penalty=wanted.presence_penalty,
        frequency_penalty=wanted.frequency_penalty,
        repetition_penalty=wanted.repetition_penalty or 1.0,
        seed=_seed(request),
        logprobs=wanted.logprobs if wanted.HasField("logprobs") else None,
        logit_bias=dict(wanted.logit_bias) or None,
        stop_token_ids=list(wanted.stop_token_ids) or None,
        ignore_eos=wanted.ignore_eos,
        structured_outputs=_structured(request),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def _seed(request: EngineRequest) -> int | None:
    """Another one for each choice; a continued stream gets one derived from (seed, index): see DESIGN 4."""
    if not request.sampling.HasField("seed"):
        return None
    return (request.sampling.seed + request.choice + 0x9E3779B97F4A7C15 * request.first_index) & _SEED_MASK


def _structured(request: EngineRequest) -> StructuredOutputsParams | None:
    wanted = request.sampling
    if wanted.HasField("json_schema"):
        return StructuredOutputsParams(json=wanted.json_schema)
    return StructuredOutputsParams(json_object=True) if wanted.json_object else None


def _check_movable(request: EngineRequest) -> None:
    """vLLM counts penalties, and advances grammars, over the tokens that it produced itself."""
    if not request.first_index:
        return
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(request.sampling, name):
            raise ValueError(f"sampling.{name}: a stream with it can't be continued on another worker")
    structured = request.sampling.WhichOneof("structured")
    if structured:
        raise ValueError(f"sampling.{structured}: a stream with it can't be continued on another worker")
