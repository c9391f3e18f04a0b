//! Expert weights at addresses that never change, for kernels that know nothing of paging.
use std::fmt;
use std::os::raw::c_void;
use std::sync::Arc;

use moepage_sys as sys;

use crate::banks::ExpertTensor;
use crate::device::Device;
use crate::error::{check, Error, Result, Status};
use crate::experts::DeviceBytes;
use crate::gate::set_up;
use crate::handle::{closes, Handle, Outlived, Ref};
use crate::model::Model;
use crate::types::{numbered, slice_at, Stream, TensorRef};

numbered! {
    /// What a layer of a [`PagedTensors`] is.
    PagedState {
        /// It has no memory; its addresses show nothing, or what their last memory has become.
        Unmapped = MOEPAGE_PAGED_UNMAPPED,
        /// Its bytes are on their way.
        Loading = MOEPAGE_PAGED_LOADING,
        /// Its bytes are there.
        Resident = MOEPAGE_PAGED_RESIDENT,
        /// Its addresses belong to another layer's bytes already.
        Evicting = MOEPAGE_PAGED_EVICTING,
    }
}

/// How paged tensors are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct PagedConfig {
    /// Layers that have memory at once; 0 = 2.
    pub buffers: u32,
    /// Experts of each layer that are kept compressed in device memory.
    pub compressed_experts: u32,
    /// Host memory for experts that are read from a file or pack; 0 = none.
    pub host_tier_bytes: u64,
}

impl PagedConfig {
    fn raw(&self) -> sys::moepage_paged_config {
        sys::moepage_paged_config {
            buffers: self.buffers,
            compressed_experts: self.compressed_experts,
            host_tier_bytes: self.host_tier_bytes,
            ..Default::default()
        }
    }
}

/// Where one tensor of all experts of all layers lies.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PagedAddress {
    /// Device address of layer 0, expert 0.
    pub base: *mut c_void,
    /// Bytes from expert to expert: a layer is a dense tensor.
    pub expert_stride: u64,
    /// Bytes from layer to layer.
    pub layer_stride: u64,
}

/// All experts of a model at fixed addresses, with memory behind a few layers at a time. Takes the
/// experts' side of a device's arena. One thread uses it at a time.
pub struct PagedTensors<'a> {
    handle: Handle<sys::moepage_paged>,
    tensors: Vec<ExpertTensor>,
    experts: u64,
    device: Ref<'a, Device>,
    model: Ref<'a, Model>,
    _parents: Outlived<'a>,
}

// SAFETY: docs/threading.md: one thread at a time, whichever; the parents are `Sync`.
unsafe impl Send for PagedTensors<'_> {}

impl<'a> PagedTensors<'a> {
    /// [`Status::Busy`] while a step is open on the device, or another holds the experts' side.
    pub fn create(
        device: impl Into<Ref<'a, Device>>,
        model: impl Into<Ref<'a, Model>>,
        config: &PagedConfig,
    ) -> Result<Self> {
        let (device, model) = (device.into(), model.into());
        let gate = Arc::clone(&device.gate);
        let handle = set_up(std::slice::from_ref(&gate), || {
            Handle::create(|out| {
                let raw = config.raw();
                // SAFETY: device and model are live, and outlive what is made; nobody sets
                // anything up or steps on the device meanwhile.
                unsafe { sys::moepage_paged_create(device.raw(), model.raw(), &raw, out) }
            })
        })?;
        let experts = u64::from(model.info()?.experts);
        let (tensors, _parents) = (model.expert_tensors()?, Outlived::default());
        Ok(PagedTensors { handle, tensors, experts, device, model, _parents })
    }

    /// What [`PagedTensors::create`] would take.
    pub fn sizes(device: &Device, model: &Model, config: &PagedConfig) -> Result<DeviceBytes> {
        let mut sizes = DeviceBytes { workspace: 0, arena: 0 };
        let (workspace, arena) = (&mut sizes.workspace, &mut sizes.arena);
        let raw = config.raw();
        // SAFETY: all pointers are valid for the call.
        check(unsafe {
            sys::moepage_paged_sizes(device.raw(), model.raw(), &raw, workspace, arena)
        })?;
        Ok(sizes)
    }

    /// Where a tensor lies: constant as long as this lives.
    pub fn address(&self, tensor: u32) -> Result<PagedAddress> {
        let mut raw = sys::moepage_paged_tensor::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_paged_get_tensor(self.raw(), tensor, &mut raw) })?;
        Ok(PagedAddress {
            base: raw.base,
            expert_stride: raw.expert_stride,
            layer_stride: raw.layer_stride,
        })
    }

    /// Begins to bring a layer, into a free buffer or that of the layer materialised longest ago.
    pub fn materialise(&self, layer: u32) -> Result<()> {
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_paged_materialise(self.raw(), layer) })
    }

    /// Waits for a layer's bytes, and keeps them there until the value is dropped.
    pub fn acquire(&self, layer: u32, stream: Stream) -> Result<AcquiredLayer<'_>> {
        // SAFETY: the handle is live.
        let status = unsafe { sys::moepage_paged_acquire(self.raw(), layer, stream.raw()) };
        self.model.check(status)?;
        Ok(AcquiredLayer { paged: self, layer, stream })
    }

    /// Keeps so many experts of each layer compressed. [`Status::Busy`] while those that are to go
    /// are in use: the same call succeeds soon.
    pub fn resize(&self, compressed: u32) -> Result<()> {
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_paged_resize(self.raw(), compressed) })
    }

    /// What a layer is now.
    pub fn state(&self, layer: u32) -> Result<PagedState> {
        let mut state = 0;
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_paged_get_state(self.raw(), layer, &mut state) })?;
        PagedState::from_code(state)
            .ok_or_else(|| Error::new(Status::Unsupported, format!("layer state {state}")))
    }

    /// The handle, for what `moepage_sys` has and this crate has not.
    pub fn raw(&self) -> *mut sys::moepage_paged {
        self.handle.raw()
    }
}

closes!(PagedTensors<'_>);

impl fmt::Debug for PagedTensors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedTensors").field("tensors", &self.tensors).finish_non_exhaustive()
    }
}

/// A layer whose bytes are there, and stay.
#[must_use = "a layer that is dropped is released"]
#[derive(Debug)]
pub struct AcquiredLayer<'p> {
    paged: &'p PagedTensors<'p>,
    layer: u32,
    stream: Stream,
}

impl AcquiredLayer<'_> {
    /// One tensor of all its experts, on a host device: `[experts, shape..]`, flat in `bytes`, and
    /// of one expert's shape in [`TensorRef::shape`] if it has four dimensions already.
    pub fn tensor(&self, tensor: u32) -> Result<TensorRef<'_>> {
        if !self.paged.device.is_host() {
            let text = "a tensor's slice is for host devices: elsewhere, use its address";
            return Err(Error::new(Status::Unsupported, text));
        }
        let place = self.paged.address(tensor)?;
        let of = &self.paged.tensors[tensor as usize];
        let dtype = of.dtype().ok_or_else(|| {
            Error::new(Status::Unsupported, format!("tensor {tensor} is of an unknown dtype"))
        })?;
        let offset = u64::from(self.layer) * place.layer_stride;
        let data = place.base.cast::<u8>().wrapping_add(offset as usize);
        let bytes = (self.paged.experts * place.expert_stride) as usize;
        // SAFETY: the layer is acquired: its bytes are mapped, and not written, until its release.
        let bytes = unsafe { slice_at(data as *const u8, bytes) };
        let mut shape = vec![self.paged.experts];
        shape.extend(of.shape());
        let whole = if shape.len() <= sys::MOEPAGE_MAX_RANK { &shape[..] } else { of.shape() };
        Ok(TensorRef::new(dtype, whole, bytes))
    }

    /// Releases it, as dropping it does, and says whether all went well. What was submitted to
    /// `stream` so far was the last to read it.
    pub fn release(mut self, stream: Stream) -> Result<()> {
        self.stream = stream;
        std::mem::ManuallyDrop::new(self).give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        let (paged, stream) = (self.paged.raw(), self.stream.raw());
        // SAFETY: the layer is acquired.
        check(unsafe { sys::moepage_paged_release(paged, self.layer, stream) })
    }
}

impl Drop for AcquiredLayer<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
