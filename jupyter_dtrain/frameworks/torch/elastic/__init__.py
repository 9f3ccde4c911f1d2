"""torchft: its lighthouse, and defaults for its Manager; :mod:`.plugin` connects them to the rank."""
