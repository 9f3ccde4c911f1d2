"""One client drives a world, and the lease decides how long the world lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.core.world import Client
from jupyter_dtrain.steward.lease import Lease
from tests.machines import Clock


@pytest.fixture
def clock():
    """A clock that begins at 100."""
    return Clock()


@pytest.fixture
def lease(clock):
    """A lease of ten seconds."""
    return Lease(10.0, clock)


def client(name):
    """A client in a process that lives: this one."""
    return Client(name, *own_process(), name)


def ended(name):
    """A client in a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Client(name, process.pid, 0.0, name)


def test_the_first_client_drives_and_the_next_observes(lease):
    """One that joins again is no new driver."""
    assert lease.driver is None
    assert not lease.is_driven
    assert lease.join(client("a"), take_over=False)
    assert not lease.join(client("a"), take_over=False)
    assert not lease.join(client("b"), take_over=False)

    assert lease.driver.id == "a"
    assert lease.is_driven


def test_a_client_takes_over_when_it_says_so(lease):
    """The one before observes."""
    lease.join(client("a"), take_over=False)

    assert lease.join(client("b"), take_over=True)
    assert lease.driver.id == "b"
    assert not lease.renew("a", auto=False)


def test_only_the_driver_does_what_is_the_driver_s(lease):
    """Neither a client before it nor an observer, nor anybody while there is none."""
    with pytest.raises(Refused, match="No notebook controls this world"):
        lease.check_driver("")
    lease.join(client("a"), take_over=False)
    lease.join(client("b"), take_over=False)
    lease.check_driver("a")
    lease.join(client("c"), take_over=True)
    lease.check_driver("c")

    for other in ("a", "b", "", "nobody"):
        with pytest.raises(Refused, match="only that client can do this"):
            lease.check_driver(other)


def test_a_client_that_left_is_followed_by_the_next(lease):
    """Or one whose process has ended; an observer that leaves changes nothing."""
    lease.join(client("a"), take_over=False)
    lease.leave("b")
    assert lease.is_driven
    lease.leave("a")
    assert not lease.is_driven
    assert lease.join(ended("b"), take_over=False)
    assert not lease.is_driven

    assert lease.join(client("c"), take_over=False)
    assert lease.driver.id == "c"


def test_only_the_driver_renews(lease, clock):
    """It says whether plain cells go to the ranks; the lease runs on for observers."""
    lease.join(client("a"), take_over=False)
    clock.now += 8
    assert lease.left == 2
    assert not lease.renew("b", auto=True)
    assert lease.left == 2
    assert lease.renew("a", auto=True)

    assert lease.left == 10
    assert lease.driver.auto


def test_a_lease_that_is_over_can_begin_again(lease, clock):
    """The lease begins anew when a world has come up at last, and when a client joins."""
    clock.now += 12
    assert lease.left == -2
    lease.begin_again()
    assert lease.left == 10
    clock.now += 12
    lease.join(client("a"), take_over=False)

    assert lease.left == 10
