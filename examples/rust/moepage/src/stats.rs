//! Metrics in the text format that Prometheus scrapes.
use moepage_sys as sys;

use crate::error::{check, Error, Result, Status};
use crate::types::{c_text, pointer_or_null};
use crate::{Controller, Device, ExpertPool, KvPool, Predictor};

/// What to report on; what is `None` is left out. Any thread may scrape while others serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatsSource<'s> {
    /// A device.
    pub device: Option<&'s Device>,
    /// A pool with its sessions.
    pub experts: Option<&'s ExpertPool<'s>>,
    /// A KV pool.
    pub kv: Option<&'s KvPool<'s>>,
    /// A controller.
    pub controller: Option<&'s Controller<'s>>,
    /// A predictor.
    pub predictor: Option<&'s Predictor>,
    /// Put into every sample: `model="qwen3",replica="0"`.
    pub labels: Option<&'s str>,
}

impl StatsSource<'_> {
    /// Every counter and gauge. `docs/metrics.md` lists them.
    pub fn text(&self) -> Result<String> {
        let labels = self.labels.map(|labels| c_text(labels, "labels")).transpose()?;
        let raw = sys::moepage_stats_source {
            device: self.device.map_or(std::ptr::null_mut(), Device::raw),
            experts: self.experts.map_or(std::ptr::null_mut(), |pool| pool.raw()),
            kv: self.kv.map_or(std::ptr::null_mut(), |pool| pool.raw()),
            controller: self.controller.map_or(std::ptr::null_mut(), |each| each.raw()),
            predictor: self.predictor.map_or(std::ptr::null_mut(), Predictor::raw),
            labels: pointer_or_null(&labels),
            ..Default::default()
        };
        let mut text = vec![0u8; sys::MOEPAGE_STATS_TEXT_BYTES];
        let (out, room) = (text.as_mut_ptr().cast(), text.len() as u64);
        let mut length = 0;
        // SAFETY: the handles are live or NULL; `out` has `room` bytes.
        check(unsafe { sys::moepage_stats_text(&raw, out, room, &mut length) })?;
        text.truncate(length as usize);
        String::from_utf8(text).map_err(|_| Error::new(Status::Format, "the metrics are not UTF-8"))
    }
}
