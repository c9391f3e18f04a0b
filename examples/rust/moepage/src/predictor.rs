//! Predictors of the experts that come next.
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use moepage_sys as sys;

use crate::engine::Lender;
use crate::error::{check, Result};
use crate::handle::{closes, Handle};
use crate::model::Model;
use crate::types::{c_path, c_text, pointer_or_null, text_at};

/// How a predictor is made. Zero and `None` are the defaults.
#[derive(Clone, Debug, Default)]
pub struct PredictorConfig {
    /// `none`, `previous`, `hit-count`, `gate`, `coactivation`, `maps`; `None` = `maps`.
    pub name: Option<String>,
    /// Layers ahead; 0 = 3.
    pub distance: u32,
    /// `maps`: iterations kept; 0 = 1024.
    pub capacity: u32,
    /// `maps`: of the embeddings that steps will bring; 0 = none.
    pub semantic_dim: u32,
}

impl PredictorConfig {
    /// Calls with the config in C's words.
    pub(crate) fn with_raw<T>(
        &self,
        call: impl FnOnce(&sys::moepage_predictor_config) -> Result<T>,
    ) -> Result<T> {
        let name = self.name.as_ref().map(|name| c_text(name, "predictor")).transpose()?;
        call(&sys::moepage_predictor_config {
            distance: self.distance,
            name: pointer_or_null(&name),
            capacity: self.capacity,
            semantic_dim: self.semantic_dim,
            ..Default::default()
        })
    }
}

/// What a predictor is and has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PredictorInfo {
    /// Its name.
    pub name: String,
    /// Layers ahead.
    pub distance: u32,
    /// Memory that it takes.
    pub bytes: u64,
    /// Learnt from.
    pub iterations: u64,
    /// Predictions made.
    pub asked: u64,
}

/// The working set that routing converges to.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rightsize {
    /// MoE layers.
    pub layers: u32,
    /// The smallest set over all layers that covers what was asked.
    pub experts: u64,
    /// Of slots for that many.
    pub bytes: u64,
    /// Of slots for all experts, less those.
    pub freed: u64,
    /// Estimated chance that a choice is of an expert never seen.
    pub unseen: f64,
}

impl Rightsize {
    pub(crate) fn of(raw: &sys::moepage_rightsize) -> Self {
        Rightsize {
            layers: raw.layers,
            experts: raw.experts,
            bytes: raw.bytes,
            freed: raw.freed,
            unseen: raw.unseen,
        }
    }
}

/// A predictor. It stands alone; any thread may use it at any time.
pub struct Predictor {
    handle: Handle<sys::moepage_predictor>,
}

// SAFETY: docs/threading.md: any thread, under the predictor's own lock. Destruction takes the
// value.
unsafe impl Send for Predictor {}
// SAFETY: the same.
unsafe impl Sync for Predictor {}

impl Predictor {
    /// Makes one for models of this shape; nothing is learnt.
    pub fn create(model: &Model, config: &PredictorConfig) -> Result<Self> {
        config.with_raw(|raw| {
            let handle = Handle::create(|out| {
                // SAFETY: all pointers are valid for the call, and nothing is kept of them.
                unsafe { sys::moepage_predictor_create(model.raw(), raw, out) }
            })?;
            Ok(Predictor { handle })
        })
    }

    /// The predictor that an engine made, if it did.
    pub(crate) fn lent(raw: *mut sys::moepage_predictor, lender: &Arc<Lender>) -> Option<Self> {
        Handle::lent(raw, (), lender).map(|handle| Predictor { handle })
    }

    /// What it is and has done.
    pub fn info(&self) -> Result<PredictorInfo> {
        let mut raw = sys::moepage_predictor_info::default();
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_predictor_get_info(self.raw(), &mut raw) })?;
        Ok(PredictorInfo {
            // SAFETY: NUL-terminated, and ours.
            name: unsafe { text_at(raw.name.as_ptr()) }.to_owned(),
            distance: raw.distance,
            bytes: raw.bytes,
            iterations: raw.iterations,
            asked: raw.asked,
        })
    }

    /// Writes what has been learnt to a file, which appears under `path` when it is whole.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        // SAFETY: handle and path are live.
        check(unsafe { sys::moepage_predictor_save(self.raw(), path.as_ptr()) })
    }

    /// Takes over what a predictor of the same name for the same shape saved.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        // SAFETY: handle and path are live.
        check(unsafe { sys::moepage_predictor_load(self.raw(), path.as_ptr()) })
    }

    /// The working set that covers this part of the routed choices, below 1; 0 = 0.99. Of
    /// `coactivation` only.
    pub fn rightsize(&self, coverage: f64) -> Result<Rightsize> {
        let mut raw = sys::moepage_rightsize { coverage, ..Default::default() };
        // SAFETY: the handle is live; `raw` says its size.
        check(unsafe { sys::moepage_predictor_rightsize(self.raw(), &mut raw) })?;
        Ok(Rightsize::of(&raw))
    }

    /// The handle, for what `moepage_sys` has and this crate has not.
    pub fn raw(&self) -> *mut sys::moepage_predictor {
        self.handle.raw()
    }
}

closes!(Predictor);

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Predictor").field(&self.info()).finish()
    }
}
