"""PyTorch: process groups, losses, rpc, pipelines; :mod:`.plugin` is where it meets the rank."""
