"""Paging for Mixture-of-Experts inference: libmoepage in Python.

    with moepage.Engine("checkpoint", budget="2GiB") as engine:
        with engine.step(n_tokens) as step:
            y = step.run(layer, ids, weights, x)

An engine is a Device, a Model, an ExpertPool and a Session, which may also be opened one by one.

Errors of the library are `moepage.Error`, one subclass per status; arguments that make no sense
are TypeError and ValueError. Nothing is loaded before something is opened.
"""
from ._abi import MOEPAGE_NO_EXPERT as NO_EXPERT
from ._info import (ControllerInfo, ControllerReport, CudaInfo, DeviceInfo, ExpertPoolInfo,
                    FormInfo, KVAdmission, KVPoolInfo, ModelInfo, PackStats, PagedInfo,
                    PredictorInfo, PrefetchInfo, Rightsize, SessionStats, TraceInfo)
from .codec import blocks_decode, exph_decode, exph_encode
from .controller import Controller, set_split
from .device import Device
from .dtypes import (DType, bfloat16, dtype, float8_e4m3, float8_e5m2, float8_e8m0, float16,
                     float32, int8, int32, int64, uint8)
from .enums import (Activation, Control, ExpertState, Form, Gate, Group, Hotness, KVMiss, LogLevel,
                    Math, MetadataType, Miss, Outcome, PagedState, Phase, Placement, Prefetch,
                    Regime, Role, Scope, Serve)
from .engine import Engine
from .errors import (ArgumentError, BudgetError, Busy, CallbackError, Closed, ConcurrentUse,
                     DeviceError, End, Error, ExportsAlive, FormatError, HandleError, IOFailed,
                     LibraryNotFound, NoMemory, NotFound, StateError, Unsupported, VersionError,
                     WouldNotFit)
from .experts import ExpertPool, Place, Precision
from .kv import BlockTable, KVLayer, KVPool, Sequence
from .library import use, version
from .model import ExpertTensor, Model
from .pack import write_pack
from .paged import PagedTensor
from .plan import Plan, PlanExpert
from .predictor import Predictor
from .session import Remap, Session
from .stats import stats_text
from .step import Step
from .tensors import Tensor, empty, tensor
from .trace import Trace, TraceSequence, TraceStep

__all__ = [name for name in dir() if not name.startswith("_") and name not in (
    "codec", "controller", "device", "dlpack", "dtypes", "engine", "enums", "errors", "experts", "handles",
    "kv", "library", "model", "pack", "paged", "plan", "predictor", "session", "stats", "step",
    "structs", "tensors", "trace", "units")]
