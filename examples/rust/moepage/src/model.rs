//! A model: where experts' weights come from, and the tensors that are never paged.
use std::ffi::CStr;
use std::fmt;
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};

use moepage_sys as sys;

use crate::banks::{Banks, ExpertTensor, Lent, Panic, RawBanks};
use crate::engine::Lender;
use crate::error::{check, Error, Result, Status};
use crate::gate::lock;
use crate::handle::{called_back, closes, Handle};
use crate::log::{Log, Logger};
use crate::types::{c_path, c_text, slice_at, text_at, Dtype, ExpertActivation, Form, TensorRef};

pub use sys::moepage_form_info as FormInfo;
pub use sys::moepage_pack_stats as PackStats;

/// How a model is opened.
#[derive(Default)]
pub struct ModelConfig {
    /// Receives the model's messages.
    pub log: Option<Logger>,
}

/// A model's shape.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelInfo<'m> {
    /// `qwen3_moe`, ...; `banks` for a model without a name.
    pub architecture: &'m str,
    /// Transformer layers, dense ones included.
    pub layers: u32,
    /// Layers with routed experts.
    pub moe_layers: u32,
    /// Routed experts per MoE layer.
    pub experts: u32,
    /// Experts per token that the model's router chooses.
    pub top_k: u32,
    /// H.
    pub hidden: u32,
    /// I.
    pub expert_intermediate: u32,
    /// Always-active experts.
    pub shared_experts: u32,
    /// Tensors that an expert consists of.
    pub expert_tensors: u32,
    /// 0 when not known.
    pub vocabulary: u32,
    /// Bytes of one expert, in the layer that needs most.
    pub expert_bytes: u64,
    /// Distance between two slots.
    pub slot_bytes: u64,
    /// Bytes of all routed experts.
    pub routed_bytes: u64,
    /// Everything else.
    pub dense_bytes: u64,
    /// Whether [`crate::Layer::ffn`] can run these experts.
    pub ffn_supported: bool,
    /// Different types of experts among the layers: [`Model::layer_tensors`] has each layer's.
    pub layouts: u32,
    /// What experts compute between their projections.
    pub activation: ExpertActivation,
    /// Of [`ExpertActivation::SwigluClamped`], else 0.
    pub activation_alpha: f32,
    /// Of the same.
    pub activation_limit: f32,
}

/// An open model. Any thread may use it at any time.
pub struct Model {
    pub(crate) handle: Handle<sys::moepage_model, (Log, Lent)>,
}

// SAFETY: docs/threading.md: models are for any thread, read-only after opening. Closing takes the
// value. What the library calls back into is `Send` and `Sync` itself.
unsafe impl Send for Model {}
// SAFETY: the same.
unsafe impl Sync for Model {}

/// Of a tensor, as far as they are listed.
const LONGEST_NAME: usize = 1 << 16;

fn raw_config(log: &Log) -> sys::moepage_model_config {
    sys::moepage_model_config { log: log.function(), log_user: log.user(), ..Default::default() }
}

impl Model {
    /// Opens a Hugging Face checkpoint directory, a .gguf file, or a .moepack file.
    ///
    /// # Files that change
    /// Files stay open, and are read when their bytes are needed; nothing is mapped. Once one has
    /// been truncated or changed, whatever reads it fails with [`Status::Io`]. Replacing one by
    /// renaming another over it is safe. Slices from [`Model::find_tensor`] are of memory, and stay as
    /// they are.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Model::open_with(path, ModelConfig::default())
    }

    /// The same with a config.
    pub fn open_with(path: impl AsRef<Path>, config: ModelConfig) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let log = Log::new(config.log);
        let raw = raw_config(&log);
        let handle = Handle::create_keeping((log, Lent::default()), |out| {
            // SAFETY: all pointers are valid for the call; the log lives in the handle.
            unsafe { sys::moepage_model_open(path.as_ptr(), &raw, out) }
        })?;
        Ok(Model { handle })
    }

    /// The model that an engine opened.
    pub(crate) fn lent(raw: *mut sys::moepage_model, lender: &Arc<Lender>) -> Option<Self> {
        let keep = (Log::new(None), Lent::default());
        Handle::lent(raw, keep, lender).map(|handle| Model { handle })
    }

    /// Describes a model by its expert banks.
    pub fn from_banks(banks: Banks, config: ModelConfig) -> Result<Self> {
        let mut banks = RawBanks::new(banks)?;
        let lent = std::mem::take(&mut banks.lent);
        let log = Log::new(config.log);
        let raw = raw_config(&log);
        let handle = Handle::create_keeping((log, lent), |out| {
            // SAFETY: `banks` keeps what is copied, the handle what is borrowed; `RawBanks::new`
            // has checked that every pointer has its bytes.
            unsafe { sys::moepage_model_open_banks(&banks.raw, &raw, out) }
        })?;
        Ok(Model { handle })
    }

    /// Its shape.
    pub fn info(&self) -> Result<ModelInfo<'_>> {
        let mut raw = sys::moepage_model_info::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_model_get_info(self.raw(), &mut raw) })?;
        Ok(ModelInfo {
            // SAFETY: the text lives as long as the model.
            architecture: unsafe { text_at(raw.architecture) },
            layers: raw.layers,
            moe_layers: raw.moe_layers,
            experts: raw.experts,
            top_k: raw.top_k,
            hidden: raw.hidden,
            expert_intermediate: raw.expert_intermediate,
            shared_experts: raw.shared_experts,
            expert_tensors: raw.expert_tensors,
            vocabulary: raw.vocabulary,
            expert_bytes: raw.expert_bytes,
            slot_bytes: raw.slot_bytes,
            routed_bytes: raw.routed_bytes,
            dense_bytes: raw.dense_bytes,
            ffn_supported: raw.ffn_supported != 0,
            layouts: raw.layouts,
            activation: ExpertActivation::from_code(raw.activation)
                .unwrap_or(ExpertActivation::Other),
            activation_alpha: raw.activation_alpha,
            activation_limit: raw.activation_limit,
        })
    }

    /// What an expert of the first MoE layer consists of, and where in a slot it lies.
    pub fn expert_tensors(&self) -> Result<Vec<ExpertTensor>> {
        let n = self.info()?.expert_tensors;
        let mut raw = vec![sys::moepage_expert_tensor::default(); n as usize];
        let out = raw.as_mut_ptr();
        // SAFETY: `out` has room for `n`.
        check(unsafe { sys::moepage_model_get_expert_tensors(self.raw(), out, n) })?;
        Ok(raw.into_iter().map(ExpertTensor).collect())
    }

    /// The same of any MoE layer: types, and so sizes and places, differ where
    /// [`ModelInfo::layouts`] is more than 1.
    pub fn layer_tensors(&self, layer: u32) -> Result<Vec<ExpertTensor>> {
        let n = self.info()?.expert_tensors;
        let mut raw = vec![sys::moepage_expert_tensor::default(); n as usize];
        let out = raw.as_mut_ptr();
        // SAFETY: `out` has room for `n`.
        check(unsafe { sys::moepage_model_get_layer_tensors(self.raw(), layer, out, n) })?;
        Ok(raw.into_iter().map(ExpertTensor).collect())
    }

    /// That of every layer.
    pub(crate) fn all_tensors(&self) -> Result<Vec<Vec<ExpertTensor>>> {
        (0..self.info()?.moe_layers).map(|layer| self.layer_tensors(layer)).collect()
    }

    /// What a GGUF file's metadata has under a key. [`Status::NotFound`] where there is no such key:
    /// models that are no GGUF files have none.
    pub fn metadata(&self, key: &str) -> Result<Metadata<'_>> {
        let key = c_text(key, "the key")?;
        let mut count = 0;
        let null = std::ptr::null_mut();
        // SAFETY: the handle and the key are live; nothing is written but the count.
        check(unsafe {
            sys::moepage_model_get_metadata(self.raw(), key.as_ptr(), 0, null, 0, &mut count)
        })?;
        let mut raw = vec![sys::moepage_metadata::default(); count as usize];
        let out = raw.as_mut_ptr();
        // SAFETY: the same, and `out` has room for `count`.
        check(unsafe {
            sys::moepage_model_get_metadata(self.raw(), key.as_ptr(), 0, out, count, &mut count)
        })?;
        let is_one = matches!(&raw[..], [one] if one.is_array == 0);
        // SAFETY: texts are the model's, and never change.
        let values = raw.iter().map(|raw| unsafe { Metadata::of(raw) });
        let mut values = values.collect::<Result<Vec<_>>>()?;
        match values.pop() {
            Some(value) if is_one => Ok(value),
            last => {
                values.extend(last);
                Ok(Metadata::Array(values))
            }
        }
    }

    /// A tensor that is never paged, by its name in the checkpoint.
    pub fn find_tensor(&self, name: &str) -> Result<TensorRef<'_>> {
        let c_name = c_text(name, "the name")?;
        let mut raw = sys::moepage_tensor_view::default();
        // SAFETY: the handle and the name are live; `raw` says its size.
        check(unsafe { sys::moepage_model_find_tensor(self.raw(), c_name.as_ptr(), &mut raw) })?;
        let dtype = Dtype::from_code(raw.dtype).ok_or_else(|| {
            Error::new(Status::Unsupported, format!("{name} is of dtype {}", raw.dtype))
        })?;
        // SAFETY: the bytes are the model's, and stay as they are until it is closed.
        let bytes = unsafe { slice_at(raw.data.cast::<u8>(), raw.bytes as usize) };
        Ok(TensorRef::new(dtype, &raw.shape[..raw.rank as usize], bytes))
    }

    /// Copies bytes of such a tensor, from byte `offset` of it on, to `out`: of a file they are read, and
    /// the model keeps none. For tables of which a step needs a few rows.
    pub fn read_tensor(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let c_name = c_text(name, "the name")?;
        let (to, bytes) = (out.as_mut_ptr().cast::<c_void>(), out.len() as u64);
        // SAFETY: the handle and the name are live; `to` has room for `bytes` bytes.
        self.check(unsafe {
            let (raw, name) = (self.raw(), c_name.as_ptr());
            sys::moepage_model_read_tensor(raw, name, offset, bytes, to, std::ptr::null_mut())
        })
    }

    /// The names of all tensors that are never paged.
    pub fn tensor_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut room = vec![0u8; 256];
        loop {
            let (at, out) = (names.len() as u64, room.as_mut_ptr().cast());
            // SAFETY: `out` has room for as many bytes as are said.
            let status = unsafe {
                sys::moepage_model_get_tensor_name(self.raw(), at, out, room.len() as u64)
            };
            match check(status) {
                Err(error) if error.status() == Status::NotFound => return Ok(names),
                Err(error) if error.status() == Status::Argument && room.len() < LONGEST_NAME => {
                    room.resize(4 * room.len(), 0);
                    continue;
                }
                other => other?,
            }
            // SAFETY: the call has put a NUL behind the name.
            let name = unsafe { CStr::from_ptr(room.as_ptr().cast()) };
            names.push(name.to_string_lossy().into_owned());
        }
    }

    /// The text of its config.json, where there is one.
    pub fn config_json(&self) -> Option<&str> {
        // SAFETY: the handle is live.
        let text = unsafe { sys::moepage_model_config_json(self.raw()) };
        // SAFETY: NULL, or NUL-terminated and the model's.
        (!text.is_null()).then(|| unsafe { text_at(text) })
    }

    /// The transformer layer that an MoE layer is.
    pub fn layer_index(&self, moe_layer: u32) -> Option<u32> {
        // SAFETY: the handle is live.
        let index = unsafe { sys::moepage_model_layer_index(self.raw(), moe_layer) };
        u32::try_from(index).ok()
    }

    /// Whether and how big its experts are in a form.
    pub fn form(&self, form: Form) -> Result<FormInfo> {
        let mut info = FormInfo::default();
        // SAFETY: the handle is live; `info` says its size.
        check(unsafe { sys::moepage_model_get_form(self.raw(), form.code(), &mut info) })?;
        Ok(info)
    }

    /// Reads one expert, laid out as in a slot, into at least [`ModelInfo::slot_bytes`] bytes.
    pub fn read_expert(&self, layer: u32, expert: u32, out: &mut [u8]) -> Result<()> {
        let (to, capacity) = (out.as_mut_ptr().cast::<c_void>(), out.len() as u64);
        // SAFETY: `to` has room for `capacity` bytes.
        self.check(unsafe {
            sys::moepage_model_read_expert(self.raw(), layer, expert, to, capacity)
        })
    }

    /// Writes it to a .moepack file, which appears under `path` when it is whole.
    pub fn write_pack(&self, path: impl AsRef<Path>, config: &PackConfig) -> Result<PackStats> {
        self.write_pack_telling(path, config, |_, _| ControlFlow::Continue(()))
    }

    /// The same, and tells now and then how many bytes of work are done, and how many there are.
    /// A break ends it with [`Status::Callback`]; so does a panic, which then goes on.
    pub fn write_pack_telling<F>(
        &self,
        path: impl AsRef<Path>,
        config: &PackConfig,
        progress: F,
    ) -> Result<PackStats>
    where
        F: FnMut(u64, u64) -> ControlFlow<()>,
    {
        self.write(path.as_ref(), config.raw(), progress)
    }

    /// The same as [`Model::write_pack`], with integer forms rounded for inputs of the second moments
    /// that `moments` gives (GPTQ): the sum of x x' over inputs x of a matrix, in its last argument,
    /// `columns` times `columns` zeros of which the upper triangle counts. It is called on threads of
    /// the library, several at a time. A break ends the call with [`Status::Callback`]; so does a
    /// panic, which then goes on.
    pub fn write_pack_for<M>(
        &self,
        path: impl AsRef<Path>,
        config: &PackConfig,
        moments: M,
    ) -> Result<PackStats>
    where
        M: Fn(&MatrixInputs<'_>, &mut [f32]) -> ControlFlow<()> + Sync,
    {
        let end = |tensor: &ExpertTensor| (tensor.offset() + tensor.bytes()) as usize;
        let ends = self.all_tensors()?.into_iter().map(|of| of.iter().map(end).max().unwrap_or(0));
        let gathering = Gathering { moments, ends: ends.collect(), panic: Mutex::new(None) };
        let raw = sys::moepage_pack_config {
            moments: Some(gather::<M>),
            moments_user: &gathering as *const Gathering<M> as *mut c_void,
            ..config.raw()
        };
        let written = self.write(path.as_ref(), raw, |_, _| ControlFlow::Continue(()));
        if let Some(panic) = lock(&gathering.panic).take() {
            resume_unwind(panic);
        }
        written
    }

    fn write<F>(
        &self,
        path: &Path,
        config: sys::moepage_pack_config,
        progress: F,
    ) -> Result<PackStats>
    where
        F: FnMut(u64, u64) -> ControlFlow<()>,
    {
        let path = c_path(path)?;
        let mut telling = Telling { progress, panic: None };
        let raw = sys::moepage_pack_config {
            progress: Some(tell::<F>),
            progress_user: (&mut telling as *mut Telling<F>).cast(),
            ..config
        };
        let mut stats = PackStats::default();
        // SAFETY: all pointers are valid for the call, which alone calls back.
        let status =
            unsafe { sys::moepage_pack_write(self.raw(), path.as_ptr(), &raw, &mut stats) };
        if let Some(panic) = telling.panic {
            resume_unwind(panic);
        }
        self.check(status).map(|()| stats)
    }

    /// The panic that a [`crate::ReadExpert`] last failed with, for those who want it to go on:
    /// see [`std::panic::resume_unwind`].
    pub fn take_panic(&self) -> Option<Panic> {
        self.handle.keep().1.reader.as_ref().and_then(|reader| reader.take_panic())
    }

    /// As `error::check`; adds what the read callback said.
    pub(crate) fn check(&self, status: i32) -> Result<()> {
        check(status).map_err(|error| self.explain(error))
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        match &self.handle.keep().1.reader {
            Some(reader) if error.status() == Status::Callback => {
                error.followed_by(&reader.failure_text())
            }
            _ => error,
        }
    }

    /// The handle, for what `moepage_sys` has and this crate has not. What is created with it must
    /// be destroyed before the model is dropped.
    pub fn raw(&self) -> *mut sys::moepage_model {
        self.handle.raw()
    }
}

closes!(Model);

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.info()).finish()
    }
}

/// A value of a model's metadata.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Metadata<'m> {
    /// A whole number.
    Integer(i64),
    /// May be infinite, or not a number.
    Real(f64),
    /// True or false.
    Truth(bool),
    /// Any bytes: files are not held to UTF-8.
    Text(&'m [u8]),
    /// All of one type.
    Array(Vec<Metadata<'m>>),
}

impl<'m> Metadata<'m> {
    /// # Safety
    /// What `raw` points to stays as it is as long as `'m`.
    unsafe fn of(raw: &sys::moepage_metadata) -> Result<Self> {
        match raw.type_ {
            sys::MOEPAGE_METADATA_INTEGER => Ok(Metadata::Integer(raw.integer)),
            sys::MOEPAGE_METADATA_REAL => Ok(Metadata::Real(raw.real)),
            sys::MOEPAGE_METADATA_TRUTH => Ok(Metadata::Truth(raw.integer != 0)),
            sys::MOEPAGE_METADATA_TEXT => {
                // SAFETY: as the caller promises.
                let text = unsafe { slice_at(raw.text.cast::<u8>(), raw.text_bytes as usize) };
                Ok(Metadata::Text(text))
            }
            other => {
                let text = format!("a value of type {other}, which this crate does not know");
                Err(Error::new(Status::Unsupported, text))
            }
        }
    }
}

/// What a pack is to hold.
#[derive(Clone, Debug, Default)]
pub struct PackConfig {
    /// At least one lossless; empty = [`Form::Exph`].
    pub forms: Vec<Form>,
    /// zstd level of [`Form::Dense`], 1..19; 0 = stored plain.
    pub cold_level: i32,
    /// Of the integer forms: 32, 64 or 128; 0 = 64.
    pub group_size: u32,
    /// That encode; 0 = one per online CPU.
    pub threads: u32,
    /// Reads the file back and compares before it gets its name.
    pub verify: bool,
    /// Integer forms: scales of least squared error.
    pub scale_search: bool,
}

impl PackConfig {
    fn raw(&self) -> sys::moepage_pack_config {
        sys::moepage_pack_config {
            forms: self.forms.iter().fold(0, |set, form| set | 1 << form.code()),
            cold_level: self.cold_level,
            group_size: self.group_size,
            threads: self.threads,
            verify: u32::from(self.verify),
            scale_search: u32::from(self.scale_search),
            ..Default::default()
        }
    }
}

/// A matrix of an expert, whose inputs [`Model::write_pack_for`] asks for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MatrixInputs<'a> {
    /// MoE layer, from 0.
    pub layer: u32,
    /// Of the layer.
    pub expert: u32,
    /// Index of the matrix in [`Model::layer_tensors`].
    pub tensor: u32,
    /// The expert's bytes, where [`Model::layer_tensors`] says.
    pub slot: &'a [u8],
    /// Values in an input.
    pub columns: usize,
}

struct Gathering<M> {
    moments: M,
    ends: Vec<usize>,
    panic: Mutex<Option<Panic>>,
}

unsafe extern "C" fn gather<M>(
    user: *mut c_void,
    layer: u32,
    expert: u32,
    tensor: u32,
    slot: *const c_void,
    columns: u64,
    out: *mut f32,
) -> i32
where
    M: Fn(&MatrixInputs<'_>, &mut [f32]) -> ControlFlow<()> + Sync,
{
    // SAFETY: the pack's writer calls this while `Gathering` lives in its caller's frame, with the
    // tensors of an expert of this layer, and room for columns * columns floats.
    let (gathering, slot, out) = unsafe {
        let gathering = &*user.cast::<Gathering<M>>();
        let slot = slice_at(slot.cast::<u8>(), gathering.ends[layer as usize]);
        let n = columns as usize * columns as usize;
        (gathering, slot, std::slice::from_raw_parts_mut(out, n))
    };
    let inputs = MatrixInputs { layer, expert, tensor, slot, columns: columns as usize };
    let call = || (gathering.moments)(&inputs, out);
    match called_back(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(panic) => {
            *lock(&gathering.panic) = Some(panic);
            1
        }
    }
}

struct Telling<F> {
    progress: F,
    panic: Option<Panic>,
}

unsafe extern "C" fn tell<F>(user: *mut c_void, done: u64, total: u64) -> i32
where
    F: FnMut(u64, u64) -> ControlFlow<()>,
{
    // SAFETY: the pack's writer calls this on its own thread, while `Telling` lives in its frame.
    let telling = unsafe { &mut *user.cast::<Telling<F>>() };
    match called_back(|| catch_unwind(AssertUnwindSafe(|| (telling.progress)(done, total)))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(panic) => {
            telling.panic = Some(panic);
            1
        }
    }
}
