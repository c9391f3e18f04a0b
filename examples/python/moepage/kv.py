"""`KVPool`: paged KV blocks, and the sequences that hold them."""
import ctypes
import operator
from typing import Any, Iterable, NamedTuple, Optional, Sequence as Seq, Tuple

from . import _abi, errors, library
from ._info import KVAdmission, KVPoolInfo
from .device import Device
from .dtypes import dtype as dtype_of, uint32
from .handles import Handle, State, created, library_of, refuse_open_steps, setup
from .structs import make, report
from .tensors import Scope, Tensor, copy_of
from .units import stream as stream_of, uint


class KVLayer:
    """How to address one layer's blocks: block b starts at
    base + b // id_stride * granule_bytes + b % id_stride * block_bytes."""

    def __init__(self, pool: "KVPool", view: Any) -> None:
        self._pool = pool
        self.base: Optional[int] = view.base  #: None for a layer that keeps no KV
        self.id_stride: int = view.id_stride
        self.block_bytes: int = view.block_bytes
        self.granule_bytes: int = view.granule_bytes

    def address(self, block: int) -> int:
        """Where a block of a table starts."""
        if self.base is None:
            raise ValueError("the layer keeps no KV")
        granule, inside = divmod(operator.index(block), self.id_stride)
        return self.base + granule * self.granule_bytes + inside * self.block_bytes

    def block(self, block: int, dtype: Any = "u8", shape: Optional[Seq[int]] = None) -> Tensor:
        """A block's memory as an array of `shape`, its own bytes unless said otherwise. It shows
        the block's place: what is there moves when the pool is resized or the sequence swapped."""
        kind = dtype_of(dtype)
        whole = tuple(shape) if shape is not None else (self.block_bytes // kind.itemsize,)
        at = self.address(block)
        made = Tensor(at, whole, kind, device=self._pool.device._place, scope=self._pool._scope,
                      keep=self._pool)
        if min(whole, default=0) < 0 or made.nbytes > self.block_bytes:
            raise ValueError("%r is more than a block's %d bytes" % (made, self.block_bytes))
        if block < 0 or at + self.block_bytes > self._pool._end():
            raise IndexError("no block %d" % block)
        return made


class BlockTable(NamedTuple):
    """A copy of a sequence's block ids, and its tokens; no ids while it is swapped out."""

    blocks: Tensor
    n_tokens: int
    swapped: bool


class Sequence(Handle):
    """A sequence of a KV pool. Closing frees its blocks, as does forgetting it. One call at a
    time; different sequences may be used by different threads."""

    def __init__(self, pool: "KVPool", seq: int) -> None:
        lib = pool._state.library

        def free(raw: int, pool_state: State = pool._state) -> None:
            try:
                with pool_state as raw_pool:
                    lib.moepage_kv_free(raw_pool, raw)
            except errors.Closed:
                pass  # the pool's end was its end
        state = State("sequence", lib, free, seq, (pool._state,), exclusive=True)
        state.locks = ()
        self._own(state, (pool,))
        self.pool = pool

    @property
    def id(self) -> int:
        """The library's id, for steps."""
        return self.handle

    def _call(self, name: str, *arguments: Any) -> None:
        with self._state as seq, self.pool._state as raw:
            getattr(self._state.library, name)(raw, seq, *arguments)

    def append(self, n_tokens: int, *, stream: Any = None) -> None:
        """Makes room for more tokens, all or nothing: WouldNotFit takes none."""
        self._call("moepage_kv_append", n_tokens, stream_of(stream))

    def truncate(self, n_tokens: int) -> None:
        """Drops tokens from the end, down to `n_tokens`."""
        self._call("moepage_kv_truncate", n_tokens)

    def fork(self) -> "Sequence":
        """A second sequence with the same tokens; blocks are shared until one side writes."""
        with self._state as seq:
            return self.pool._sequence("moepage_kv_fork", seq)

    def swap_out(self, *, stream: Any = None) -> None:
        """Copies its blocks to host memory and frees them on the device."""
        self._call("moepage_kv_swap_out", stream_of(stream))

    def swap_in(self, *, stream: Any = None) -> None:
        """Brings it back; WouldNotFit leaves it swapped and whole."""
        self._call("moepage_kv_swap_in", stream_of(stream))

    def table(self) -> BlockTable:
        """Its blocks now."""
        table = make(_abi.moepage_kv_table)
        # what the library lends moves with the split: nobody sets that up meanwhile
        with setup(self.pool._state), self._state as seq, self.pool._state as raw:
            self._state.library.moepage_kv_get_table(raw, seq, ctypes.byref(table))
            n = table.n_blocks if table.blocks else 0
            blocks = copy_of(table.blocks, (n,), uint32)
        return BlockTable(blocks, table.n_tokens, bool(table.swapped))

    def __len__(self) -> int:
        return self.table().n_tokens

    def __bool__(self) -> bool:
        return True


def kv_config(bytes_per_token: Iterable[int], *, block_tokens: int = 0, blocks: int = 0,
              max_sequences: int = 0, blocks_per_granule: int = 0) -> Tuple[Any, Tuple[int, ...]]:
    """moepage_kv_pool_config, and the bytes of each layer."""
    sizes = tuple(uint(each, "bytes_per_token") for each in bytes_per_token)
    held = (ctypes.c_uint32 * len(sizes))(*sizes)
    struct = make(_abi.moepage_kv_pool_config, block_tokens=block_tokens, layers=len(sizes),
                  blocks_per_granule=blocks_per_granule, blocks=blocks,
                  max_sequences=max_sequences,
                  bytes_per_token=ctypes.addressof(held) if sizes else None)
    struct.held_sizes = held
    return struct, sizes


class KVPool(Handle):
    """Paged KV on a device's arena.

    bytes_per_token      of each layer, keys and values together; 0 for a layer without KV
    block_tokens         tokens per block; 0 = 16
    blocks               size of the pool; 0 = all that the arena still has
    max_sequences        live at once; 0 = 4096
    blocks_per_granule   0 = chosen from the arena

    Any thread may use a pool. Creating it needs that no step is open on the device. Closing it ends
    its sequences; it is Busy while sessions, or arrays of its blocks, live.
    """

    def __init__(self, device: Device, bytes_per_token: Iterable[int], *, block_tokens: int = 0,
                 blocks: int = 0, max_sequences: int = 0, blocks_per_granule: int = 0) -> None:
        if not isinstance(device, Device):
            raise TypeError("a Device is needed, not %s" % type(device).__name__)
        struct, sizes = kv_config(bytes_per_token, block_tokens=block_tokens, blocks=blocks,
                                  max_sequences=max_sequences,
                                  blocks_per_granule=blocks_per_granule)
        lib = library_of(device)
        state = State("KV pool", lib, lib.moepage_kv_pool_destroy, None, (device._state,))
        self._own(state, (device,))
        with setup(device._state), device._state as raw:
            refuse_open_steps(device._state)
            state.create(lib.moepage_kv_pool_create, raw, ctypes.byref(struct))
        self._opened(device, sizes)

    def _opened(self, device: Device, sizes: Tuple[int, ...]) -> None:
        self.device = device
        self.bytes_per_token = sizes
        self.block_tokens: int = self.info.block_tokens
        bare = None if device.has_bytes else "%s has no bytes to show" % device.name
        self._scope = Scope("the KV pool", (self._state, device._state), bare)

    @staticmethod
    def sizes(bytes_per_token: Iterable[int], **config: Any) -> int:
        """Bytes of arena that a pool of these `blocks` would take."""
        struct, _ = kv_config(bytes_per_token, **config)
        out = ctypes.c_uint64()
        library.get().moepage_kv_pool_sizes(ctypes.byref(struct), ctypes.byref(out))
        return out.value

    def _end(self) -> int:
        """Past the last byte that a block can have: ids number the whole arena."""
        first = next(i for i, each in enumerate(self.bytes_per_token) if each)
        granule = self.info.granule_bytes
        return (self.layer(first).base or 0) + self.device.info.arena_bytes // granule * granule

    @property
    def info(self) -> KVPoolInfo:
        """Its blocks, and what has happened to them, now."""
        with self._state as raw:
            return report(self._state.library.moepage_kv_pool_get_info, KVPoolInfo, raw)

    def layer(self, layer: int) -> KVLayer:
        """How to address a layer's blocks."""
        view = make(_abi.moepage_kv_layer_view)
        with self._state as raw:
            self._state.library.moepage_kv_pool_get_layer(raw, layer, ctypes.byref(view))
        return KVLayer(self, view)

    def create(self) -> Sequence:
        """A new, empty sequence."""
        return self._sequence("moepage_kv_create")

    def _sequence(self, function: str, *arguments: Any) -> Sequence:
        lib = self._state.library
        with self._state as raw:
            made = created(getattr(lib, function), lambda seq: lib.moepage_kv_free(raw, seq),
                           raw, *arguments, kind=_abi.moepage_seq)
        return Sequence(self, made)

    def admit(self, tokens: Iterable[int]) -> KVAdmission:
        """Whether new sequences of so many tokens each would fit now. Takes nothing."""
        counts = [uint(each, "tokens", 64) for each in tokens]
        held = (ctypes.c_uint64 * len(counts))(*counts)
        out = make(_abi.moepage_kv_admission)
        with self._state as raw:
            self._state.library.moepage_kv_admit(raw, held, len(counts), ctypes.byref(out))
        return KVAdmission.of(out)
