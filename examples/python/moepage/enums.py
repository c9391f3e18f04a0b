"""The library's choices. Wherever one is asked for, its name ("bf16", "prefill", in any case) and
its number do as well."""
from enum import IntEnum
from typing import Any, Type, TypeVar

from . import _abi

_E = TypeVar("_E", bound=IntEnum)


class Role(IntEnum):
    """What an expert's tensor is for."""
    GATE_UP = _abi.MOEPAGE_ROLE_GATE_UP
    GATE = _abi.MOEPAGE_ROLE_GATE
    UP = _abi.MOEPAGE_ROLE_UP
    DOWN = _abi.MOEPAGE_ROLE_DOWN
    GATE_UP_SCALE = _abi.MOEPAGE_ROLE_GATE_UP_SCALE
    GATE_SCALE = _abi.MOEPAGE_ROLE_GATE_SCALE
    UP_SCALE = _abi.MOEPAGE_ROLE_UP_SCALE
    DOWN_SCALE = _abi.MOEPAGE_ROLE_DOWN_SCALE
    GATE_UP_BIAS = _abi.MOEPAGE_ROLE_GATE_UP_BIAS
    GATE_BIAS = _abi.MOEPAGE_ROLE_GATE_BIAS
    UP_BIAS = _abi.MOEPAGE_ROLE_UP_BIAS
    DOWN_BIAS = _abi.MOEPAGE_ROLE_DOWN_BIAS


class Activation(IntEnum):
    """What an expert computes of its gate and up projections."""
    SWIGLU = _abi.MOEPAGE_ACTIVATION_SWIGLU
    SWIGLU_CLAMPED = _abi.MOEPAGE_ACTIVATION_SWIGLU_CLAMPED
    OTHER = _abi.MOEPAGE_ACTIVATION_OTHER


class MetadataType(IntEnum):
    """What a value of a GGUF file's metadata is."""
    INTEGER = _abi.MOEPAGE_METADATA_INTEGER
    REAL = _abi.MOEPAGE_METADATA_REAL
    TRUTH = _abi.MOEPAGE_METADATA_TRUTH
    TEXT = _abi.MOEPAGE_METADATA_TEXT


class Form(IntEnum):
    """How an expert's weights are stored; DENSE and EXPH are lossless."""
    DENSE = _abi.MOEPAGE_FORM_DENSE
    EXPH = _abi.MOEPAGE_FORM_EXPH
    INT8 = _abi.MOEPAGE_FORM_INT8
    INT4 = _abi.MOEPAGE_FORM_INT4
    INT2 = _abi.MOEPAGE_FORM_INT2


class Scope(IntEnum):
    """Whether layers compete for slots."""
    GLOBAL = _abi.MOEPAGE_SCOPE_GLOBAL
    LAYER = _abi.MOEPAGE_SCOPE_LAYER


class Placement(IntEnum):
    """How many experts are kept compressed on the device."""
    EXPLICIT = _abi.MOEPAGE_PLACEMENT_EXPLICIT
    BANDWIDTH = _abi.MOEPAGE_PLACEMENT_BANDWIDTH


class Serve(IntEnum):
    """What the two versions of an expert are for."""
    VERSIONS = _abi.MOEPAGE_SERVE_VERSIONS
    CACHE = _abi.MOEPAGE_SERVE_CACHE


class Hotness(IntEnum):
    """What makes an expert hot."""
    CHOICES = _abi.MOEPAGE_HOTNESS_CHOICES
    WEIGHTS = _abi.MOEPAGE_HOTNESS_WEIGHTS


class ExpertState(IntEnum):
    """Where an expert is."""
    ABSENT = _abi.MOEPAGE_EXPERT_ABSENT
    LOADING = _abi.MOEPAGE_EXPERT_LOADING
    RESIDENT = _abi.MOEPAGE_EXPERT_RESIDENT


class Outcome(IntEnum):
    """What a controller's tick did."""
    WAITS = _abi.MOEPAGE_CONTROL_WAITS
    STAYS = _abi.MOEPAGE_CONTROL_STAYS
    MOVED = _abi.MOEPAGE_CONTROL_MOVED
    DRAINING = _abi.MOEPAGE_CONTROL_DRAINING
    REFUSED = _abi.MOEPAGE_CONTROL_REFUSED
    INFEASIBLE = _abi.MOEPAGE_CONTROL_INFEASIBLE


class Control(IntEnum):
    """How a controller moves the split."""
    MV_WSA = _abi.MOEPAGE_CONTROL_MV_WSA
    DUAL_RESIZE = _abi.MOEPAGE_CONTROL_DUAL_RESIZE
    PLANNER = _abi.MOEPAGE_CONTROL_PLANNER
    OBSERVE = _abi.MOEPAGE_CONTROL_OBSERVE
    FIXED = _abi.MOEPAGE_CONTROL_FIXED
    FLUX = _abi.MOEPAGE_CONTROL_FLUX


class KVMiss(IntEnum):
    """What the host does about KV that is not on the device."""
    SWAP = _abi.MOEPAGE_KV_MISS_SWAP
    RECOMPUTE = _abi.MOEPAGE_KV_MISS_RECOMPUTE


class PagedState(IntEnum):
    """Where a layer of a PagedTensor is."""
    UNMAPPED = _abi.MOEPAGE_PAGED_UNMAPPED
    LOADING = _abi.MOEPAGE_PAGED_LOADING
    RESIDENT = _abi.MOEPAGE_PAGED_RESIDENT
    EVICTING = _abi.MOEPAGE_PAGED_EVICTING


class Math(IntEnum):
    """The arithmetic of Step.ffn."""
    FP32 = _abi.MOEPAGE_MATH_FP32
    BF16 = _abi.MOEPAGE_MATH_BF16
    BF16_FAST = _abi.MOEPAGE_MATH_BF16_FAST
    INT8 = _abi.MOEPAGE_MATH_INT8


class Prefetch(IntEnum):
    """What is fetched ahead of need."""
    OFF = _abi.MOEPAGE_PREFETCH_OFF
    HINT = _abi.MOEPAGE_PREFETCH_HINT
    PREVIOUS = _abi.MOEPAGE_PREFETCH_PREVIOUS
    PREDICTOR = _abi.MOEPAGE_PREFETCH_PREDICTOR


class Group(IntEnum):
    """How plans are divided."""
    EXPERTS = _abi.MOEPAGE_GROUP_EXPERTS
    TOKENS = _abi.MOEPAGE_GROUP_TOKENS


class Miss(IntEnum):
    """What a session does about an absent expert."""
    WAIT = _abi.MOEPAGE_MISS_WAIT
    LOW = _abi.MOEPAGE_MISS_LOW
    HOST = _abi.MOEPAGE_MISS_HOST


class Regime(IntEnum):
    """How a layer's experts are served."""
    AUTO = _abi.MOEPAGE_REGIME_AUTO
    CACHE = _abi.MOEPAGE_REGIME_CACHE
    STREAM = _abi.MOEPAGE_REGIME_STREAM


class Phase(IntEnum):
    """What a sequence's tokens of a step are."""
    DECODE = _abi.MOEPAGE_PHASE_DECODE
    PREFILL = _abi.MOEPAGE_PHASE_PREFILL


class Gate(IntEnum):
    """What turns a router's logits into weights."""
    SOFTMAX = _abi.MOEPAGE_GATE_SOFTMAX
    SIGMOID = _abi.MOEPAGE_GATE_SIGMOID


class LogLevel(IntEnum):
    """How bad what is logged is."""
    ERROR = _abi.MOEPAGE_LOG_ERROR
    WARNING = _abi.MOEPAGE_LOG_WARNING
    INFO = _abi.MOEPAGE_LOG_INFO


def choose(kind: Type[_E], value: Any, what: str) -> int:
    """The number of a choice: a member, its name or its number."""
    if isinstance(value, str):
        name = value.upper().replace("-", "_")
        if name in kind.__members__:
            return int(kind[name])
    elif isinstance(value, int) and not isinstance(value, bool):
        if any(value == member for member in kind):
            return int(value)
    raise ValueError("%s is %r, and not one of %s"
                     % (what, value, ", ".join(name.lower() for name in kind.__members__)))
