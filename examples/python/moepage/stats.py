"""Every counter and gauge as text, in the format that Prometheus scrapes (docs/metrics.md)."""
import contextlib
import ctypes
import re
from typing import Any, Mapping, Optional

from . import _abi
from .controller import Controller
from .device import Device
from .experts import ExpertPool
from .handles import library_of
from .kv import KVPool
from .predictor import Predictor
from .structs import make

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def stats_text(*, device: Optional[Device] = None, experts: Optional[ExpertPool] = None,
               kv: Optional[KVPool] = None, controller: Optional[Controller] = None,
               predictor: Optional[Predictor] = None,
               labels: Optional[Mapping[str, str]] = None) -> str:
    """Reports on what is given; `labels` are put into every sample. Any thread may scrape while
    others serve."""
    sources = {"device": device, "experts": experts, "kv": kv, "controller": controller,
               "predictor": predictor}
    given = {name: handle for name, handle in sources.items() if handle is not None}
    if not given:
        raise TypeError("there is nothing to report on")
    source: Any = make(_abi.moepage_stats_source,
                       labels=_labels(labels).encode() if labels else None)
    out = ctypes.create_string_buffer(_abi.MOEPAGE_STATS_TEXT_BYTES)
    with contextlib.ExitStack() as stack:
        for name, handle in given.items():
            setattr(source, name, stack.enter_context(handle._state))
        library_of(*given.values()).moepage_stats_text(ctypes.byref(source), out, len(out), None)
    return out.value.decode("utf-8", "replace")


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join('%s="%s"' % (name, re.sub(r'[\\"\n]', lambda m: _ESCAPES[m.group()], value))
                    for name, value in labels.items())
