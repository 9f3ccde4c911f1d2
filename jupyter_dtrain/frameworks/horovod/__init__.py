"""Horovod, and a stand-in for it: :mod:`.plugin` is where it meets the rank, :mod:`.shim` the stand-in."""

from jupyter_dtrain.frameworks.horovod.shim.install import install_shim

__all__ = ["install_shim"]
