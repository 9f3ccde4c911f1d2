"""Set-up for the tests of messages and spools."""

from __future__ import annotations

import contextlib
import resource

import pytest


@contextlib.contextmanager
def files_limited_to(limit):
    """Inside, no file of this process may grow past ``limit`` bytes: not pytest's own report either."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def file_limit():
    """``with file_limit(n):`` no file of this process may grow past n bytes."""
    return files_limited_to
