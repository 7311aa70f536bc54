"""Processes in which torch is imported already: a server has done so, and forks itself for each.

To import torch takes most of the time of a short command. Here `python -m fne.cli.main ...` is a process of its own,
with a pid that can be killed, its own folder, environment and files, but it begins with torch and the toolkit imported.
Tests of the start itself, of what is imported and of the streams start the real command by `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]
NUMBER = struct.Struct("i")
BEFORE = (
    "torch", "fne.cli.arguments", "fne.run.train", "fne.problems.external", "fne.watch.tables", "fne.watch.tensorboard",
    "tensorboard.summary.writer.record_writer",
)  # fmt: skip
"""What the server imports; not `fne.cli.main`, of which `-m` would say that it is there already."""


class Process:
    """A process that a server has forked; what it prints is in `out()` and `err()` once it is over.

    Args:
        arguments: what follows `python`: `-m MODULE`, `-c CODE` or a script, and its arguments.
        cwd: folder to work in; that of the caller unless it is given.
        env: the whole environment; that of the caller unless it is given.
        text: standard input.
        blocks: most of 1024 bytes that a file may have, as `ulimit -f` sets it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        text: str = "",
        blocks: int | None = None,
    ) -> None:
        self.arguments = [*arguments]
        self.returncode: int | None = None
        self._streams = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self._streams[0].write(text.encode())
        self._streams[0].seek(0)
        self._told, tell = os.pipe()
        asked = {
            "arguments": self.arguments, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env),
            "blocks": blocks,
        }  # fmt: skip
        try:
            message = json.dumps(asked).encode()
            with _server() as server:
                handles = [*(stream.fileno() for stream in self._streams), tell]
                socket.send_fds(server, [NUMBER.pack(len(message))], handles)
                server.sendall(message)
        finally:
            os.close(tell)
        self.pid = self._read()

    def _read(self) -> int:
        data = os.read(self._told, NUMBER.size)
        assert len(data) == NUMBER.size, "the server of processes has ended"
        return int(NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        """Return the exit status, that of a signal below 0, or nothing while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._read())
            os.close(self._told)
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        """Return the exit status; after so many seconds the process is killed, which is an error."""
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            self.kill()
            raise TimeoutError(f"{self.arguments} took longer than {timeout} seconds: {self.err()}")
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def out(self) -> str:
        return self._text(1)

    def err(self) -> str:
        return self._text(2)

    def _text(self, stream: int) -> str:
        size = os.fstat(self._streams[stream].fileno()).st_size
        return os.pread(self._streams[stream].fileno(), size, 0).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self.wait()
        for stream in self._streams:
            stream.close()


def run(arguments: Sequence[str], *, check: bool = False, timeout: float = 120, **settings: Any) -> Any:
    """Run a process to its end, see `Process`, and return what `subprocess.run` does, of text."""
    with Process(arguments, **settings) as process:
        done = subprocess.CompletedProcess(process.arguments, process.wait(timeout), process.out(), process.err())
    if check:
        assert done.returncode == 0, done.stderr
    return done


_ASKED = threading.Lock()


@contextlib.contextmanager
def _server() -> Any:
    with _ASKED:
        yield _started(os.getpid())


@functools.cache
def _started(pid: int) -> socket.socket:
    """Start the server of this process, which ends with it: its end of the socket is closed then."""
    ours, its = socket.socketpair()
    with its:
        server = subprocess.Popen([sys.executable, __file__, str(its.fileno())], pass_fds=[its.fileno()], cwd=ROOT)

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# ------------------------------------------------------------------------------------------------ the server
def serve(asked: socket.socket) -> None:
    """Fork a process for each message, and another one between that waits for it and tells its status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: it ends when it is asked nothing more
    while True:
        size, handles, *_ = socket.recv_fds(asked, NUMBER.size, 4)
        if not size:
            break
        message = asked.recv(NUMBER.unpack(size)[0], socket.MSG_WAITALL)
        if os.fork() == 0:
            asked.close()
            pid = os.fork()
            if pid == 0:
                _become(handles, **json.loads(message))
            for handle in handles[:3]:
                os.close(handle)
            os.write(handles[3], NUMBER.pack(pid))
            os.write(handles[3], NUMBER.pack(os.waitpid(pid, 0)[1]))
            os._exit(0)
        for handle in handles:
            os.close(handle)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that are over
                pass
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass


def _become(handles: list[int], arguments: list[str], cwd: str, env: dict[str, str], blocks: int | None) -> None:
    """Do what `python` does with the arguments, and end."""
    status = 1
    try:
        for number, handle in enumerate(handles):
            os.dup2(handle, number) if number < 3 else os.close(handle)
        for handle in handles[:3]:
            os.close(handle)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.path[1:1] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
        if blocks is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * blocks, 1024 * blocks))
        status = _status_of(arguments)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


def _status_of(arguments: list[str]) -> int:
    first, *rest = arguments
    try:
        if first == "-m":
            sys.argv, sys.path[0] = rest, os.getcwd()
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
            module = type(sys)("__main__")
            sys.modules["__main__"] = module
            exec(compile(rest[0], "<string>", "exec"), module.__dict__)
        else:
            sys.argv, sys.path[0] = arguments, str(Path(first).parent)
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    for name in BEFORE:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
