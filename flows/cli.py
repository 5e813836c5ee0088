"""The `day0` command. A subcommand's module is imported only when that subcommand is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

#: Subcommand → what it does. Each lives in `flows/commands/<name>.py` as `command`, with _ for - in the name.
COMMANDS = {
    "adapt": "Bring a release up on a target: every stage in order.",
    "rerun": "Continue a run, or repeat it from a stage on.",
    "status": "What works where.",
    "show": "The whole record of a run.",
    "watch": "Start adapt for releases that newly appear.",
    "verify": "Check a model folder: sizes, digests, structure.",
    "profile": "Read a model from its config and tensor headers.",
    "plan": "Lay a model out over a target's devices.",
    "reshard": "Split a checkpoint for a layout.",
    "operators": "What a model calls, and whether the target has it.",
    "operator-lists": "Vendors' lists of operators: what there is, and refreshing one.",
    "kernels": "Kernels for what a target lacks.",
    "serve": "Start an engine on a model folder and leave it running.",
    "stop": "Stop an engine that `serve` started.",
    "smoke": "Compare a served model with the reference.",
    "bench": "Measure a served model.",
    "server": "The orchestrator that day0 keeps: status, start, stop.",
    "doctor": "What this machine has and lacks.",
}


class LazyGroup(click.Group):
    """Lists the subcommands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"flows.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="day0")
def cli() -> None:
    """Bring a newly released open-weight model up on an accelerator, with evidence for each claim."""


def main(argv: list[str] | None = None) -> Any:
    """Entry point of the `day0` command."""
    return cli(args=argv, prog_name="day0", standalone_mode=True)


if __name__ == "__main__":
    sys.exit(main())
