"""What all handles share: closing, finalisers, and who may call when.

A `Handle` owns one object of the library through a `State`, which its finaliser keeps. Every call
of the library is made inside `with handle._state as raw:`, so that

  - a closed handle raises Closed;
  - closing waits for nobody: a handle that another thread is in raises ConcurrentUse;
  - handles that are for one thread at a time raise ConcurrentUse for the second;
  - what a read callback raised becomes the cause of the CallbackError that the call ends in;
  - finalisers wait that come up between the call and the reading of its error's sentence;
  - calls from callbacks, which the library forbids, and from a forked child raise StateError.

Children hold their parents, and are finalised before them: also at interpreter exit, and when
a whole cycle of handles is collected at once. Creating and destroying what lives on a device is
done by one thread at a time, and not while a step is open: a device's `locks` see to the former,
`steps` to the latter.

An exception of Python's own, such as an interrupt, may come up in a call that has done its work.
What was then created is given back, and what may be gone is never destroyed a second time.
"""
import atexit
import collections
import contextlib
import ctypes
import os
import threading
import weakref
from typing import (Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple,
                    TypeVar)

from . import dlpack, errors

_H = TypeVar("_H", bound="Handle")

_here = threading.local()  # .callback and .calls: how many of each this thread is in
_postponed: Dict["State", None] = {}  # finalisers that came up where they could not run
_interrupted: List[Any] = []  # what closings that were interrupted may have left in use
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class State:
    """One object of the library: all that its finaliser needs, and no more."""

    __slots__ = ("kind", "library", "destroy", "raw", "parents", "children", "exclusive", "calls",
                 "exports", "steps", "opened", "failures", "keep", "locks", "lock", "forks",
                 "frees_always")

    def __init__(self, kind: str, library: Any, destroy: Callable[[int], Any], raw: Optional[int],
                 parents: Iterable["State"] = (), exclusive: bool = False,
                 keep: Tuple[Any, ...] = (), frees_always: bool = False) -> None:
        self.kind, self.library, self.destroy = kind, library, destroy
        self.raw = raw  # the library's pointer; None once it is closed
        self.parents = tuple(parents)
        self.children: Set[State] = set()
        self.exclusive = exclusive
        self.calls = 0  # calls under way
        self.exports: Set[Any] = set()  # arrays that show memory which goes with this object
        self.steps = 0  # steps open on it
        self.opened = 0  # steps that it has opened, on its parents
        self.failures: Deque[BaseException] = collections.deque(maxlen=16)
        self.keep = keep  # what the library points to as long as the object lives
        self.frees_always = frees_always  # destroying frees it even when it reports a failure
        self.lock = threading.RLock()  # a finaliser may come up anywhere, inside itself as well
        self.locks: Tuple[Any, ...] = tuple(
            sorted({lock for each in self.parents for lock in each.locks}, key=id))
        self.forks = _forks
        for each in self.parents:
            each.children.add(self)

    def __enter__(self) -> int:
        if getattr(_here, "callback", 0):
            raise errors.StateError("a callback must not call the library")
        self.refuse_fork()
        with self.lock:
            if self.calls and (self.exclusive or self.calls < 0):
                raise errors.ConcurrentUse("the %s is in use by another thread" % self.kind)
            if self.raw is None:
                raise errors.Closed("the %s is closed" % self.kind)
            self.calls += 1
            _here.calls = getattr(_here, "calls", 0) + 1
            return self.raw

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self.lock:
            self.calls -= 1
            _here.calls -= 1
        if kind is not None and isinstance(error, errors.CallbackError):
            self.explain(error)

    def refuse_fork(self) -> None:
        """Raises in a forked child, where whoever held its locks is no more."""
        if self.forks != _forks and self.raw is not None:
            raise errors.StateError("the %s belongs to the process that forked this one"
                                    % self.kind)

    def explain(self, error: errors.CallbackError) -> None:
        """Chains what a callback raised to the error that the library made of it."""
        cause = self._failure()
        if cause is None or error.__cause__ is not None:
            return
        if not isinstance(cause, Exception):  # KeyboardInterrupt, SystemExit
            raise cause from error
        error.__cause__ = cause

    def _failure(self) -> Optional[BaseException]:
        with contextlib.suppress(IndexError):
            return self.failures.pop()
        for each in self.parents:
            found = each._failure()
            if found is not None:
                return found
        return None

    def close(self, wait: bool = True) -> bool:
        """Destroys the object; False if it was closed already. Without `wait`, only if no other
        thread sets anything up on the same device: else ConcurrentUse."""
        if getattr(_here, "callback", 0):
            raise errors.StateError("a callback must not call the library")
        if self.forks != _forks:  # its threads are the other process's, as are holders of locks
            self.raw = None
            return False
        with setup(self, wait=wait):
            with self.lock:
                if self.calls:
                    raise errors.ConcurrentUse("the %s is in use by another thread" % self.kind)
                if self.raw is None:
                    return False
                self.calls = -1  # refuses everybody, without the lock held meanwhile
                raw, self.raw = self.raw, None
            try:
                self._refuse_exports()  # with `raw` gone: no more can be made
                self.destroy(raw)
            except errors.Error as error:
                if not self.frees_always or isinstance(error, (errors.Busy, errors.HandleError)):
                    self.raw = raw
                raise
            except BaseException:
                _interrupted.append(self.keep)
                raise
            finally:
                self.calls = 0
                if self.raw is None:
                    self._forget()
        return True

    def _refuse_exports(self) -> None:
        if self.exports:
            dlpack.forget_unused()
        if self.exports:
            raise errors.ExportsAlive(
                "%d arrays that show memory of the %s are still alive; delete them first"
                % (len(self.exports), self.kind))

    def open_steps(self, by: int) -> None:
        """Counts steps that this object, a session, opens on what it uses: pools and devices."""
        if not by:
            return
        self.opened += by
        used = set(self.parents)
        for each in self.parents:
            used.update(each.parents)
        for each in used:
            with each.lock:
                each.steps += by

    def _forget(self) -> None:
        self.raw = None
        self.open_steps(-self.opened)
        self.keep = ()
        for each in self.parents:
            each.children.discard(self)

    def finalise(self) -> None:
        """Destroys children, then the object; rather leaks it than pulls it from under a user."""
        if self.raw is None or self.forks != _forks:
            return
        if getattr(_here, "callback", 0) or getattr(_here, "calls", 0):
            _postponed[self] = None
            return
        for each in list(self.children):
            each.finalise()
        try:
            self.close(wait=False)
        except errors.Busy as error:
            # waiting here, in the middle of anything, could be for ever
            if isinstance(error, errors.ConcurrentUse) or self.children:
                _postponed[self] = None
        except errors.Error:
            pass
        except BaseException:  # an interrupt; if it came too late, there is nothing left to do
            _postponed[self] = None
            raise


class Handle:
    """An object of the library. A context manager: leaving it closes it."""

    _state: State

    def _own(self, state: State, parents: Tuple["Handle", ...] = ()) -> None:
        self._parents = parents  # kept alive
        self._state = state
        weakref.finalize(self, state.finalise)

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._state.raw is None

    @property
    def handle(self) -> int:
        """The address of the library's object, for calls of the C ABI through `moepage._abi`."""
        if self._state.raw is None:
            raise errors.Closed("the %s is closed" % self._state.kind)
        return self._state.raw

    def close(self) -> None:
        """Closes it; again is a no-op. Busy while anything depends on it: it then stays open."""
        self._state.close()

    def __enter__(self: _H) -> _H:
        if self.closed:
            raise errors.Closed("the %s is closed" % self._state.kind)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.close()
        except errors.Busy:
            if kind is None:  # else the exception on its way matters more
                raise

    def __repr__(self) -> str:
        return "<moepage.%s%s>" % (type(self).__name__, ", closed" if self.closed else "")


@contextlib.contextmanager
def setup(*states: State, wait: bool = True) -> Iterator[None]:
    """Holds what creating or destroying objects on these needs to be alone."""
    for each in states:
        each.refuse_fork()
    if wait:
        run_postponed()
    locks: List[Any] = sorted({lock for each in states for lock in each.locks}, key=id)
    with contextlib.ExitStack() as stack:
        for lock in locks:
            if not lock.acquire(blocking=wait):
                raise errors.ConcurrentUse("another thread sets something up on the device")
            stack.callback(lock.release)
        yield


def created(make: Callable[..., Any], destroy: Callable[[int], Any], *arguments: Any,
            kind: Any = ctypes.c_void_p) -> int:
    """What a function of the library creates; destroyed again if the call was interrupted."""
    out = kind()
    try:
        make(*arguments, ctypes.byref(out))
    except BaseException:
        if out.value:  # it is written on success only
            with contextlib.suppress(errors.Error):
                destroy(out.value)
        raise
    return out.value


def refuse_open_steps(*states: State) -> None:
    """The library's rule for creating what uses pools: not while a step is open on them."""
    for each in states:
        if each.steps:
            raise errors.StateError("a step is open on the %s: end it first" % each.kind)


def library_of(*handles: Handle) -> Any:
    """The library that all of these are of."""
    libraries = {id(each._state.library): each._state.library for each in handles}
    if len(libraries) != 1:
        raise ValueError("the handles are of different libraries")
    return next(iter(libraries.values()))


@contextlib.contextmanager
def calling_back(failures: Optional[Deque[BaseException]] = None) -> Iterator[None]:
    """Around the body of a callback: what it raises is put into `failures` and raised again."""
    _here.callback = getattr(_here, "callback", 0) + 1
    try:
        yield
    except BaseException as error:
        if failures is not None:
            failures.append(error)
        raise
    finally:
        _here.callback -= 1


def run_postponed() -> None:
    """Runs finalisers that came up where they could not run."""
    for each in list(_postponed):
        _postponed.pop(each, None)
        each.finalise()


atexit.register(run_postponed)  # after weakref's own hook, which finalises what is still alive
