//! Traces of routing: recorded by sessions, read back here.
use std::fmt;
use std::path::Path;

use moepage_sys as sys;

use crate::error::{check, Error, Result};
use crate::handle::Handle;
use crate::types::{c_path, slice_at, text_at};

pub use sys::moepage_step_sequence as TraceSequence;

/// The shape of a recorded model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceInfo {
    /// Architecture, at most 63 bytes.
    pub model: String,
    /// MoE layers.
    pub moe_layers: u32,
    /// Experts per layer.
    pub experts: u32,
    /// Most choices per token.
    pub max_top_k: u32,
    /// Of the embeddings of sequences; 0 = none recorded.
    pub semantic_dim: u32,
    /// The router's full output is recorded.
    pub has_probabilities: bool,
}

impl TraceInfo {
    fn raw(&self) -> Result<sys::moepage_trace_info> {
        let mut raw = sys::moepage_trace_info {
            moe_layers: self.moe_layers,
            experts: self.experts,
            max_top_k: self.max_top_k,
            semantic_dim: self.semantic_dim,
            has_probabilities: u32::from(self.has_probabilities),
            ..Default::default()
        };
        let name = self.model.as_bytes();
        if name.len() >= raw.model.len() || name.contains(&0) {
            let most = raw.model.len() - 1;
            return Err(Error::argument(format!(
                "model {:?} is no name of at most {most} bytes",
                self.model
            )));
        }
        for (to, &from) in raw.model.iter_mut().zip(name) {
            *to = from as _;
        }
        Ok(raw)
    }
}

/// A trace that a session can record to: [`crate::Session::record`].
///
/// Dropping it finishes the file too, but tells nobody what went wrong.
pub struct TraceWriter {
    handle: Handle<sys::moepage_trace>,
}

// SAFETY: docs/threading.md: one thread at a time, whichever.
unsafe impl Send for TraceWriter {}

impl TraceWriter {
    /// The file appears under `path` when it is finished.
    pub fn create(path: impl AsRef<Path>, info: &TraceInfo) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let raw = info.raw()?;
        let handle = Handle::create(|out| {
            // SAFETY: all pointers are valid for the call.
            unsafe { sys::moepage_trace_create(path.as_ptr(), &raw, out) }
        })?;
        Ok(TraceWriter { handle })
    }

    /// Finishes the file. A failure leaves none.
    pub fn finish(self) -> Result<()> {
        self.handle.close()
    }

    pub(crate) fn raw(&self) -> *mut sys::moepage_trace {
        self.handle.raw()
    }
}

impl fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter").finish_non_exhaustive()
    }
}

/// Reads a trace.
pub struct TraceReader {
    handle: Handle<sys::moepage_trace>,
    info: TraceInfo,
}

// SAFETY: docs/threading.md: one thread at a time, whichever.
unsafe impl Send for TraceReader {}

/// One step as read back; it borrows from its reader until the next is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TraceStep<'t> {
    /// Counts from 0.
    pub step: u64,
    /// Tokens of the batch.
    pub n_tokens: u32,
    /// Choices per token.
    pub top_k: u32,
    /// Whose tokens they are.
    pub sequences: &'t [TraceSequence],
    /// `[moe_layers]`: 1 where the layer was routed.
    pub layer_present: &'t [u8],
    /// `[moe_layers][tokens][top_k]`.
    pub ids: &'t [i32],
    /// `[moe_layers][tokens][top_k]`.
    pub weights: &'t [f32],
    /// `[moe_layers][tokens][experts]`; empty where none were recorded.
    pub probabilities: &'t [f32],
    /// `[sequences][semantic_dim]`; empty where none were recorded.
    pub semantic: &'t [f32],
}

impl TraceReader {
    /// Opens a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let handle = Handle::create(|out| {
            // SAFETY: all pointers are valid for the call.
            unsafe { sys::moepage_trace_open(path.as_ptr(), out) }
        })?;
        let mut raw = sys::moepage_trace_info::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_trace_get_info(handle.raw(), &mut raw) })?;
        let info = TraceInfo {
            // SAFETY: NUL-terminated, and ours.
            model: unsafe { text_at(raw.model.as_ptr()) }.to_owned(),
            moe_layers: raw.moe_layers,
            experts: raw.experts,
            max_top_k: raw.max_top_k,
            semantic_dim: raw.semantic_dim,
            has_probabilities: raw.has_probabilities != 0,
        };
        Ok(TraceReader { handle, info })
    }

    /// The recorded model's shape.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// The next step; `None` after the last.
    pub fn next_step(&mut self) -> Result<Option<TraceStep<'_>>> {
        let mut raw = sys::moepage_trace_step::default();
        // SAFETY: the handle is live; `raw` says its size.
        let status = unsafe { sys::moepage_trace_next(self.handle.raw(), &mut raw) };
        if status == sys::MOEPAGE_E_END {
            return Ok(None);
        }
        check(status)?;
        let layers = self.info.moe_layers as usize;
        let rows = layers * raw.n_tokens as usize;
        let (choices, n) = (rows * raw.top_k as usize, raw.n_sequences as usize);
        let (experts, dim) = (self.info.experts as usize, self.info.semantic_dim as usize);
        Ok(Some(TraceStep {
            step: raw.step,
            n_tokens: raw.n_tokens,
            top_k: raw.top_k,
            // SAFETY: arrays of these lengths, or NULL; the reader keeps them until the next call.
            sequences: unsafe { slice_at(raw.sequences, n) },
            // SAFETY: the same.
            layer_present: unsafe { slice_at(raw.layer_present, layers) },
            // SAFETY: the same.
            ids: unsafe { slice_at(raw.ids, choices) },
            // SAFETY: the same.
            weights: unsafe { slice_at(raw.weights, choices) },
            // SAFETY: the same.
            probabilities: unsafe { slice_at(raw.probabilities, rows * experts) },
            // SAFETY: the same.
            semantic: unsafe { slice_at(raw.semantic, n * dim) },
        }))
    }
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader").field("info", &self.info).finish_non_exhaustive()
    }
}
