//! The pool of expert slots.
use std::fmt;
use std::sync::Arc;

use moepage_sys as sys;

use crate::banks::ExpertTensor;
use crate::device::Device;
use crate::error::{check, Error, Result};
use crate::gate::{ordered, set_up, Gates};
use crate::handle::{closes, Handle, Outlived, Ref};
use crate::model::Model;
use crate::types::{c_text, count, numbered, pointer_or_null, Form};

pub use sys::moepage_expert_pool_info as ExpertPoolInfo;
pub use sys::moepage_session_stats as SessionStats;

numbered! {
    default Global;
    /// Who competes for slots.
    Scope {
        /// All layers for all slots.
        Global = MOEPAGE_SCOPE_GLOBAL,
        /// Every layer has a share of its own.
        Layer = MOEPAGE_SCOPE_LAYER,
    }
}

numbered! {
    default Explicit;
    /// Who chooses how many experts are compressed in device memory.
    Placement {
        /// `compressed_experts` as given.
        Explicit = MOEPAGE_PLACEMENT_EXPLICIT,
        /// In proportion to measured bandwidths.
        Bandwidth = MOEPAGE_PLACEMENT_BANDWIDTH,
    }
}

numbered! {
    default Versions;
    /// What the slots of a pool with two versions are.
    Serve {
        /// Each layer's hottest experts; of all others the low version computes.
        Versions = MOEPAGE_SERVE_VERSIONS,
        /// A cache as ever; low versions are for [`crate::Miss::Low`].
        Cache = MOEPAGE_SERVE_CACHE,
    }
}

numbered! {
    default Choices;
    /// What makes an expert hot.
    Hotness {
        /// How often it is chosen.
        Choices = MOEPAGE_HOTNESS_CHOICES,
        /// The sum of the weights that it is chosen with.
        Weights = MOEPAGE_HOTNESS_WEIGHTS,
    }
}

/// A second version of every expert, of fewer bits. What is computed is then an approximation.
#[derive(Clone, Debug)]
pub struct PrecisionConfig {
    /// What the slots are.
    pub serve: Serve,
    /// What slots hold; `None` = [`Form::Dense`].
    pub hi_form: Option<Form>,
    /// Smaller.
    pub lo_form: Form,
    /// Low versions only of experts without a high one.
    pub lo_fetched: bool,
    /// High versions per layer; 0 = all there is room for.
    pub hi_experts: u32,
    /// Between decisions; 0 = 1 s.
    pub interval_us: u32,
    /// Versions change after every so many steps; 0 = 1.
    pub window_steps: u32,
    /// Of the moving average of hotness; 0 = 0.5.
    pub alpha: f64,
    /// Hysteresis; 0 = 0.1, negative = none.
    pub margin: f64,
    /// Most on their way at once; 0 = 4.
    pub transitions: u32,
    /// What makes an expert hot.
    pub hotness: Hotness,
}

impl Default for PrecisionConfig {
    fn default() -> Self {
        PrecisionConfig {
            serve: Serve::default(),
            hi_form: None,
            lo_form: Form::Int4,
            lo_fetched: false,
            hi_experts: 0,
            interval_us: 0,
            window_steps: 0,
            alpha: 0.0,
            margin: 0.0,
            transitions: 0,
            hotness: Hotness::default(),
        }
    }
}

impl PrecisionConfig {
    fn raw(&self) -> sys::moepage_precision_config {
        sys::moepage_precision_config {
            serve: self.serve.code(),
            hi_form: self.hi_form.map_or(0, Form::code),
            lo_form: self.lo_form.code(),
            lo_fetched: u32::from(self.lo_fetched),
            hi_experts: self.hi_experts,
            interval_us: self.interval_us,
            window_steps: self.window_steps,
            alpha: self.alpha,
            margin: self.margin,
            transitions: self.transitions,
            hotness: self.hotness.code(),
            ..Default::default()
        }
    }
}

/// How an expert pool is made. Zero and `None` are the defaults.
#[derive(Clone, Debug, Default)]
pub struct ExpertPoolConfig {
    /// Who competes for slots.
    pub scope: Scope,
    /// Experts resident at once; 0 = all that the arenas still have.
    pub slots: u64,
    /// `lru`, `lfu`, `lfu-aged`, `sieve`, `s3fifo`, `lirs`, `finemoe`, `cycle`; `None` = `lru`.
    pub policy: Option<String>,
    /// Percentage of slots that prefill may take from what decode uses; 0 = off.
    pub scan_percent: u32,
    /// Prefetches are copied in pieces of this size; 0 = 2 MiB.
    pub chunk_bytes: u32,
    /// Host memory that caches experts of the cold tier; 0 = none.
    pub host_tier_bytes: u64,
    /// Form in which experts cross the bus; `None` = [`Form::Exph`] where the model has it.
    pub bus_form: Option<Form>,
    /// Per layer, kept coded in device memory.
    pub compressed_experts: u32,
    /// Who chooses how many.
    pub placement: Placement,
    /// Coded experts on their way at once; 0 = 4.
    pub staging_experts: u32,
    /// A second version of every expert.
    pub precision: Option<PrecisionConfig>,
    /// Form of the experts in slots, and on the bus, if a pack has it: an integer form is an
    /// approximation of which more fit. `None` = [`Form::Dense`].
    pub slot_form: Option<Form>,
}

impl ExpertPoolConfig {
    /// Calls with the config in C's words.
    pub(crate) fn with_raw<T>(
        &self,
        call: impl FnOnce(&sys::moepage_expert_pool_config) -> Result<T>,
    ) -> Result<T> {
        let policy = self.policy.as_ref().map(|name| c_text(name, "policy")).transpose()?;
        let precision = self.precision.as_ref().map(PrecisionConfig::raw);
        call(&sys::moepage_expert_pool_config {
            scope: self.scope.code(),
            slots: self.slots,
            policy: pointer_or_null(&policy),
            scan_percent: self.scan_percent,
            chunk_bytes: self.chunk_bytes,
            host_tier_bytes: self.host_tier_bytes,
            bus_form: self.bus_form.map_or(0, Form::code),
            compressed_experts: self.compressed_experts,
            placement: self.placement.code(),
            staging_experts: self.staging_experts,
            precision: precision.as_ref().map_or(std::ptr::null(), |precision| precision),
            slot_form: self.slot_form.map_or(0, Form::code),
            ..Default::default()
        })
    }
}

/// Device bytes that something takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Of the workspace of each device.
    pub workspace: u64,
    /// Of the arena of each device.
    pub arena: u64,
}

/// Where an expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// On no device.
    Absent,
    /// On its way to a slot.
    Loading {
        /// On its device.
        slot: u32,
        /// Index into the pool's devices.
        device: u32,
    },
    /// Complete in a slot.
    Resident {
        /// On its device.
        slot: u32,
        /// Index into the pool's devices.
        device: u32,
    },
}

/// The pool of expert slots on one or several devices. Any thread may use it at any time.
pub struct ExpertPool<'a> {
    pub(crate) handle: Handle<sys::moepage_expert_pool>,
    pub(crate) gates: Gates,
    pub(crate) tensors: Vec<Vec<ExpertTensor>>, // by layer
    pub(crate) is_host: bool,
    pub(crate) devices: Vec<Ref<'a, Device>>,
    pub(crate) model: Ref<'a, Model>,
    _parents: Outlived<'a>,
}

// SAFETY: docs/threading.md: lookup, info, pin and unpin are for any thread; creation and the split
// are set-up, and pass the gates; destruction takes the value.
unsafe impl Send for ExpertPool<'_> {}
// SAFETY: the same.
unsafe impl Sync for ExpertPool<'_> {}

impl<'a> ExpertPool<'a> {
    /// A pool on one device. [`crate::Status::Busy`] while a step is open on the device.
    pub fn create(
        device: impl Into<Ref<'a, Device>>,
        model: impl Into<Ref<'a, Model>>,
        config: &ExpertPoolConfig,
    ) -> Result<Self> {
        ExpertPool::create_on(vec![device.into()], model, config)
    }

    /// A pool on several devices: each expert lives on one of them, expert e on device e mod their number
    /// where all have room for equally many slots, else in proportion to that room.
    pub fn create_on(
        devices: Vec<Ref<'a, Device>>,
        model: impl Into<Ref<'a, Model>>,
        config: &ExpertPoolConfig,
    ) -> Result<Self> {
        let model = model.into();
        let raw: Vec<_> = devices.iter().map(|device| device.raw()).collect();
        let n = count(raw.len(), "devices")?;
        let gates = ordered(devices.iter().map(|device| Arc::clone(&device.gate)).collect());
        let handle = config.with_raw(|config| {
            set_up(&gates, || {
                Handle::create(|out| {
                    let (devices, model) = (raw.as_ptr(), model.raw());
                    // SAFETY: devices and model are live, and outlive the pool; nobody sets
                    // anything up or steps on the devices meanwhile.
                    unsafe { sys::moepage_expert_pool_create(devices, n, model, config, out) }
                })
                .map_err(|error| model.explain(error))
            })
        })?;
        ExpertPool::new(handle, devices, model)
    }

    pub(crate) fn new(
        handle: Handle<sys::moepage_expert_pool>,
        devices: Vec<Ref<'a, Device>>,
        model: Ref<'a, Model>,
    ) -> Result<Self> {
        Ok(ExpertPool {
            handle,
            gates: ordered(devices.iter().map(|device| Arc::clone(&device.gate)).collect()),
            tensors: model.all_tensors()?,
            is_host: devices.iter().all(|device| device.is_host()),
            devices,
            model,
            _parents: Outlived::default(),
        })
    }

    /// What a pool with this config would take of each of `devices` devices.
    pub fn sizes(model: &Model, config: &ExpertPoolConfig, devices: u32) -> Result<DeviceBytes> {
        let mut sizes = DeviceBytes { workspace: 0, arena: 0 };
        config.with_raw(|config| {
            let (workspace, arena) = (&mut sizes.workspace, &mut sizes.arena);
            // SAFETY: all pointers are valid for the call.
            check(unsafe {
                sys::moepage_expert_pool_sizes(model.raw(), config, devices, workspace, arena)
            })
        })?;
        Ok(sizes)
    }

    /// Its slots, and its counters since creation.
    pub fn info(&self) -> Result<ExpertPoolInfo> {
        let mut info = ExpertPoolInfo::default();
        // SAFETY: the handle is live; `info` says its size.
        check(unsafe { sys::moepage_expert_pool_get_info(self.raw(), &mut info) })?;
        Ok(info)
    }

    /// Sums over the ended steps of all sessions that the pool has had.
    pub fn stats(&self) -> Result<SessionStats> {
        let mut stats = SessionStats::default();
        // SAFETY: the handle is live; `stats` says its size.
        check(unsafe { sys::moepage_expert_pool_get_stats(self.raw(), &mut stats) })?;
        Ok(stats)
    }

    /// Where an expert is now; it may be elsewhere on return.
    pub fn lookup(&self, layer: u32, expert: u32) -> Result<Residency> {
        let mut raw = sys::moepage_residency::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_expert_pool_lookup(self.raw(), layer, expert, &mut raw) })?;
        let (slot, device) = (raw.slot as u32, raw.device);
        Ok(match raw.state {
            sys::MOEPAGE_EXPERT_LOADING => Residency::Loading { slot, device },
            sys::MOEPAGE_EXPERT_RESIDENT => Residency::Resident { slot, device },
            _ => Residency::Absent,
        })
    }

    /// Loads an expert if it is absent, and keeps it resident until the pin is dropped.
    pub fn pin(&self, layer: u32, expert: u32) -> Result<PinnedExpert<'_>> {
        // SAFETY: the handle is live.
        let status = unsafe { sys::moepage_expert_pool_pin(self.raw(), layer, expert) };
        self.model.check(status)?;
        Ok(PinnedExpert { pool: self, layer, expert })
    }

    /// The model whose experts it holds.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The devices that it is on.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().map(|device| &**device)
    }

    /// The handle, for what `moepage_sys` has and this crate has not. What is created with it must
    /// be destroyed before the pool is dropped.
    pub fn raw(&self) -> *mut sys::moepage_expert_pool {
        self.handle.raw()
    }

    pub(crate) fn need_host(&self, what: &str) -> Result<()> {
        if self.is_host {
            return Ok(());
        }
        Err(Error::new(
            crate::Status::Unsupported,
            format!("{what} is for host devices: elsewhere, use the raw one"),
        ))
    }
}

closes!(ExpertPool<'_>);

impl fmt::Debug for ExpertPool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExpertPool").field(&self.info()).finish()
    }
}

/// Keeps an expert resident. Pins count.
#[derive(Debug)]
pub struct PinnedExpert<'p> {
    pool: &'p ExpertPool<'p>,
    layer: u32,
    expert: u32,
}

impl Drop for PinnedExpert<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and this is the pin's owner.
        let _ = unsafe { sys::moepage_expert_pool_unpin(self.pool.raw(), self.layer, self.expert) };
    }
}
