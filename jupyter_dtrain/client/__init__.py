"""One client's side of a world: what a :class:`~jupyter_dtrain.Session` is made of."""
