"""TensorFlow: its cluster, strategies, losses and servers; :mod:`.plugin` is where it meets the rank."""
