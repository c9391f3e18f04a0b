"""`Engine`: a device, a model, its pools and a session, opened together under one budget."""
import ctypes
import os
import re
import threading
from typing import Any, Dict, List, Mapping, Optional, Set, Union

from . import _abi, errors, library
from ._info import SessionStats
from .device import Device, Log, budget_bytes, device_config, log_callback, logger
from .experts import ExpertPool, pool_config
from .handles import Handle, State, setup
from .kv import KVPool, kv_config
from .model import Model
from .predictor import Predictor, predictor_config
from .session import Session, session_config
from .stats import stats_text
from .step import Step
from .structs import make
from .units import size, text

_PARTS = {"device": device_config, "experts": pool_config, "session": session_config}


def _budget(struct: Any, budget: Union[None, int, str]) -> None:
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", budget) if isinstance(budget, str) else None
    if share:
        struct.budget_percent = float(share.group(1))
    elif budget is not None:
        struct.budget_bytes = budget_bytes(budget)


def _device_name(device: str, options: Optional[str]) -> str:
    """The options' device, if they name one."""
    named = [each[7:] for each in (options or "").split() if each.startswith("device=")]
    return named[0] if named else device


def _split(config: Dict[str, Any]) -> Dict[str, Any]:
    """The structs that keywords belong to, by the field of moepage_engine_config."""
    of_part: Dict[str, Dict[str, Any]] = {part: {} for part in _PARTS}
    for name, value in config.items():
        for part, function in _PARTS.items():
            if name in (function.__kwdefaults__ or {}):
                of_part[part][name] = value
                break
        else:
            raise TypeError("an engine takes no %r" % name)
    return {part: function(**of_part[part]) for part, function in _PARTS.items()}


class Engine(Handle):
    """Opens everything that a model's experts are served with.

    `model` is what Model opens, or a Model, which stays the caller's. `budget` is all that the
    device may hold, "2GiB", a number or "auto", or so much of the experts, "25%", with workspace and KV on
    top; None if `slots` or `options` say it. `options` is text for command lines, "budget=8G
    policy=cycle", as moepage_engine_open reads it; it takes precedence over the keywords.

    device             "host", "cuda:N", "sim:FILE"
    kv                 what KVPool takes, as a mapping; None = no KV
    predictor          a name, or what Predictor takes, as a mapping; None = none
    sessions           that will share the pool: room is kept for so many
    extra_workspace, extra_arena   bytes that are kept for what is added to the engine
    log                as of Device
    and what ExpertPool, Session and Device take: policy, host_tier, max_tokens, math, threads ...

        with engine.step(n_tokens) as step:
            y = step.run(layer, ids, weights, x)

    `session`, `experts`, `kv`, `device`, `model` and `predictor` are its parts, for everything
    else; they close with it. Closing is Busy while anything of the caller's uses one.
    """

    def __init__(self, model: "Union[str, os.PathLike[str], Model]",
                 budget: Union[None, int, str] = None, options: Optional[str] = None, *,
                 device: str = "host", kv: Optional[Mapping[str, Any]] = None,
                 predictor: Union[None, str, Mapping[str, Any]] = None, sessions: int = 1,
                 extra_workspace: Union[int, str] = 0, extra_arena: Union[int, str] = 0,
                 log: Log = logger, **config: Any) -> None:
        given = model if isinstance(model, Model) else None
        lib = given._state.library if given else library.get()
        parts = _split(config)
        callback = log_callback(log)
        parts["device"].log = callback
        sizes = None
        if kv is not None:
            parts["kv"], sizes = kv_config(**kv)
        if predictor is not None:
            about = {"name": predictor} if isinstance(predictor, str) else predictor
            parts["predictor"] = predictor_config(**about)
        struct = make(_abi.moepage_engine_config, device_name=text(device, "device"),
                      sessions=sessions,
                      extra_workspace_bytes=size(extra_workspace, "extra_workspace"),
                      extra_arena_bytes=size(extra_arena, "extra_arena"))
        _budget(struct, budget)
        for name, part in parts.items():
            setattr(struct, name, ctypes.pointer(part))
        parents = (given,) if given else ()
        state = State("engine", lib, self._destroyer(lib), None, [each._state for each in parents],
                      keep=(callback,))
        state.locks = (threading.RLock(),)
        self._own(state, parents)
        self._open(given, None if given else os.fsencode(model),
                   None if options is None else text(options, "options"), struct)
        self._lend(given, _device_name(device, options), sizes)

    def _destroyer(self, lib: Any) -> Any:
        lent: List[State] = []
        self._lent = lent  # before the handle is owned: finalisers use it, not the handle

        def destroy(raw: int) -> None:
            if any(each.raw is not None for each in lent):
                raise errors.Busy("arrays or handles of the engine's parts are in use")
            lib.moepage_engine_close(raw)
        return destroy

    def _open(self, given: Optional[Model], path: Optional[bytes], options: Optional[bytes],
              struct: Any) -> None:
        lib = self._state.library
        with setup(self._state):
            if given is None:
                self._state.create(lib.moepage_engine_open, path, options, ctypes.byref(struct))
                return
            with given._state as raw:
                struct.model = raw
                self._state.create(lib.moepage_engine_open, path, options, ctypes.byref(struct))

    # ---- What it is made of --------------------------------------------------------------

    def _part(self, kind: str, function: str, parents: List[Handle],
              exclusive: bool = False) -> Any:
        """A handle's state for an object that is the engine's to close; None if it has none."""
        raw = getattr(self._state.library, function)(self._state.raw)
        if not raw:
            return None
        state = State(kind, self._state.library, _leave, raw, [each._state for each in parents],
                      exclusive=exclusive)
        self._lent.append(state)
        return state

    def _lend(self, given: Optional[Model], name: str, sizes: Any) -> None:
        state = self._part("device", "moepage_engine_device", [self])
        self.device = Device.__new__(Device)
        self.device._opened(state, name, (self,))
        if given is None:
            self.model = Model.__new__(Model)
            self.model._opened(self._part("model", "moepage_engine_model", [self]), (self,))
        else:
            self.model = given
        self.experts = ExpertPool.__new__(ExpertPool)
        self.experts._opened(self._part("expert pool", "moepage_engine_expert_pool",
                                        [self.device, self.model]), (self.device,), self.model)
        self.kv = self._lend_kv(sizes)
        self.predictor = self._lend_predictor()
        parents = [each for each in (self.experts, self.kv, self.predictor) if each is not None]
        self.session = Session.__new__(Session)
        self.session._opened(self._part("session", "moepage_engine_session", parents, True),
                             self.experts, self.kv, self.predictor)

    def _lend_kv(self, sizes: Any) -> Optional[KVPool]:
        state = self._part("KV pool", "moepage_engine_kv_pool", [self.device])
        if state is None:
            return None
        kv = KVPool.__new__(KVPool)
        kv._own(state, (self.device,))
        kv._opened(self.device, sizes)
        return kv

    def _lend_predictor(self) -> Optional[Predictor]:
        state = self._part("predictor", "moepage_engine_predictor", [self])
        if state is None:
            return None
        predictor = Predictor.__new__(Predictor)
        predictor._own(state, (self,))
        return predictor

    # ---- Use -----------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """The model's MoE layers."""
        with self._state as raw:
            return self._state.library.moepage_engine_layers(raw)

    @property
    def stats(self) -> SessionStats:
        """Sums over all ended or cancelled steps of its session."""
        return self.session.stats

    def step(self, n_tokens: Optional[int] = None, **about: Any) -> Step:
        """Opens a step of its session: as Session.step."""
        return self.session.step(n_tokens, **about)

    def stats_text(self, labels: Optional[Mapping[str, str]] = None) -> str:
        """Every counter, for Prometheus."""
        return stats_text(device=self.device, experts=self.experts, kv=self.kv,
                          predictor=self.predictor, labels=labels)

    def close(self) -> None:
        """Closes everything, an open step included; again is a no-op. Busy, and nothing has
        changed, while a session, a controller or arrays of the caller's use one of its parts."""
        with setup(self._state):
            self._refuse_guests()
            lent = [self.session, self.kv, self.experts, self.predictor, self.device]
            for each in lent + ([] if self.model in self._parents else [self.model]):
                if each is not None:
                    each.close()
            self._state.close()

    def _refuse_guests(self) -> None:
        own: Set[State] = set(self._lent)
        for each in self._lent:
            guests = each.children - own
            if guests:
                raise errors.Busy("a %s uses the engine's %s: close it first"
                                  % (next(iter(guests)).kind, each.kind))
            each._refuse_exports()


def _leave(raw: int) -> None:
    """What is lent is closed by the engine."""
