"""The words that all parts share: events, worlds, runs, metrics, errors. Nothing here imports another room."""
