"""What `penstock up --detach` starts: `python -m services.cli.daemon PIPE OPTIONS_JSON`."""

from __future__ import annotations

import sys

from services.cli.errors import CliError
from services.cli.options import UpOptions
from services.cli.report import Failed, PipeReporter
from services.cli.up import run_mesh


def main() -> int:
    """The supervisor, with the events of its start going into the pipe; the exit status."""
    report = PipeReporter(int(sys.argv[1]))
    try:
        return run_mesh(UpOptions.model_validate_json(sys.argv[2]), report)
    except CliError as error:
        report(Failed(message=str(error)))
        return 1


if __name__ == "__main__":
    sys.exit(main())
