"""Errors that a person reads: one sentence that says what is wrong and what to do, and an exit code.

The exit codes are those of the command line: 1 a check failed, 2 wrong usage or unusable input,
3 inconclusive or evidence is missing, 4 a service that day0 needs is not there.
"""

from __future__ import annotations


class Day0Error(Exception):
    """An error whose message is fit for a person to read without a traceback."""

    exit_code = 1


class CheckFailed(Day0Error):
    """A check ran and found a fault."""


class StageTimeout(Day0Error):
    """A stage used up its time; its subprocesses and connections have been ended."""


class Cancelled(Day0Error):
    """The run was interrupted; its subprocesses and connections have been ended."""

    exit_code = 130


class InputError(Day0Error):
    """The input cannot be used: a missing file, a wrong option, a malformed config."""

    exit_code = 2


class EvidenceMissing(Day0Error):
    """Nothing could be concluded: the evidence that the answer needs is not there."""

    exit_code = 3


class Unavailable(Day0Error):
    """A service that day0 needs (hub, engine, Docker, database) is not there. Worth a retry."""

    exit_code = 4
