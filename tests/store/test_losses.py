"""The losses of a stored run that lists show."""

from __future__ import annotations

from jupyter_dtrain.store.losses import newest


def test_the_loss_itself_comes_first_wherever_it_was_stored():
    """A busy rank may report a validation's before the training's."""
    rows = [(7, name, rank, 9, 0.5, 0.1) for rank in (0, 1) for name in ("val_loss", "lr", "loss (backward)", "loss")]

    assert [loss.name for loss in newest(rows)[7].losses] == ["loss", "val_loss"]
