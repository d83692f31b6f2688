"""Ctrl-C and SIGTERM end a command, wherever they come."""

# ruff: noqa: PT012 - the error comes from anywhere in the block

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mixwell.utils.signals import Interrupted, stoppable, telling


class Odd:
    """Is hit by a signal in its finaliser, where Python ignores errors."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["telling", "stoppable"])
def test_a_signal_in_a_finaliser_is_not_lost(kind: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    context = telling("do it again") if kind == "telling" else stoppable(Path("run"))
    with pytest.raises(Interrupted, match="stopped by SIGTERM; ") as caught, context:
        odd = Odd()
        del odd
        for _ in range(100):
            time.sleep(0.1)
    assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_cleaning_up_is_not_disturbed() -> None:
    cleaned = []
    with pytest.raises(Interrupted), telling("do it again"):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        finally:
            for _ in range(15):
                time.sleep(0.1)
            cleaned.append(True)
    assert cleaned


def test_a_second_signal_ends_the_cleaning_up() -> None:
    with pytest.raises(Interrupted), telling("do it again"):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not reached")


def test_nothing_is_sent_when_nothing_came() -> None:
    with telling("do it again"):
        time.sleep(1.2)
