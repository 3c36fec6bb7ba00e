"""Work of one rank for which the others wait, and the errors of all ranks together."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from lockstep.config.errors import ConfigError, Error, config_error, errors_of
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.distributed.collectives import gather_objects, is_distributed

T = TypeVar("T")
HEARTBEAT_S = 5.0  # well below any strategy.timeout_s


def together(work: Callable[[], T]) -> T:
    """Return `work()` of this rank. Every rank must call it.

    The errors of all ranks become one ConfigError on all ranks. `work` runs in a thread while the
    main thread sends heartbeats, so that no waiting rank times out.
    """
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    while True:
        is_done, errors = bool(wait([future], HEARTBEAT_S).done), list[Error]()
        try:
            if is_done:
                future.result()
        except (FileNotFoundError, ValueError) as error:
            errors = errors_of(error)
        reports = gather_objects((is_done, socket.gethostname(), errors))
        if all(is_done for is_done, *_ in reports):
            break
    if any(errors for *_, errors in reports):
        has_nodes = len({node for _, node, _ in reports}) > 1
        raise ConfigError(
            *(
                rank_error.within(node) if has_nodes else rank_error
                for _, node, errors in reports
                for rank_error in errors
            )
        )
    return future.result()


def readable(read: Callable[[], T], remark: str = "") -> T:
    """Return `read()`, and turn its errors into a ConfigError.

    The errors of `read` name a setting or a file, and give a hint.
    """
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        from lockstep.system.tracebacks import located

        *earlier_errors, last_error = errors_of(error)
        message = located(str(last_error), error) + (f" ({remark})" if remark else "")
        raise ConfigError(
            *earlier_errors,
            Error(last_error.code, "", message) if message != str(last_error) else last_error,
        ) from error


def agree(config: Config, world_size: int) -> None:
    """Check that all ranks have the same configuration and world size.

    Raises ConfigError on all ranks.
    """
    if not is_distributed():
        return
    identity = (config_file.fingerprint(config), world_size)
    for rank, rank_identity in enumerate(gather_objects(identity)):
        if rank_identity != identity:
            raise config_error(
                "conflict",
                f"rank {rank}",
                f"has another configuration or world size, {rank_identity}, "
                f"than this process, {identity}",
                "start all processes with the same command and files",
            )
