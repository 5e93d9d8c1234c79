"""Works that torch's Python can ask, where torch holds them in a wrapper of its own."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d


class _Question(threading.local):
    """Which of our Works is behind one of torch's holders: asked through the one method that a holder hands on."""

    asking = False
    answer: AskedWork | None = None


_question = _Question()


class AskedWork(c10d.Work):
    """A work that says who it is."""

    def get_future(self) -> torch.futures.Future:
        if _question.asking:
            _question.answer = self
            return torch.futures.Future()
        return self._make_future()

    def _make_future(self) -> torch.futures.Future:
        raise NotImplementedError


def ask_the_work_behind(name: str) -> None:
    """Lets torch's Work answer by ours where it holds one.

    torch wraps what a Backend made in Python returns, and the wrapper hands on only wait() and get_future(): it would say
    that no operation ever completes, which a program may wait for.
    """
    original = getattr(c10d.Work, name)

    def answer(work: c10d.Work) -> Any:
        _question.asking, _question.answer = True, None
        try:
            work.get_future()
        except RuntimeError:  # Works of other backends may have none
            pass
        finally:
            _question.asking = False
        behind, _question.answer = _question.answer, None
        return original(work) if behind is None else getattr(behind, name)()

    answer.__name__ = name
    setattr(c10d.Work, name, answer)
