"""Other programs' trackers get what the store has: W&B, MLflow, trackio, TensorBoard.

A process of its own sends (:mod:`.sender`, ``python -m jupyter_dtrain.trackers``), never a rank and never the steward's
loop: it reads the store, so it needs neither the ranks nor their world. One world has one such process for each target,
which the steward starts and starts again (:mod:`.starting`); :func:`.tracking.track` starts one for a stored run.

What is written when:

* ``tracked`` gets a row for a run as soon as the run has logged something, with the position ``{}``.
* The position (:class:`.state.TrackedState`) is written after each batch that the tracker has taken. A process that is
  killed in between sends the last batch again, and the tracker's module leaves out what had arrived, or writes the run
  anew from its beginning (W&B, TensorBoard).
* ``done`` is written once the run has ended, and the tracker has its end.

Under failure: a tracker that cannot be reached delays nothing. Its row keeps the reason in ``words``, which the world's
notebook shows once, and the process tries again, up to ten minutes after the world's end. What is left then goes on
when the next world starts.

A tracker is a class (:class:`.tracker.Tracker`) that a package declares in the entry point group
:data:`~.target.GROUP`. Nothing leaves that the store lacks: the trackers' own collection of variables, command lines,
host data, printed text and code is off.
"""
