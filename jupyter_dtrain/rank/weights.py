"""Histograms of a model's parameters and of their gradients, while it trains: ``log_weights(model, every=100)``.

A framework says after each step of the optimizer that steps first, and copies a sample of each tensor on its device.

Under failure: what a histogram raises is said once in the cell, the training goes on, and that model shows no more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jupyter_dtrain.plugins.framework import Part

from .media import MediaLog
from .media_copies import Copies, sampled
from .user_text import words_of

TENSORS: Final = 64
"""Parameters of a model of which histograms are kept, at even distances among all."""
SAMPLE: Final = 1 << 16
"""Values of a tensor from which its histogram is made."""
BINS: Final = 64
_GROUPS: Final = {"parameter": "weights", "gradient": "gradients"}
"""The beginnings of the names, by the kind of part."""

LookFor = Callable[[str, Any, Mapping[str, Any]], Sequence[Part] | None]
"""The parts of a value of that name by the framework that knows it, among the user's names."""


class _Model:
    """A model whose weights are shown; it is held no longer than its user holds it."""

    def __init__(self, model: Any, every: int) -> None:
        try:
            self.get: Callable[[], Any] = weakref.ref(model)
        except TypeError:
            self.get = lambda: model
        self.every = every


class WeightLog:
    """The models of one rank whose weights are shown, by the user's names for them. Main thread only."""

    def __init__(self, parts_of: LookFor, media: MediaLog, say: Callable[[str], object]) -> None:
        self._parts_of = parts_of
        self._media = media
        self._say = say
        self._models: dict[str, _Model] = {}

    def place(self, name: str, model: Any, every: int) -> None:
        """Show the weights of ``model`` after every so many steps; never where that is 0.

        Raises :class:`ValueError` for what is no model of a framework.
        """
        if not every:
            self._models.pop(name, None)
            return
        if not self._of(name, model):
            raise ValueError(f"{type(model).__name__} is no model whose parameters are known here")
        self._models[name] = _Model(model, every)

    def stepped(self, number: int, step: int) -> None:
        """The optimizer has made step ``number`` of this cell, which its metrics call ``step``."""
        for name, one in list(self._models.items()):
            if number % one.every or not self._media.on:
                continue
            if (model := one.get()) is None:
                del self._models[name]
                continue
            try:
                for part in self._of(name, model):
                    self._log(f"{_GROUPS[part.kind]}/{name}.{part.name.removesuffix('.grad')}", part, step)
            except Exception as error:  # noqa: BLE001 — the user's training goes on
                del self._models[name]
                self._say(f"log_weights() shows no more of {name}: {words_of(error)}")

    def _of(self, name: str, model: Any) -> list[Part]:
        parts = self._parts_of(name, model, {}) or ()
        found = [[part for part in parts if part.kind == kind] for kind in _GROUPS]
        return [part for kind in found for part in kind[:: -(-len(kind) // TENSORS) or 1]]

    def _log(self, name: str, part: Part, step: int) -> None:
        facts = part.facts()
        if not facts.size:  # the ranks share this tensor, and this one has nothing of it
            return
        shape = facts.shape or ()

        def copy(room: int) -> Copies:
            return Copies([sampled(part, shape, SAMPLE, BINS, room)])

        self._media.add(name, step, copy)
