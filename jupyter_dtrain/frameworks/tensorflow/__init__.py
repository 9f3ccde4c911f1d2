"""TensorFlow: its cluster, strategies, losses and servers; :mod:`.plugin` connects them to the rank."""
