"""Processes forked from one that has imported torch: the import takes longer than what most ranks do after it."""

from __future__ import annotations

import multiprocessing
import os

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch.distributed"])


def process(target, *arguments) -> multiprocessing.Process:
    """Runs target(*arguments) in the environment of now; the process they are forked from has that of its start."""
    return context.Process(target=_run, args=(dict(os.environ), target, arguments), daemon=True)


def _run(environment: dict[str, str], target, arguments: tuple) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
