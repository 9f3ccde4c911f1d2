"""Rows of the failure table that can come about in TensorFlow alone: ranks that work for a chief."""

from __future__ import annotations

from jupyter_dtrain.core.failures import AT_ONCE, EXIT_SEEN, LOST, OF_THE_OTHERS, Situation, after, by, span

SITUATIONS = (
    Situation(
        "worker-killed",
        "A worker of TensorFlow's chief is killed (`ParameterServerStrategy`).",
        EXIT_SEEN,
        (
            LOST,
            by(AT_ONCE, "the client says so in the chief's cell."),
            after(
                span("release_grace"), "the steward frees no rank: TensorFlow gives the worker's steps to the others."
            ),
        ),
        None,
        None,
        ("Rank {rank} was killed (SIGKILL)",),
        "The other ranks and the parameter servers keep their variables. All that the lost rank had reported is kept, "
        "too.",
        "dead",
        "dead",
        "tensorflow",
    ),
    Situation(
        "server-killed",
        "A parameter server of TensorFlow's chief is killed, and its variables are lost.",
        EXIT_SEEN,
        (LOST, by(span(5.0), "TensorFlow raises an error in the chief, whose loop ends with it.")),
        span(10.0),
        "error",
        ("UnavailableError",),
        OF_THE_OTHERS,
        "dead",
        "dead",
        "tensorflow",
    ),
)
