"""From facts to findings. Pure: the same facts give the same findings, and nothing is asked of any machine."""

from __future__ import annotations

from . import machines, networks, software, speed
from .scene import SEVERITIES, Chosen, Connection, Finding, Scene, Severity

__all__ = ["SEVERITIES", "Chosen", "Connection", "Finding", "Scene", "Severity", "judge"]


def judge(scene: Scene) -> list[Finding]:
    """All findings, the gravest first; one for each distinct cause."""
    found = [*machines.find(scene), *software.find(scene), *networks.find(scene), *speed.find(scene)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))
