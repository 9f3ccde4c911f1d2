"""DeepSpeed: its engines and trials of its settings; :mod:`.plugin` is where it meets the rank."""
