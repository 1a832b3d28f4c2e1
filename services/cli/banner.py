"""What `penstock up` says when everything is up."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from services.cli.options import DEFAULT_STATE_DIR
from services.cli.state import StateDir

if TYPE_CHECKING:
    from services.cli.report import Ready


def ready_text(event: Ready, *, detached: bool) -> str:
    """URL, key, which part is real, snippets that work when pasted, and what to do next; rich markup."""
    mesh, key = event.mesh, event.api_key
    command, where = escape(command_name()), escape(state_flag(event.state_dir))
    lines = [
        "",
        f"[bold green]Penstock is up[/] after {event.seconds:.1f} s, serving [bold]{escape(mesh.model)}[/].",
        "",
        f"  OpenAI API   [bold]{mesh.base_url}/v1[/]",
        f"  gRPC         {mesh.grpc_target}",
        f"  API key      {key}",
        "",
        f"  [dim]model engine[/]     {escape(mesh.engine)}",
        f"  [dim]response cache[/]   {escape(mesh.cache)}",
        "  [dim]overflow queue[/]   none: a full mesh answers 429 with Retry-After",
        "  [dim]resume journal[/]   none: a stream ends with its connection",
        "",
        "[dim]# curl[/]",
        escape(curl(mesh.base_url, key, mesh.model)),
        "",
        "[dim]# Python: pip install openai[/]",
        escape(snippet(mesh.base_url, key, mesh.model)),
        "",
        "Next:",
        f"  [bold]{command} chat{where}[/]     talk to it",
        f"  [bold]{command} status{where}[/]   what runs",
        f"  [bold]{command} down{where}[/]     stop it" + ("" if detached else " (or Ctrl-C here)"),
        "",
    ]
    return "\n".join(lines)


def curl(base_url: str, key: str, model: str) -> str:
    """A curl line that streams an answer."""
    return (
        f"curl -N {base_url}/v1/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' "
        f"""-d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
    )


def snippet(base_url: str, key: str, model: str) -> str:
    """The same with openai-python."""
    return f"""from openai import OpenAI
client = OpenAI(base_url="{base_url}/v1", api_key="{key}")
for chunk in client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello"}}], stream=True
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)"""


def command_name() -> str:
    """How this command can be called from the current directory."""
    if shutil.which("penstock") is not None:
        return "penstock"
    return os.path.relpath(Path(sys.prefix) / "bin" / "penstock")


def state_flag(state_dir: Path) -> str:
    """` --state-dir DIR`, or nothing where that is the default."""
    default = StateDir(DEFAULT_STATE_DIR).root
    return "" if state_dir == default else f" --state-dir {state_dir}"
