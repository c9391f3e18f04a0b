//! The pool of KV blocks, and its sequences.
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use moepage_sys as sys;

use crate::device::Device;
use crate::error::{check, Error, Result};
use crate::gate::set_up;
use crate::handle::{closes, Handle, Outlived, Ref};
use crate::types::{count, Element, Stream};

pub use sys::moepage_kv_admission as KvAdmission;
pub use sys::moepage_kv_pool_info as KvPoolInfo;

/// How a KV pool is made. Zero is the default of everything but `bytes_per_token`.
#[derive(Clone, Debug, Default)]
pub struct KvPoolConfig {
    /// Of each layer: keys and values of one token together, laid out by the caller; required.
    pub bytes_per_token: Vec<u32>,
    /// Tokens per block; 0 = 16.
    pub block_tokens: u32,
    /// Layer-major run inside a granule; 0 = chosen from the arena.
    pub blocks_per_granule: u32,
    /// Size of the pool; 0 = all that the arena still has.
    pub blocks: u64,
    /// Live at once; 0 = 4096.
    pub max_sequences: u64,
}

impl KvPoolConfig {
    /// In C's words, which point into it.
    pub(crate) fn raw(&self) -> Result<sys::moepage_kv_pool_config> {
        Ok(sys::moepage_kv_pool_config {
            block_tokens: self.block_tokens,
            layers: count(self.bytes_per_token.len(), "layers")?,
            blocks_per_granule: self.blocks_per_granule,
            bytes_per_token: self.bytes_per_token.as_ptr(),
            blocks: self.blocks,
            max_sequences: self.max_sequences,
            ..Default::default()
        })
    }
}

/// The pool of KV blocks of one device. Any thread may use it at any time.
pub struct KvPool<'a> {
    pub(crate) handle: Handle<sys::moepage_kv_pool>,
    pub(crate) device: Ref<'a, Device>,
    bytes_per_token: Vec<u32>,
    block_tokens: u32,
    _parents: Outlived<'a>,
}

// SAFETY: docs/threading.md: any thread, one call at a time per sequence, which `Sequence` sees to;
// creation passes the device's gate, destruction takes the value.
unsafe impl Send for KvPool<'_> {}
// SAFETY: the same.
unsafe impl Sync for KvPool<'_> {}

impl<'a> KvPool<'a> {
    /// A pool on the device's arena. [`crate::Status::Busy`] while a step is open on the device.
    pub fn create(device: impl Into<Ref<'a, Device>>, config: &KvPoolConfig) -> Result<Self> {
        let device = device.into();
        let raw = config.raw()?;
        let handle = set_up(std::slice::from_ref(&device.gate), || {
            Handle::create(|out| {
                // SAFETY: the device is live and outlives the pool; nobody sets anything up or
                // steps on it meanwhile.
                unsafe { sys::moepage_kv_pool_create(device.raw(), &raw, out) }
            })
        })?;
        KvPool::new(handle, device, config.bytes_per_token.clone())
    }

    /// Bytes of arena that a pool with this config, whose `blocks` must be given, would take.
    pub fn sizes(config: &KvPoolConfig) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: all pointers are valid for the call.
        check(unsafe { sys::moepage_kv_pool_sizes(&config.raw()?, &mut bytes) })?;
        Ok(bytes)
    }

    pub(crate) fn new(
        handle: Handle<sys::moepage_kv_pool>,
        device: Ref<'a, Device>,
        bytes_per_token: Vec<u32>,
    ) -> Result<Self> {
        let _parents = Outlived::default();
        let mut pool = KvPool { handle, device, bytes_per_token, block_tokens: 0, _parents };
        pool.block_tokens = pool.info()?.block_tokens;
        Ok(pool)
    }

    /// Its blocks, and its counters since creation.
    pub fn info(&self) -> Result<KvPoolInfo> {
        let mut info = KvPoolInfo::default();
        // SAFETY: the handle is live; `info` says its size.
        check(unsafe { sys::moepage_kv_pool_get_info(self.raw(), &mut info) })?;
        Ok(info)
    }

    /// Would new sequences of so many tokens each fit right now? Takes nothing.
    pub fn admit(&self, tokens: &[u64]) -> Result<KvAdmission> {
        let n = count(tokens.len(), "sequences")?;
        let mut answer = KvAdmission::default();
        // SAFETY: `tokens` has `n` entries; `answer` says its size.
        check(unsafe { sys::moepage_kv_admit(self.raw(), tokens.as_ptr(), n, &mut answer) })?;
        Ok(answer)
    }

    /// How to address a layer's blocks; the same for the pool's whole life.
    pub fn layer(&self, layer: u32) -> Result<KvLayer<'_>> {
        let mut raw = sys::moepage_kv_layer_view::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_kv_pool_get_layer(self.raw(), layer, &mut raw) })?;
        let in_token = self.bytes_per_token[layer as usize] as usize;
        let bytes = in_token * self.block_tokens as usize;
        Ok(KvLayer { raw, bytes, pool: PhantomData })
    }

    /// Tokens per block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The handle, for what `moepage_sys` has and this crate has not. What is created with it must
    /// be destroyed before the pool is dropped.
    pub fn raw(&self) -> *mut sys::moepage_kv_pool {
        self.handle.raw()
    }
}

closes!(KvPool<'_>);

impl fmt::Debug for KvPool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KvPool").field(&self.info()).finish()
    }
}

/// Where the blocks of one layer lie.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'k> {
    raw: sys::moepage_kv_layer_view,
    bytes: usize,
    pool: PhantomData<&'k ()>,
}

impl<'k> KvLayer<'k> {
    /// Bytes that a block has in this layer.
    pub fn block_bytes(&self) -> usize {
        self.bytes
    }

    /// The device address of a block; NULL in a layer that keeps no KV.
    pub fn address(&self, block: u32) -> *mut u8 {
        if self.raw.base.is_null() {
            return std::ptr::null_mut();
        }
        let (granule, inside) = (block / self.raw.id_stride, block % self.raw.id_stride);
        let offset =
            u64::from(granule) * self.raw.granule_bytes + u64::from(inside) * self.raw.block_bytes;
        self.raw.base.cast::<u8>().wrapping_add(offset as usize)
    }

    /// A block's numbers, to read.
    ///
    /// # Safety
    /// The device is the host. The block is of a [`crate::KvTable`] of an open step, as long as the
    /// slice lives, and no mutable slice of it is there at the same time.
    ///
    /// # Panics
    /// If the caller's layout puts blocks where these elements cannot be.
    pub unsafe fn block<T: Element>(&self, block: u32) -> &'k [T] {
        let (data, n) = self.elements(block);
        // SAFETY: checked to be aligned and inside. The caller promises that the block stays, and
        // that nobody writes it.
        unsafe { std::slice::from_raw_parts(data, n) }
    }

    /// A block's numbers, to write.
    ///
    /// # Safety
    /// As for [`KvLayer::block`], and no other slice of it is there at the same time. What lies
    /// before the tokens that were appended last may be shared with forks: it is only read.
    ///
    /// # Panics
    /// As for [`KvLayer::block`].
    pub unsafe fn block_mut<T: Element>(&self, block: u32) -> &'k mut [T] {
        let (data, n) = self.elements(block);
        // SAFETY: as in `block`, and the caller promises that there is no other slice.
        unsafe { std::slice::from_raw_parts_mut(data, n) }
    }

    fn elements<T: Element>(&self, block: u32) -> (*mut T, usize) {
        let data = self.address(block).cast::<T>();
        let aligned = data as usize % std::mem::align_of::<T>() == 0;
        assert!(!data.is_null() && aligned, "block {block} lies at {data:?}");
        (data, self.bytes / std::mem::size_of::<T>())
    }
}

/// A sequence of tokens in a KV pool; freed when it is dropped.
///
/// Its calls are for one thread at a time. What changes it takes it mutably, so that it stands
/// still while a step that names it is open.
pub struct Sequence<'k> {
    id: sys::moepage_seq,
    pool: Ref<'k, KvPool<'k>>,
    /// `Send`, and not `Sync`.
    one_thread: PhantomData<Cell<()>>,
}

/// What a sequence is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceInfo {
    /// Tokens that there is room for.
    pub tokens: u64,
    /// Blocks that they take.
    pub blocks: u64,
    /// On the host.
    pub swapped: bool,
}

impl<'k> Sequence<'k> {
    /// A new, empty one. [`crate::Status::WouldNotFit`] when as many as may be are live.
    pub fn create(pool: impl Into<Ref<'k, KvPool<'k>>>) -> Result<Self> {
        let pool = pool.into();
        let mut id = 0;
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_kv_create(pool.raw(), &mut id) })?;
        Ok(Sequence { id, pool, one_thread: PhantomData })
    }

    /// Makes room for more tokens, all or nothing: [`crate::Status::WouldNotFit`] takes no block.
    pub fn append(&mut self, tokens: u64, stream: Stream) -> Result<()> {
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_append(self.pool.raw(), self.id, tokens, stream.raw()) })
    }

    /// Drops tokens from the end, down to `tokens`.
    pub fn truncate(&mut self, tokens: u64) -> Result<()> {
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_truncate(self.pool.raw(), self.id, tokens) })
    }

    /// A second sequence with the same tokens; blocks are shared until one side writes.
    pub fn fork(&mut self) -> Result<Sequence<'k>> {
        let mut id = 0;
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_fork(self.pool.raw(), self.id, &mut id) })?;
        Ok(Sequence { id, pool: self.pool.clone(), one_thread: PhantomData })
    }

    /// Copies it to host memory and frees its blocks. Blocks.
    pub fn swap_out(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_swap_out(self.pool.raw(), self.id, stream.raw()) })
    }

    /// Brings it back; [`crate::Status::WouldNotFit`] leaves it swapped and whole. Blocks.
    pub fn swap_in(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_swap_in(self.pool.raw(), self.id, stream.raw()) })
    }

    /// How long it is, and where.
    pub fn info(&self) -> Result<SequenceInfo> {
        let table = self.table()?;
        let swapped = table.swapped != 0;
        Ok(SequenceInfo { tokens: table.n_tokens, blocks: table.n_blocks, swapped })
    }

    /// Its id in C.
    pub fn id(&self) -> sys::moepage_seq {
        self.id
    }

    /// Frees it, as dropping it does, and says whether all went well.
    pub fn free(self) -> Result<()> {
        let mut this = std::mem::ManuallyDrop::new(self);
        let freed = this.give_back();
        // SAFETY: `this` is never used again.
        unsafe { std::ptr::drop_in_place(&mut this.pool) };
        freed
    }

    fn give_back(&mut self) -> Result<()> {
        // SAFETY: pool and sequence are live.
        check(unsafe { sys::moepage_kv_free(self.pool.raw(), self.id) })
    }

    pub(crate) fn pool(&self) -> &KvPool<'k> {
        &self.pool
    }

    /// Its blocks may move once no step is open on the pool.
    pub(crate) fn table(&self) -> Result<sys::moepage_kv_table> {
        let mut table = sys::moepage_kv_table::default();
        // SAFETY: pool and sequence are live; `table` says its size.
        check(unsafe { sys::moepage_kv_get_table(self.pool.raw(), self.id, &mut table) })?;
        Ok(table)
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}

impl fmt::Debug for Sequence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("id", &self.id).field("info", &self.info()).finish()
    }
}

/// Moves the boundary between experts and KV on their device: afterwards there are so many slots
/// and blocks, rounded up to whole granules; 0 leaves that side as it is. A refused move leaves the
/// old split.
pub fn set_split(
    experts: Option<&crate::ExpertPool<'_>>,
    kv: Option<&KvPool<'_>>,
    expert_slots: u64,
    kv_blocks: u64,
    stream: Stream,
) -> Result<()> {
    let device = match (experts, kv) {
        (Some(experts), _) => experts.devices.first().map(|device| &**device),
        (None, Some(kv)) => Some(kv.device()),
        (None, None) => None,
    };
    let device = device.ok_or_else(|| Error::argument("neither pool is given"))?;
    let one_at_a_time = crate::gate::lock(&device.gate.split);
    // SAFETY: the handles are live or NULL; moves on a device come one at a time.
    let status = unsafe {
        sys::moepage_split_set(
            experts.map_or(std::ptr::null_mut(), |pool| pool.raw()),
            kv.map_or(std::ptr::null_mut(), |pool| pool.raw()),
            expert_slots,
            kv_blocks,
            stream.raw(),
        )
    };
    drop(one_at_a_time);
    check(status)
}

/// The device's gate, for what is set up with the pool.
pub(crate) fn gate_of(pool: &KvPool<'_>) -> Arc<crate::gate::Gate> {
    Arc::clone(&pool.device.gate)
}
