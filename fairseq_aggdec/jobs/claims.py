"""Who works on what in a folder that machines share, without a server and without locks.

A claim is a file that only one process can make (``O_CREAT | O_EXCL``, which network file systems keep too) and that
its owner touches as long as it lives. A claim whose owner is dead is taken over: at once where that can be seen, on the
same machine; else when it has not been touched for a *lease* by the watcher's own clock: clocks need not agree. To take
over is to make the file of the next generation, ``NAME.1.claim`` after ``NAME.0.claim``, which one process can do too.

A process that stands still for longer than a lease (a suspended machine, ``SIGSTOP``) loses its claim unknowingly. So
nothing that is right depends on claims. What is put in place was written whole under a name of this attempt's own,
and is the same whoever wrote it; or the next holder has first taken away what the last one could still put in place.
:meth:`Claims.holds` says whether a claim was lost, but may be late.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_aggdec.jobs.ending import apart, together

LEASE = 180.0  # seconds; network file systems may show a touch a minute late
BEATS = 6  # touches per lease
POLL = 0.5  # seconds between two looks at what others have claimed
DEAD_STATES = "ZX"  # of a process in Linux: nobody has asked for its end yet


class LostError(OSError):
    """Another process has taken over a claim of this one."""


class Claims:
    """Claims in a folder.

    Args:
        folder: exists.
        lease: seconds of silence after which an owner on another machine counts as dead; the same for all workers.
    """

    def __init__(self, folder: Path, lease: float = LEASE):
        self.folder, self.lease = folder, lease
        # By file: inode and time (ns) of the last touch, and since when that is known, by our own clock.
        self.watched: dict[str, tuple[tuple[int, int], float]] = {}
        self.held: dict[str, tuple[int, int]] = {}  # name -> descriptor and generation

    @contextmanager
    def take(self, name: str) -> Iterator[bool]:
        """Holds a claim, if nobody else does: the value is whether it is held. It is given back at the end."""
        with together():
            held = self._claim(name)
            if held is None:
                with apart():
                    yield False
                return
            self.held[name] = held
            over = threading.Event()
            beating = threading.Thread(target=self._beat, args=(held[0], over), daemon=True)
            beating.start()
            try:
                with apart():
                    yield True
            finally:
                over.set()
                beating.join()
                self._give_back(name)

    def holds(self, name: str) -> bool:
        """Tells whether nobody has taken over a claim of this process, which then stood still for longer than a
        lease."""
        descriptor, generation = self.held[name]
        try:
            removed = os.fstat(descriptor).st_nlink == 0
        except OSError:  # a network file system may say it so
            removed = True
        return not removed and not os.path.lexists(self._path(name, generation + 1))

    def holder(self, name: str) -> str:
        """Who holds a claim, for messages: the machine, as far as that is told, and the file."""
        path = max(self.folder.glob(f"{name}.*.claim"), default=self._path(name, 0))
        try:
            host = json.loads(path.read_bytes())["host"]
        except (OSError, ValueError, TypeError, KeyError):
            host = "another machine"
        return f"on {host}, see {path}"

    def settle(
        self,
        name: str,
        done: Callable[[], bool],
        make: Callable[[], object],
        wait: Callable[[], object],
    ) -> bool:
        """Has one process make what all need, and waits until it is there.

        A process that loses the claim meanwhile fails where files of its own are gone, and looks again.

        Args:
            done: whether it is there.
            make: takes away what earlier holders could still put in place, then makes it unless it is there.
            wait: is called if somebody else makes it.

        Returns:
            Whether this process has made it.
        """
        while True:
            with self.turn(name, done, wait) as mine:
                if not mine:
                    return False
                try:
                    make()
                    return True
                except Exception:
                    if self.holds(name):
                        raise

    @contextmanager
    def turn(
        self, name: str, done: Callable[[], bool], wait: Callable[[], object]
    ) -> Iterator[bool]:
        """Takes a claim, as :meth:`take` does, as soon as nobody else holds it; not held where what it is for was
        ``done`` meanwhile.

        Args:
            wait: is called once if somebody else holds it.
        """
        told = False
        while True:
            with self.take(name) as mine:
                if mine or done():
                    yield mine
                    return
            if not told:
                wait()
                told = True
            time.sleep(POLL)

    def _claim(self, name: str) -> tuple[int, int] | None:
        """A new claim's descriptor and generation; None: somebody holds it."""
        generation, dead = 0, None
        while (descriptor := _make(self._path(name, generation))) is None:
            path = self._path(name, generation)
            dead = _identity(path)
            if dead is None or not self._is_dead(path):
                return None
            generation += 1
        if generation and _identity(self._path(name, generation - 1)) != dead:
            # It was given back by whoever had taken it over, and may have a new holder.
            os.close(descriptor)
            self._path(name, generation).unlink(missing_ok=True)
            return None
        return descriptor, generation

    def _give_back(self, name: str) -> None:
        """Removes a claim and the dead ones before it, unless it was lost: then they are the next holder's."""
        descriptor, generation = self.held[name]
        if self.holds(name):
            # The dead ones last, so that a kill leaves no gap below a claim; and not below one that came just now.
            for old in range(generation, -1, -1):
                if not os.path.lexists(self._path(name, old + 1)):
                    self._path(name, old).unlink(missing_ok=True)
        del self.held[name]
        os.close(descriptor)

    def _path(self, name: str, generation: int) -> Path:
        return self.folder / f"{name}.{generation}.claim"

    def _beat(self, descriptor: int, over: threading.Event) -> None:
        while not over.wait(self.lease / BEATS):
            with suppress(OSError):
                os.utime(descriptor)

    def _is_dead(self, path: Path) -> bool:
        """Tells whether nobody will touch a claim again, as far as is known by now."""
        try:
            found, text = path.stat(), path.read_bytes()
        except FileNotFoundError:  # given back just now: next time
            return False
        # Half written: its owner lives, or falls silent.
        with suppress(ValueError, TypeError, KeyError):
            if gone(json.loads(text)):
                return True
        touched, now = (found.st_ino, found.st_mtime_ns), time.monotonic()
        before, since = self.watched.get(path.name, (None, now))
        if touched != before:
            self.watched[path.name] = touched, now
            return False
        return now - since > self.lease


def _make(path: Path) -> int | None:
    """A descriptor of the new claim; None: there is one already."""
    # Made before the file: a claim without an owner, who was killed, holds others up for a lease.
    text = json.dumps(owner()).encode()
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None
    try:
        os.write(descriptor, text)
    except OSError:  # a full disk
        os.close(descriptor)
        path.unlink()
        raise
    return descriptor


def _identity(path: Path) -> tuple[int, int] | None:
    """Identity that tells a file from a later one of the same name; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def owner() -> dict[str, object]:
    """This process, as a claim names it."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "place": place(), "pid": pid, "started": started(pid)}


def gone(owner: dict[str, object]) -> bool:
    """Tells whether a process has ended; False where that cannot be seen from here."""
    if owner["place"] is None or owner["place"] != place():
        return False
    return started(int(str(owner["pid"]))) != owner["started"]


def place() -> str | None:
    """Place in which process numbers mean the same: one start of one machine, one container; None where it is not
    told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def started(pid: int) -> int | None:
    """When a process began, in ticks since the start of the machine; None: there is none, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in DEAD_STATES else int(fields[18])
