"""The `penstock` command. Each command imports what it needs when it is called, so `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Penstock: a serving mesh for open language models.",
)

StateDirOption = Annotated[
    Path, typer.Option("--state-dir", envvar="PENSTOCK_STATE_DIR", help="Where the mesh keeps key, tenants and logs.")
]
DEFAULT_STATE_DIR = Path(".penstock")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """See the help text of the app."""


@app.command()
def up(
    engine: Annotated[Literal["vllm", "sim"], typer.Option(help="vllm: a real model; sim: a simulator.")] = "vllm",
    model: Annotated[str | None, typer.Option(help="Directory or Hugging Face id [default: the bundled nano].")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers, each with GPUs of its own.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Gateways; gateway i listens on its ports + 2i.")] = 1,
    routers: Annotated[int, typer.Option(min=1, max=16, help="Routers, all but one on standby.")] = 1,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, max=64, help="GPUs per worker that share layers.")] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option(min=1, max=64, help="Pipeline stages per worker.")] = 1,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="OpenAI API of gateway 0; 0 = any free.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC API of gateway 0; 0 = any free.")] = 8001,
    redis: Annotated[
        str, typer.Option(envvar="PENSTOCK_REDIS", help="URL of a Redis to use [default: a private redis-server].")
    ] = "",
    embedded: Annotated[bool, typer.Option("--embedded", help="No Redis; the cache is in its process alone.")] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    start_timeout_s: Annotated[float, typer.Option(min=1, max=86400, help="Seconds to become ready in.")] = 1800.0,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is up and leave it running.")] = False,
    engine_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS...]", help="vLLM's own engine flags.")
    ] = None,
) -> None:
    """Start a mesh: Redis, cache, routers, workers, gateways."""
    from services.cli.options import UpOptions
    from services.cli.up import up as start

    extra = tuple(engine_args or ())
    if extra and not extra[0].startswith("-"):
        raise typer.BadParameter(f"unexpected argument {extra[0]!r}; vLLM's flags come after --")
    given: dict[str, Any] = {"model": model} if model is not None else {}
    options = UpOptions(
        engine=engine, workers=workers, gateways=gateways, routers=routers,
        tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size,
        http_port=http_port, grpc_port=grpc_port, state_dir=state_dir, start_timeout_s=start_timeout_s,
        redis=redis, embedded=embedded, engine_args=extra, **given,
    )  # fmt: skip
    raise typer.Exit(start(options, detach=detach))


@app.command()
def down(state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """Stop the mesh and wait until every process is gone."""
    from services.cli.down import down as stop

    raise typer.Exit(stop(state_dir))


@app.command()
def status(
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what runs."""
    from services.cli.status import status as show

    raise typer.Exit(show(state_dir, as_json=as_json))


@app.command()
def chat(
    text: Annotated[str | None, typer.Argument(help="Ask this and end; without it: a conversation.")] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    model: Annotated[str | None, typer.Option(help="A served model [default: the mesh's].")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0, help="0 = always the likeliest token.")] = None,
) -> None:
    """Talk to the model in the terminal."""
    from services.cli.chat import chat as talk

    given = {"max_tokens": max_tokens, "temperature": temperature}
    parameters = {key: value for key, value in given.items() if value is not None}
    raise typer.Exit(talk(state_dir, text, model=model, parameters=parameters))


def main() -> None:
    """Run the command line."""
    from services.cli.errors import CliError

    try:
        app()
    except CliError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
