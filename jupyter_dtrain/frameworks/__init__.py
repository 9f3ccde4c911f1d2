"""The supported frameworks, with a folder or a file for each. The core names none of them.

Each is a class derived from :class:`Framework`, found by the entry point group ``jupyter_dtrain.frameworks``.
"""

from __future__ import annotations

from jupyter_dtrain.plugins.framework import Framework

__all__ = ["Framework"]
