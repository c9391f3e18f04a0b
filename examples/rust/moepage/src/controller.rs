//! Controllers of working sets: they move the split while the pools serve.
use std::fmt;
use std::mem::ManuallyDrop;

use moepage_sys as sys;

use crate::error::{check, Result};
use crate::experts::ExpertPool;
use crate::gate::{lock, ordered, set_up};
use crate::handle::{Handle, Ref};
use crate::kv::{gate_of, KvPool};
use crate::predictor::{Predictor, Rightsize};
use crate::types::{count, numbered, Stream};

pub use sys::moepage_controller_info as ControllerInfo;

numbered! {
    default MvWsa;
    /// How a controller decides.
    ControlMode {
        /// Both sides buy the same latency per byte.
        MvWsa = MOEPAGE_CONTROL_MV_WSA,
        /// KV's peak and headroom, the rest to experts.
        DualResize = MOEPAGE_CONTROL_DUAL_RESIZE,
        /// How many experts of each layer are dense, compressed, or on the host.
        Planner = MOEPAGE_CONTROL_PLANNER,
        /// Measures and predicts, moves nothing.
        Observe = MOEPAGE_CONTROL_OBSERVE,
        /// `expert_percent` of the arena for experts, once.
        Fixed = MOEPAGE_CONTROL_FIXED,
        /// The experts' working set first.
        Flux = MOEPAGE_CONTROL_FLUX,
    }
}

numbered! {
    default Swap;
    /// What the host does about KV that is not on the device.
    KvMiss {
        /// Swaps it in.
        Swap = MOEPAGE_KV_MISS_SWAP,
        /// Computes it again.
        Recompute = MOEPAGE_KV_MISS_RECOMPUTE,
    }
}

numbered! {
    /// Why a controller did what it did.
    ControlOutcome {
        /// The burst is not over, or too little has been seen.
        Waits = MOEPAGE_CONTROL_WAITS,
        /// What there is is best, or nearly.
        Stays = MOEPAGE_CONTROL_STAYS,
        /// The split moved.
        Moved = MOEPAGE_CONTROL_MOVED,
        /// A move waits for slots or blocks in use.
        Draining = MOEPAGE_CONTROL_DRAINING,
        /// A move could not be made, or not to its end.
        Refused = MOEPAGE_CONTROL_REFUSED,
        /// No split has room for one layer's experts and KV's floor.
        Infeasible = MOEPAGE_CONTROL_INFEASIBLE,
    }
}

/// How a controller is made. Zero is the default.
#[derive(Clone, Debug, Default)]
pub struct ControllerConfig {
    /// How it decides.
    pub mode: ControlMode,
    /// Steps after which it may act; 0 = 64.
    pub burst_steps: u32,
    /// What the host does about missing KV.
    pub kv_miss: KvMiss,
    /// Of the longest sequence; 0 = what has been seen.
    pub context_tokens: u64,
    /// Sequences served at once; 0 = 1.
    pub concurrency: u32,
    /// [`ControlMode::Fixed`]: 1..99.
    pub expert_percent: u32,
    /// It also decides how many sequences run at once, which [`KvPool::admit`](crate::KvPool::admit) heeds.
    pub admission: bool,
    /// With `admission`: of the mean time to the first token, in ns; 0 = none.
    pub target_ttft_ns: u64,
    /// And of the time between a sequence's tokens.
    pub target_tpot_ns: u64,
    /// What a burst counts one burst later; 0 = 700.
    pub decay_permille: u32,
    /// Least predicted gain; 0 = 20.
    pub gate_permille: u32,
    /// Most of the experts' side moved at once; 0 = 250.
    pub rate_permille: u32,
    /// Experts per layer, less is not moved; 0 = 1.
    pub dead_zone: u32,
    /// Of KV over what was used; 0 = 100.
    pub headroom_permille: u32,
    /// [`ControlMode::Planner`]: 0 = 900.
    pub theta_permille: u32,
    /// Keys whose reuse is tracked; 0 = 16384.
    pub max_samples: u32,
}

impl ControllerConfig {
    fn raw(&self) -> sys::moepage_controller_config {
        sys::moepage_controller_config {
            mode: self.mode.code(),
            burst_steps: self.burst_steps,
            kv_miss: self.kv_miss.code(),
            context_tokens: self.context_tokens,
            concurrency: self.concurrency,
            expert_percent: self.expert_percent,
            admission: u32::from(self.admission),
            target_ttft_ns: self.target_ttft_ns,
            target_tpot_ns: self.target_tpot_ns,
            decay_permille: self.decay_permille,
            gate_permille: self.gate_permille,
            rate_permille: self.rate_permille,
            dead_zone: self.dead_zone,
            headroom_permille: self.headroom_permille,
            theta_permille: self.theta_permille,
            max_samples: self.max_samples,
            ..Default::default()
        }
    }
}

/// What a tick found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerReport {
    /// `None` if a later library says something that this crate does not know.
    pub outcome: Option<ControlOutcome>,
    /// Slots now.
    pub expert_slots: u64,
    /// Blocks now.
    pub kv_blocks: u64,
    /// What is predicted to be best.
    pub target_slots: u64,
    /// What is predicted to be best.
    pub target_blocks: u64,
    /// Per layer, now.
    pub compressed_experts: u32,
    /// Per layer, wanted.
    pub target_compressed: u32,
    /// Sequences that should run at once; 0 = no limit.
    pub target_running: u32,
}

/// What a miss curve is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveOf {
    /// Misses of experts, by slots.
    Experts,
    /// Misses of KV, by blocks and in blocks.
    Kv,
}

/// Watches a pair of pools, and moves the split between them. One that is dropped while a step is
/// open on their device ends with the step.
pub struct Controller<'p> {
    handle: ManuallyDrop<Handle<sys::moepage_controller>>,
    experts: Ref<'p, ExpertPool<'p>>,
    _kv: Option<Ref<'p, KvPool<'p>>>,
    users: Vec<Ref<'p, Predictor>>,
}

// SAFETY: docs/threading.md: ticks and destruction come one at a time, and take the value mutably
// or whole; the rest is for any thread. A tick that finds a step open moves no live KV; destruction
// passes the device's gate, as an ending step tells its pool's controller.
unsafe impl Send for Controller<'_> {}
// SAFETY: the same.
unsafe impl Sync for Controller<'_> {}

impl<'p> Controller<'p> {
    /// One per pool. Without `kv` no split moves. [`crate::Status::Busy`] while a step is open.
    pub fn create(
        experts: impl Into<Ref<'p, ExpertPool<'p>>>,
        kv: Option<Ref<'p, KvPool<'p>>>,
        config: &ControllerConfig,
    ) -> Result<Self> {
        let experts = experts.into();
        let mut gates: Vec<_> = experts.gates.to_vec();
        gates.extend(kv.iter().map(|kv| gate_of(kv)));
        let raw_kv = kv.as_ref().map_or(std::ptr::null_mut(), |kv| kv.raw());
        let handle = set_up(&ordered(gates), || {
            Handle::create(|out| {
                let raw = config.raw();
                // SAFETY: the pools are live, and outlive the controller.
                unsafe { sys::moepage_controller_create(experts.raw(), raw_kv, &raw, out) }
            })
        })?;
        Ok(Controller { handle: ManuallyDrop::new(handle), experts, _kv: kv, users: Vec::new() })
    }

    /// Between steps: counts what has been since the last tick, and at a burst's end acts.
    pub fn tick(&mut self, stream: Stream) -> Result<ControllerReport> {
        let mut raw = sys::moepage_controller_report::default();
        let one_at_a_time = self.experts.devices.first().map(|device| lock(&device.gate.split));
        // SAFETY: the handle is live; ticks and moves of the split come one at a time.
        let status = unsafe { sys::moepage_controller_tick(self.raw(), stream.raw(), &mut raw) };
        drop(one_at_a_time);
        check(status)?;
        Ok(ControllerReport {
            outcome: ControlOutcome::from_code(raw.outcome),
            expert_slots: raw.expert_slots,
            kv_blocks: raw.kv_blocks,
            target_slots: raw.target_slots,
            target_blocks: raw.target_blocks,
            compressed_experts: raw.compressed_experts,
            target_compressed: raw.target_compressed,
            target_running: raw.target_running,
        })
    }

    /// A host that keeps prefixes under names of its own says which it used.
    pub fn kv_use(&self, key: u64, tokens: u64) -> Result<()> {
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_controller_kv_use(self.raw(), key, tokens) })
    }

    /// Names the users that it serves: `coactivation` predictors, one for each, of their own sessions.
    /// Experts get no more slots than these need to cover so much of their choices (0 = 990).
    /// Replaces those named before; none end it.
    pub fn rightsize(
        &mut self,
        users: Vec<Ref<'p, Predictor>>,
        coverage_permille: u32,
    ) -> Result<()> {
        let raw: Vec<_> = users.iter().map(|user| user.raw()).collect();
        let n = count(raw.len(), "users")?;
        // SAFETY: the handles are live, and the predictors stay until others replace them.
        check(unsafe {
            sys::moepage_controller_rightsize(self.raw(), raw.as_ptr(), n, coverage_permille)
        })?;
        self.users = users;
        Ok(())
    }

    /// What a user needs; `experts` 0 = not sure yet.
    pub fn user(&self, index: usize) -> Result<Rightsize> {
        let mut raw = sys::moepage_rightsize::default();
        let index = count(index, "index")?;
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_controller_get_rightsize(self.raw(), index, &mut raw) })?;
        Ok(Rightsize::of(&raw))
    }

    /// What it has measured.
    pub fn info(&self) -> Result<ControllerInfo> {
        let mut info = ControllerInfo::default();
        // SAFETY: the handle is live; `info` says its size.
        check(unsafe { sys::moepage_controller_get_info(self.raw(), &mut info) })?;
        Ok(info)
    }

    /// The predicted warm misses of one burst at each size.
    pub fn curve(&self, of: CurveOf, sizes: &[u64]) -> Result<Vec<f64>> {
        let n = count(sizes.len(), "sizes")?;
        let mut misses = vec![0.0; sizes.len()];
        let kv = u32::from(of == CurveOf::Kv);
        let out = misses.as_mut_ptr();
        // SAFETY: both arrays have `n` entries.
        check(unsafe {
            sys::moepage_controller_get_curve(self.raw(), kv, sizes.as_ptr(), n, out)
        })?;
        Ok(misses)
    }

    /// The handle, for what `moepage_sys` has and this crate has not.
    pub fn raw(&self) -> *mut sys::moepage_controller {
        self.handle.raw()
    }
}

struct Ended(Handle<sys::moepage_controller>);

// SAFETY: any one thread may destroy a controller.
unsafe impl Send for Ended {}

impl Ended {
    fn destroy(self) {
        drop(self.0);
    }
}

impl Drop for Controller<'_> {
    fn drop(&mut self) {
        // SAFETY: dropped once, and not used afterwards.
        let ended = Ended(unsafe { ManuallyDrop::take(&mut self.handle) });
        // Pools with a controller are on one device. Should they be dropped before the steps of
        // other pools there have ended, the library refuses and they are leaked.
        self.experts.gates[0].when_idle(move || ended.destroy());
    }
}

impl fmt::Debug for Controller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Controller").field(&self.info()).finish()
    }
}
