"""Ctrl-C and SIGTERM that wait for the end of a chunk, so that the states of all chains are whole."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Stop:
    """While it is entered, the first Ctrl-C only sets ``asked``; the second is a KeyboardInterrupt.

    With ``terminate`` SIGTERM sets it too, and ``pass_on`` sends it on once everything is saved. Only the main
    thread gets signals; elsewhere this does nothing. A program that ignores a signal, or handles it, keeps doing so.
    """

    def __init__(self, terminate: bool):
        self.asked = self._terminated = False
        self._signals = [signal.SIGINT, signal.SIGTERM] if terminate else [signal.SIGINT]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in self._signals if threading.current_thread() is threading.main_thread() else []:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """Send a SIGTERM that was held back."""
        if self._terminated:
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self._terminated = True
        elif self.asked:
            raise KeyboardInterrupt
        self.asked = True
