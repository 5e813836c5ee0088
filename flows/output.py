"""What every command does alike: one JSON document on standard output, people's output otherwise, exit codes."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec

import click

from day0.errors import Day0Error

P = ParamSpec("P")


class Answer:
    """What a command found: the JSON for scripts, how to show it to people, and the exit code."""

    def __init__(self, data: Any, show: Callable[[], None], exit_code: int = 0) -> None:
        self.data = data
        self.show = show
        self.exit_code = exit_code


def command(**attrs: Any) -> Callable[[Callable[P, Answer]], click.Command]:
    """A click command with `--json` and `--debug` whose function returns an `Answer`."""

    def decorate(function: Callable[P, Answer]) -> click.Command:
        @functools.wraps(function)
        def run(as_json: bool, debug: bool, /, *args: P.args, **kwargs: P.kwargs) -> None:
            sys.exit(_answer(functools.partial(function, *args, **kwargs), as_json, debug))

        def entry(**options: Any) -> None:
            run(options.pop("as_json"), options.pop("debug"), **options)  # type: ignore[call-arg]

        functools.update_wrapper(entry, function)
        wrapped = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(
            click.option("--debug", is_flag=True, help="Show the traceback of an error.")(entry)
        )
        made: click.Command = click.command(**attrs)(wrapped)
        return made

    return decorate


def _answer(function: Callable[[], Answer], as_json: bool, debug: bool) -> int:
    os.environ["DAY0_JSON"] = "1" if as_json else ""
    try:
        answer = function()
    except KeyboardInterrupt:
        print("day0: interrupted", file=sys.stderr)
        return 130
    except click.ClickException:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = isinstance(error, Day0Error)
        exit_code = error.exit_code if isinstance(error, Day0Error) else 1
        text = str(error) if known else f"internal error: {type(error).__name__}: {error} (--debug shows where)"
        print(f"day0: {text}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": text, "exit_code": exit_code}))
        return exit_code
    if as_json:
        print(json.dumps(answer.data, ensure_ascii=False))
    else:
        answer.show()
    return answer.exit_code
