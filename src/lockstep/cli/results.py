"""Prints the JSON values of commands that compute in workers, from the files of their folders."""

from lockstep.config.errors import PREFIX, ConfigError, errors_of
from lockstep.runs.files import MAX_UNPACKED_BYTES, print_result, read_json
from lockstep.runs.folder import RunFolder
from lockstep.system import json_output


def end_run(folder: RunFolder, code: int) -> None:
    """Print the state and the summary of a run, and exit with its code if that is not 0."""
    if json_output.is_reserved():
        print_result(
            {
                "path": str(folder.path),
                "state": folder.read_status().get("state"),
                "exit_code": code,
                "job": folder.read_job().get("id"),
                "summary": folder.read_summary(),
            }
        )
        _put_failure(folder)
    if code:
        raise SystemExit(code)


def end_task(folder: RunFolder) -> None:
    """Print what the workers of a command computed, which for an evaluation is its report."""
    if json_output.is_reserved():
        if result := read_json(folder.scores, MAX_UNPACKED_BYTES):
            print_result(result.get("report", result))
        _put_failure(folder)


def _put_failure(folder: RunFolder) -> None:
    if folder.failure.exists():
        failure = folder.failure.read_text("utf-8", "replace")
        if not failure.startswith(PREFIX):
            failure = folder.failure_cause()
        json_output.put_errors(ConfigError(*errors_of(failure)))
