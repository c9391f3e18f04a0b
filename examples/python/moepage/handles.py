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
What was then created is given back, and what may be gone is never destroyed a second time. It may
also come up in the bookkeeping around a call, and leave behind that a thread is in one. So nobody
is refused for a thread that is not in a function of this package: what it left is put right.
"""
import atexit
import collections
import contextlib
import ctypes
import os
import sys
import threading
import weakref
from typing import (Any, Callable, ContextManager, Deque, Dict, Iterable, Iterator, List, Optional,
                    Set, Tuple, TypeVar)

from . import dlpack, errors

_H = TypeVar("_H", bound="Handle")

_thread = threading.get_ident
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

    __slots__ = ("kind", "library", "destroy", "raw", "parents", "children", "exclusive", "users",
                 "closing", "exports", "step_open", "failures", "keep", "locks", "lock", "forks",
                 "frees_always")

    def __init__(self, kind: str, library: Any, destroy: Callable[[int], Any], raw: Optional[int],
                 parents: Iterable["State"] = (), exclusive: bool = False,
                 keep: Tuple[Any, ...] = (), frees_always: bool = False) -> None:
        self.kind, self.library, self.destroy = kind, library, destroy
        self.raw = raw  # the library's pointer; None once it is closed
        self.parents = tuple(parents)
        self.children: Set[State] = set()
        self.exclusive = exclusive
        self.users: List[int] = []  # the threads of the calls under way
        self.closing = False
        self.exports: Set[Any] = set()  # arrays that show memory which goes with this object
        self.step_open = False  # of a session: on all that it uses
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
            if self.closing or self.exclusive:
                self.refuse_users()
            if self.raw is None:
                raise errors.Closed("the %s is closed" % self.kind)
            self.users.append(_thread())
            _here.calls = getattr(_here, "calls", 0) + 1
            return self.raw

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _here.calls -= 1
        self.users.remove(_thread())
        if kind is not None and isinstance(error, errors.CallbackError):
            self.explain(error)

    def create(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Takes over what a function of the library creates, in one with its return."""
        out = ctypes.c_void_p()
        try:
            make(*arguments, ctypes.byref(out))
        except BaseException:
            _undo(out, self.destroy)
            self._forget()
            raise
        self.raw = out.value

    def refuse_users(self) -> None:
        """Raises if a thread is in a call, or closes it; with `lock` held, so that none begins."""
        for each in set(self.users):
            while each in self.users and not _is_inside(each):
                self.users.remove(each)
        if self.users or self.closing:
            raise errors.ConcurrentUse("the %s is in use by another thread" % self.kind)

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
            raw, begun = None, False
            try:
                with self.lock:
                    self.refuse_users()
                    if self.raw is None:
                        return False
                    # refuses everybody, without the lock held meanwhile
                    self.closing, raw, self.raw = True, self.raw, None
                self._refuse_exports()  # with `raw` gone: no more can be made
                begun = True
                self.destroy(raw)
            except BaseException as error:
                if raw is not None:
                    self._not_destroyed(raw, begun, error)
                raise
            finally:
                if raw is not None:
                    self.closing = False
                    if self.raw is None:
                        self._forget()
        return True

    def _not_destroyed(self, raw: int, begun: bool, error: BaseException) -> None:
        """After a failure: still open, unless it is gone, or may be."""
        if isinstance(error, errors.Error):
            if not self.frees_always or isinstance(error, (errors.Busy, errors.HandleError)):
                self.raw = raw
        elif begun:
            _interrupted.append(self.keep)
        else:
            self.raw = raw

    def _refuse_exports(self) -> None:
        if self.exports:
            dlpack.forget_unused()
        if self.exports:
            raise errors.ExportsAlive(
                "%d arrays that show memory of the %s are still alive; delete them first"
                % (len(self.exports), self.kind))

    def _forget(self) -> None:
        self.step_open = False
        self.keep = ()
        for each in self.parents:
            each.children.discard(self)

    def finalise(self) -> None:
        """Destroys children, then the object; rather leaks it than pulls it from under a user."""
        if self.forks != _forks:
            return
        if self.raw is None:
            self._forget()
            return
        if getattr(_here, "callback", 0) or _in_call():
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a %s cannot be copied or pickled: it owns an object of the library"
                        % type(self).__name__)

    def __repr__(self) -> str:
        return "<moepage.%s%s>" % (type(self).__name__, ", closed" if self.closed else "")


def _in_call() -> bool:
    """Whether this thread is in a call of the library."""
    if getattr(_here, "calls", 0) and not _is_inside(_thread()):
        _here.calls = 0
    return bool(getattr(_here, "calls", 0))


def _is_inside(thread: int) -> bool:
    """Whether a thread is in a function of this package: if it is the one that asks, below those
    that ask. A call is always in one."""
    frame: Any = sys._current_frames().get(thread)
    if thread == _thread():
        while frame is not None and (_is_ours(frame) or frame.f_code.co_filename == _CONTEXTLIB):
            frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


_CONTEXTLIB = contextlib.suppress.__init__.__code__.co_filename


def _is_ours(frame: Any) -> bool:
    return frame.f_globals.get("__package__") == __package__


class _NonBlocking:
    """Locks that are taken only if nobody has them."""

    def __init__(self, locks: List[Any]) -> None:
        self._locks, self._held = locks, contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for lock in self._locks:
                if not lock.acquire(blocking=False):
                    raise errors.ConcurrentUse("another thread sets something up on the device")
                stack.callback(lock.release)
            self._held = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._held.close()


def setup(*states: State, wait: bool = True) -> ContextManager[Any]:
    """Holds what creating or destroying objects on these needs to be alone."""
    for each in states:
        each.refuse_fork()
    if wait:
        run_postponed()
    locks: List[Any] = sorted({lock for each in states for lock in each.locks}, key=id)
    if not wait:
        return _NonBlocking(locks)
    # a lock by itself is what no interrupt can leave held
    return locks[0] if len(locks) == 1 else _all_of(locks)


@contextlib.contextmanager
def _all_of(locks: List[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def created(make: Callable[..., Any], destroy: Callable[[int], Any], *arguments: Any,
            kind: Any = ctypes.c_void_p) -> int:
    """What a function of the library creates; destroyed again if the call was interrupted."""
    out = kind()
    try:
        make(*arguments, ctypes.byref(out))
    except BaseException:
        _undo(out, destroy)
        raise
    return out.value


def _undo(out: Any, destroy: Callable[[int], Any]) -> None:
    """Destroys what a call created that was then interrupted."""
    if out.value:  # it is written on success only
        with contextlib.suppress(errors.Error):
            destroy(out.value)


def refuse_open_steps(*states: State) -> None:
    """The library's rule for creating what uses pools: not while a step is open on them."""
    for each in states:
        users = set(each.children).union(*(list(child.children) for child in list(each.children)))
        if each.step_open or any(user.step_open for user in users):
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
