"""Runs a function in several processes of one gloo group over the loopback address."""

import pickle
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, multiprocessing

SECONDS = 60  # in which every process must answer


def in_processes(size: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what work(rank, *given) returns in every process of a group of some size.

    The processes are forked, so that nothing is imported again.
    """
    context, port = multiprocessing.get_context("fork"), free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    started = [
        context.Process(target=_run, args=(rank, size, port, pipe[1], work, given), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    for process in started:
        process.start()
    for _, sends in pipes:
        sends.close()
    results, end = [], time.monotonic() + 2 * SECONDS
    for receives, _ in pipes:
        try:
            answered = receives.poll(max(0.0, end - time.monotonic()))
            found = pickle.loads(receives.recv_bytes()) if answered else _Failed("no answer")
            results.append(found)
        except EOFError:
            results.append(None)
    for process in started:
        process.join(1.0 if any(isinstance(x, _Failed) for x in results) else None)
        process.kill()
    failed = [result.text for result in results if isinstance(result, _Failed)]
    if failed:  # where one fails, the others tell that it has ended
        raise AssertionError(min(failed, key=lambda text: "ProcessError" in text))
    return results


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class _Failed:
    def __init__(self, text: str) -> None:
        self.text = text


def _run(rank: int, size: int, port: int, sends: Any, work: Any, given: Any) -> None:
    torch.set_num_threads(1)
    try:
        distributed.init_process_group(
            "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
            timeout=timedelta(seconds=SECONDS),
        )  # fmt: skip
        distributed.barrier()  # all are connected before work may leave the group
        sends.send_bytes(pickle.dumps(work(rank, *given)))
    except BaseException:
        sends.send_bytes(pickle.dumps(_Failed(f"process {rank}:\n{traceback.format_exc()}")))
    finally:
        sends.close()
        if distributed.is_initialized():
            distributed.destroy_process_group()
