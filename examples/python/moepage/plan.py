"""`Plan`: where the experts of one group of a routed layer are."""
import ctypes
from typing import Any, Dict, List, Optional, Tuple

from . import _abi, dlpack
from .dtypes import float32, int32, shown, uint32
from .enums import Role
from .errors import Unsupported
from .tensors import Scope, Tensor, copy_of


class PlanExpert:
    """One expert of a plan."""

    __slots__ = ("_plan", "expert", "slot", "device", "dtype_code", "_first", "_count", "_tensors")

    def __init__(self, plan: "Plan", struct: Any) -> None:
        self._plan = plan
        self.expert: int = struct.expert  #: id within the layer
        self.slot: int = struct.slot  #: on its device; -1: its low version
        self.device: int = struct.device  #: index into the pool's devices
        self.dtype_code: int = struct.dtype  #: MOEPAGE_DTYPE_* of the version that is there
        self._first, self._count = struct.first_row, struct.n_rows
        self._tensors: int = ctypes.cast(struct.tensors, ctypes.c_void_p).value or 0

    @property
    def rows(self) -> Tensor:
        """Its rows, token * top_k + k each: a copy."""
        return self._plan._copy("rows", (self._count,), uint32, self._first)

    @property
    def addresses(self) -> Tuple[int, ...]:
        """Device addresses of its tensors, in the order of the model's `layer_tensors`."""
        self._plan._scope.check_alive()
        n = len(self._plan._model.expert_tensors)
        return tuple((ctypes.c_void_p * n).from_address(self._tensors))

    @property
    def tensors(self) -> Dict[str, Tensor]:
        """Its tensors by role ("gate_up", "down", ...), where they lie: read-only, and good until
        the plan ends, which has to wait for arrays made of them. Those in blocks are rows of
        bytes. Unsupported for low versions and integer forms, whose packed numbers only
        `addresses` shows."""
        tensors = self._plan._model.layer_tensors(self._plan.layer)
        if self.slot < 0 or self.dtype_code != tensors[0].dtype.code:
            raise Unsupported("expert %d is there in another version: use its addresses"
                              % self.expert)
        place = self._plan._devices[self.device]._place
        return {Role(each.role).name.lower():
                Tensor(address, *shown(each.shape, each.dtype, each.bytes), device=place,
                       readonly=True, scope=self._plan._scope, keep=self._plan,
                       stream=self._plan.stream)
                for each, address in zip(tensors, self.addresses)}

    def __repr__(self) -> str:
        return "<moepage.PlanExpert %d in slot %d, %d rows>" % (self.expert, self.slot,
                                                               self._count)


class Plan:
    """One group of one layer: read it before the layer is retired or the next group is taken."""

    def __init__(self, session: Any, struct: Any, n_tokens: int, stream: Optional[int]) -> None:
        self._struct = struct
        self._model, self._devices = session.experts.model, session.experts.devices
        self._session = session  # keeps everything alive
        self._step_tokens = n_tokens
        on_cuda = self._devices[0]._place[0] == dlpack.CUDA
        self.stream = stream or (1 if on_cuda else None)  # 1: the default stream's other name
        self.layer: int = struct.layer
        self.group: int = struct.group
        self.n_groups: int = struct.n_groups
        self.n_rows: int = struct.n_rows
        self.n_tokens: int = struct.n_tokens
        self.top_k: int = struct.top_k
        bare = next((each for each in self._devices if not each.has_bytes), None)
        self._scope = Scope("the plan of layer %d" % self.layer,
                            [each._state for each in self._devices],
                            "%s has no bytes to show" % bare.name if bare else None)
        self.experts: List[PlanExpert] = [PlanExpert(self, struct.experts[i])
                                          for i in range(struct.n_experts)]

    def _copy(self, name: str, shape: Tuple[int, ...], kind: Any, first: int = 0) -> Tensor:
        self._scope.check_alive()
        return copy_of((getattr(self._struct, name) or 0) + first * kind.itemsize, shape, kind)

    @property
    def rows(self) -> Tensor:
        """Rows, token * top_k + k each, sorted by expert: a copy, as are those below."""
        return self._copy("rows", (self.n_rows,), uint32)

    @property
    def tokens(self) -> Optional[Tensor]:
        """The group's tokens, ascending; None = all of the step's."""
        return self._copy("tokens", (self.n_tokens,), uint32) if self._struct.tokens else None

    @property
    def ids(self) -> Tensor:
        """[step's tokens, top_k]: the ids that count, after remapping."""
        return self._copy("ids", (self._step_tokens, self.top_k), int32)

    @property
    def weights(self) -> Tensor:
        """[step's tokens, top_k]: the weights that count."""
        return self._copy("weights", (self._step_tokens, self.top_k), float32)

    @property
    def expert_map(self) -> Tensor:
        """[experts]: slot of each expert of the group, else -1."""
        return self._copy("expert_map", (self._model.info.experts,), int32)

    @property
    def slot_base(self) -> int:
        """With one device: an expert in slot s is at slot_base + s * slot_stride_bytes."""
        self._scope.check_alive()
        return self._struct.slot_base or 0

    @property
    def slot_stride_bytes(self) -> int:
        """Distance between slots."""
        return self._struct.slot_stride_bytes

    def __len__(self) -> int:
        return len(self.experts)

    def __repr__(self) -> str:
        return "<moepage.Plan of layer %d, group %d of %d, %d experts>" % (
            self.layer, self.group, self.n_groups, len(self.experts))


def plan_struct() -> Any:
    """For the library to fill in."""
    struct = _abi.moepage_plan()
    struct.struct_size = ctypes.sizeof(struct)
    return struct
