"""Kernels of notebooks: this interpreter's, and one that can end in every way."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

PATIENCE = 30.0
"""Seconds that the death of a killed kernel may take."""


class ThisPython(KernelSpecManager):
    """Knows one kernel, under every name: the interpreter that runs the tests."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class Notebook:
    """A kernel in which cells run, and which can end in every way."""

    def __init__(self, env: dict[str, str]) -> None:
        self.manager = KernelManager(kernel_spec_manager=ThisPython())
        self.manager.start_kernel(env=os.environ | env)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """Run a cell that must end well; what it printed."""
        texts: list[str] = []

        def keep(message: dict) -> None:
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=60, output_hook=keep)

        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(texts)

    def kill(self) -> None:
        """SIGKILL to the kernel; returns once it runs no more, as a busy machine takes its time for that."""
        process = psutil.Process(self.manager.provisioner.pid)
        process.kill()
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, "the killed kernel still runs"
                time.sleep(0.01)

    def close(self) -> None:
        """End all that is left of it."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy(linger=0)
