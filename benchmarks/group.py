"""Runs a function in every process of a gloo group over the loopback address, one thread each."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, multiprocessing


def in_group(size: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what work(rank, *given) returns in every process, plain values or numpy arrays."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        address = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", address, rank=rank, world_size=size)
        try:
            found = work(rank, *given)
        except Exception as error:
            found = error
        queue.put((rank, found))
        distributed.destroy_process_group()

    started = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for process in started:
        process.start()
    results = dict(queue.get() for _ in started)
    for process in started:
        process.join()
    for found in results.values():
        if isinstance(found, Exception):
            raise found
    return [results[rank] for rank in range(size)]
