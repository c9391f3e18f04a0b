//! A device with a byte budget.
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use moepage_sys as sys;

use crate::error::Error;
use crate::error::{check, Result};
use crate::gate::Gate;
use crate::handle::{closes, Handle};
use crate::log::{Log, Logger};
use crate::types::{c_text, text_at, Activation};
use crate::{Math, Stream};

/// How a device is opened. Zero is the default of everything but `budget_bytes`.
#[derive(Default)]
pub struct DeviceConfig {
    /// Hard limit of device bytes, all uses together; required.
    pub budget_bytes: u64,
    /// Of the budget, for sessions' scratch; 0 = a sixteenth, at most 256 MiB.
    pub workspace_bytes: u64,
    /// Host: threads that a kernel may use; 0 = one per online CPU.
    pub threads: u32,
    /// Host: throttle of copies into the arena; 0 = off.
    pub bus_bytes_per_s: u64,
    /// Threads that read the cold tier; 0 = 4.
    pub io_threads: u32,
    /// CUDA: names loads, decodes and kernels to NVIDIA's profilers.
    pub ranges: bool,
    /// Receives the device's messages.
    pub log: Option<Logger>,
    /// [`Device::set_budget`] raises the budget up to this; 0 = `budget_bytes`.
    pub max_budget_bytes: u64,
    /// Free memory that [`Device::follow_memory`] leaves to others; 0 = a sixteenth of `max_budget_bytes`.
    pub reserve_bytes: u64,
}

/// As a `budget_bytes`: what [`Device::follow_memory`] would set.
pub const BUDGET_AUTO: u64 = sys::MOEPAGE_BUDGET_AUTO;

/// What a device is and holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo<'d> {
    /// `host`, or the name of another device.
    pub name: &'d str,
    /// Instruction set that kernels use.
    pub kernels: &'d str,
    /// Threads that kernels use.
    pub threads: u32,
    /// Hard limit.
    pub budget_bytes: u64,
    /// Experts and KV blocks are cut from this.
    pub arena_bytes: u64,
    /// Sessions' scratch and pools' staging are cut from this.
    pub workspace_bytes: u64,
    /// Held now.
    pub used_bytes: u64,
    /// The most held since the budget last shrank.
    pub peak_bytes: u64,
    /// Side of the arena given to experts.
    pub arena_expert_bytes: u64,
    /// Side of the arena given to KV blocks.
    pub arena_kv_bytes: u64,
    /// The throttle.
    pub bus_bytes_per_s: u64,
    /// Host memory that copies come from and that could not be pinned.
    pub pageable_bytes: u64,
    /// What the budget moves to; less than `budget_bytes` while something in use is in the way.
    pub budget_aim_bytes: u64,
    /// The most that the budget may be raised to.
    pub max_budget_bytes: u64,
    /// Free memory that a budget which follows it leaves to others.
    pub reserve_bytes: u64,
}

/// A device. Any thread may use it at any time.
pub struct Device {
    pub(crate) handle: Handle<sys::moepage_device, Log>,
    pub(crate) gate: Arc<Gate>,
    is_host: bool,
}

// SAFETY: docs/threading.md: devices are for any thread. Closing, which is not, takes the value.
unsafe impl Send for Device {}
// SAFETY: the same; what borrows a device and is set-up passes its gate.
unsafe impl Sync for Device {}

/// The config in C's words.
pub(crate) fn raw_config(config: &DeviceConfig, log: &Log) -> sys::moepage_device_config {
    sys::moepage_device_config {
        threads: config.threads,
        budget_bytes: config.budget_bytes,
        workspace_bytes: config.workspace_bytes,
        bus_bytes_per_s: config.bus_bytes_per_s,
        log: log.function(),
        log_user: log.user(),
        io_threads: config.io_threads,
        ranges: u32::from(config.ranges),
        max_budget_bytes: config.max_budget_bytes,
        reserve_bytes: config.reserve_bytes,
        ..Default::default()
    }
}

impl Device {
    /// Opens `host` or `cuda:N`, and maps its whole arena.
    pub fn open(name: &str, mut config: DeviceConfig) -> Result<Self> {
        let name: CString = c_text(name, "device")?;
        let log = Log::new(config.log.take());
        let raw = raw_config(&config, &log);
        let handle = Handle::create_keeping(log, |out| {
            // SAFETY: all pointers are valid for the call; the log lives in the handle.
            unsafe { sys::moepage_device_open(name.as_ptr(), &raw, out) }
        })?;
        Device::new(handle)
    }

    pub(crate) fn new(handle: Handle<sys::moepage_device, Log>) -> Result<Self> {
        let mut device = Device { handle, gate: Arc::default(), is_host: false };
        device.is_host = device.info()?.name == "host";
        Ok(device)
    }

    /// What it is and holds now.
    pub fn info(&self) -> Result<DeviceInfo<'_>> {
        let mut raw = sys::moepage_device_info::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_device_get_info(self.raw(), &mut raw) })?;
        Ok(DeviceInfo {
            // SAFETY: both texts live as long as the device.
            name: unsafe { text_at(raw.name) },
            // SAFETY: the same.
            kernels: unsafe { text_at(raw.kernels) },
            threads: raw.threads,
            budget_bytes: raw.budget_bytes,
            arena_bytes: raw.arena_bytes,
            workspace_bytes: raw.workspace_bytes,
            used_bytes: raw.used_bytes,
            peak_bytes: raw.peak_bytes,
            arena_expert_bytes: raw.arena_expert_bytes,
            arena_kv_bytes: raw.arena_kv_bytes,
            bus_bytes_per_s: raw.bus_bytes_per_s,
            pageable_bytes: raw.pageable_bytes,
            budget_aim_bytes: raw.budget_aim_bytes,
            max_budget_bytes: raw.max_budget_bytes,
            reserve_bytes: raw.reserve_bytes,
        })
    }

    /// Moves the budget while pools serve. `Busy` while something in use is in the way of a smaller one, which is then
    /// the aim ([`DeviceInfo::budget_aim_bytes`]): the same call, between steps, goes on.
    pub fn set_budget(&self, bytes: u64, stream: Stream) -> Result<()> {
        let one_at_a_time = crate::gate::lock(&self.gate.split);
        // SAFETY: the device is live; moves on it come one at a time.
        let status = unsafe { sys::moepage_device_set_budget(self.raw(), bytes, stream.raw()) };
        drop(one_at_a_time);
        check(status)
    }

    /// Sets the budget that leaves the reserve of free memory to others; for between steps, now and then. Errors are
    /// those of [`Device::set_budget`].
    pub fn follow_memory(&self, stream: Stream) -> Result<()> {
        let one_at_a_time = crate::gate::lock(&self.gate.split);
        // SAFETY: as above.
        let status = unsafe { sys::moepage_device_follow_memory(self.raw(), stream.raw()) };
        drop(one_at_a_time);
        check(status)
    }

    /// Dense products on a host device: `out[r] = w x[r] + bias`, of rows of `n_in` elements, with
    /// `w` `[n_out][n_in]` and `out` `[rows][n_out]`; `n_out` is `out.len()` over the rows. The bits of
    /// a row depend on it and the weights alone. For blocks and FP8 there is [`Device::linear_raw`].
    pub fn linear<X: Activation, W: Activation>(
        &self,
        math: Math,
        n_in: usize,
        x: &[X],
        w: &[W],
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<()> {
        let rows = x.len().checked_div(n_in).unwrap_or(0);
        let n_out = out.len().checked_div(rows).unwrap_or(0);
        let fits = rows > 0
            && x.len() == rows * n_in
            && out.len() == rows * n_out
            && n_out.checked_mul(n_in) == Some(w.len())
            && bias.map_or(true, |bias| bias.len() == n_out)
            && [rows, n_in, n_out].iter().all(|&n| u32::try_from(n).is_ok());
        if !fits {
            return Err(Error::argument("linear: x, w, bias and out are of no common shape"));
        }
        let raw = sys::moepage_linear {
            math: math.code(),
            n_rows: rows as u32,
            n_in: n_in as u32,
            n_out: n_out as u32,
            x_dtype: X::DTYPE.code(),
            w_dtype: W::DTYPE.code(),
            x: x.as_ptr().cast(),
            w: w.as_ptr().cast(),
            bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().cast()),
            out: out.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: the slices have what the shape says, and the call is done with them when it returns.
        unsafe { self.linear_raw(&raw) }
    }

    /// The same for weights in blocks or FP8, and rows that lie apart.
    ///
    /// # Safety
    /// The pointers are as `moepage_linear` in `moepage.h` wants them.
    pub unsafe fn linear_raw(&self, linear: &sys::moepage_linear) -> Result<()> {
        // SAFETY: the handle is live; the rest is the caller's promise.
        check(unsafe { sys::moepage_device_linear(self.raw(), linear) })
    }

    /// Whether its memory is the CPU's, so that this crate can show it as slices.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// The handle, for what `moepage_sys` has and this crate has not. What is created with it must
    /// be destroyed before the device is dropped.
    pub fn raw(&self) -> *mut sys::moepage_device {
        self.handle.raw()
    }
}

closes!(Device);

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info()).finish()
    }
}
