//! Sessions: what steps a model.
use std::fmt;

use moepage_sys as sys;

use crate::error::{check, Error, Result, Status};
use crate::experts::{ExpertPool, SessionStats};
use crate::gate::{ordered, set_up, Gates, OpenStep};
use crate::handle::{Handle, Outlived, Ref};
use crate::kv::{gate_of, KvPool};
use crate::model::Model;
use crate::predictor::Predictor;
use crate::step::{Step, StepInput};
use crate::trace::TraceWriter;
use crate::types::{count, numbered, pointer_of};

pub use sys::moepage_prefetch_info as PrefetchInfo;

numbered! {
    default Fp32;
    /// Arithmetic of [`crate::Layer::ffn`].
    Math {
        /// Weights as stored, arithmetic in FP32.
        Fp32 = MOEPAGE_MATH_FP32,
        /// Activations rounded to BF16, products accumulated in FP32.
        Bf16 = MOEPAGE_MATH_BF16,
        /// On CUDA by cuBLAS, where bits may differ with the batch.
        Bf16Fast = MOEPAGE_MATH_BF16_FAST,
        /// On hosts, blocks meet activations rounded to 8 bits; otherwise as `Bf16`.
        Int8 = MOEPAGE_MATH_INT8,
    }
}

numbered! {
    default Off;
    /// What is fetched before it is routed.
    Prefetch {
        /// Nothing.
        Off = MOEPAGE_PREFETCH_OFF,
        /// What hints name.
        Hint = MOEPAGE_PREFETCH_HINT,
        /// Hints, and the set that the layer used in the last step.
        Previous = MOEPAGE_PREFETCH_PREVIOUS,
        /// Hints, and what the session's predictor names, as long as that pays.
        Predictor = MOEPAGE_PREFETCH_PREDICTOR,
    }
}

numbered! {
    default Experts;
    /// What the groups of a plan are.
    Grouping {
        /// Waves of experts.
        Experts = MOEPAGE_GROUP_EXPERTS,
        /// Groups of tokens whose experts fit together.
        Tokens = MOEPAGE_GROUP_TOKENS,
    }
}

numbered! {
    default Auto;
    /// How a layer's experts are served.
    Regime {
        /// Each layer by what it does, measured.
        Auto = MOEPAGE_REGIME_AUTO,
        /// Cache and reuse.
        Cache = MOEPAGE_REGIME_CACHE,
        /// Stream and evict.
        Stream = MOEPAGE_REGIME_STREAM,
    }
}

numbered! {
    default Wait;
    /// What is done about an expert that is not on the device.
    Miss {
        /// It is loaded and waited for.
        Wait = MOEPAGE_MISS_WAIT,
        /// Its low version computes. Lossy.
        Low = MOEPAGE_MISS_LOW,
        /// It is computed where it lies.
        Host = MOEPAGE_MISS_HOST,
    }
}

numbered! {
    default Softmax;
    /// What turns a router's logits into weights.
    RouterGate {
        /// Softmax.
        Softmax = MOEPAGE_GATE_SOFTMAX,
        /// Sigmoid.
        Sigmoid = MOEPAGE_GATE_SIGMOID,
    }
}

/// How a session is made. Zero and `None` are the defaults.
#[derive(Clone, Debug, Default)]
pub struct SessionConfig<'p> {
    /// Most tokens in one step; 0 = 256.
    pub max_tokens: u32,
    /// Most sequences in one step; 0 = `max_tokens`.
    pub max_sequences: u32,
    /// Most routed experts per token; 0 = the model's.
    pub max_top_k: u32,
    /// Arithmetic.
    pub math: Math,
    /// What is fetched ahead.
    pub prefetch: Prefetch,
    /// Layers ahead; 0 = one, or as many as loads take.
    pub prefetch_depth: u32,
    /// For callers that read plans.
    pub grouping: Grouping,
    /// Study switch: experts held at once for one layer.
    pub max_group_experts: u32,
    /// How layers are served.
    pub regime: Regime,
    /// What is done about absent experts.
    pub miss: Miss,
    /// Of [`Prefetch::Predictor`]; may be shared.
    pub predictor: Option<Ref<'p, Predictor>>,
}

impl SessionConfig<'_> {
    pub(crate) fn raw(&self) -> sys::moepage_session_config {
        let predictor = self.predictor.as_ref();
        sys::moepage_session_config {
            max_tokens: self.max_tokens,
            max_sequences: self.max_sequences,
            max_top_k: self.max_top_k,
            math: self.math.code(),
            prefetch: self.prefetch.code(),
            prefetch_depth: self.prefetch_depth,
            grouping: self.grouping.code(),
            max_group_experts: self.max_group_experts,
            regime: self.regime.code(),
            miss: self.miss.code(),
            predictor: predictor.map_or(std::ptr::null_mut(), |predictor| predictor.raw()),
            ..Default::default()
        }
    }
}

/// Remapping of decode batches: experts that few tokens care about are done without. Changes
/// outputs.
#[derive(Clone, Debug, Default)]
pub struct RemapConfig {
    /// What turns logits into weights.
    pub gate: RouterGate,
    /// Bins per e-fold of probability.
    pub alpha: f64,
    /// The last bin; beta / alpha <= 3.
    pub beta: f64,
    /// Of each MoE layer, alpha and beta; 0 = that layer is left alone; empty = everywhere the
    /// same.
    pub by_layer: Vec<(f32, f32)>,
    /// How many logits an expert on the device is preferred by.
    pub resident: f64,
}

/// The sizes by which slices are checked.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) hidden: usize,
    pub(crate) experts: usize,
    moe_layers: usize,
}

/// What a session is without its parents: all that a step changes.
pub(crate) struct Core {
    /// Keeps the devices' gates shut while a step is open: destroying a session cancels it.
    handle: Handle<sys::moepage_session, Option<OpenStep>>,
    pub(crate) dims: Dims,
    raw_sequences: Vec<sys::moepage_step_sequence>,
}

// SAFETY: docs/threading.md: a session is for one thread at a time, whichever it is. `Sync` it is
// not: the raw pointer in the handle sees to that.
unsafe impl Send for Core {}

impl Core {
    pub(crate) fn raw(&self) -> *mut sys::moepage_session {
        self.handle.raw()
    }

    /// An ended step's devices may be set up again.
    pub(crate) fn step_has_ended(&mut self) {
        *self.handle.keep_mut() = None;
    }

    /// Nothing to do where no step is open.
    pub(crate) fn cancel(&mut self) -> Result<()> {
        if self.handle.keep().is_none() {
            return Ok(());
        }
        // SAFETY: the handle is live.
        check(unsafe { sys::moepage_session_cancel(self.raw()) })?;
        self.step_has_ended();
        Ok(())
    }

    pub(crate) fn hint(&self, layer: u32, experts: &[i32]) -> Result<()> {
        let n = count(experts.len(), "hints")?;
        // SAFETY: the handle is live; `experts` has `n` entries.
        check(unsafe { sys::moepage_session_hint(self.raw(), layer, experts.as_ptr(), n) })
    }

    fn begin(&mut self, gates: &Gates, input: &StepInput<'_>) -> Result<usize> {
        if self.handle.keep().is_some() {
            return Err(Error::new(Status::State, "a step was leaked open: cancel it"));
        }
        self.raw_sequences.clear();
        self.raw_sequences.extend(input.sequences.iter().map(|each| each.raw()));
        let raw = input.raw(&self.raw_sequences)?;
        let open = OpenStep::enter(gates);
        // SAFETY: the handle is live; `raw` points to what lives for the call.
        check(unsafe { sys::moepage_session_begin(self.raw(), &raw) })?;
        *self.handle.keep_mut() = Some(open);
        Ok(raw.n_tokens as usize)
    }
}

/// A stream of steps over an expert pool and, perhaps, a KV pool. It may move between threads, and
/// is used by one at a time: `Send`, not `Sync`.
pub struct Session<'p> {
    // In the order in which they are to be dropped.
    core: Core,
    trace: Option<TraceWriter>,
    _predictor: Option<Ref<'p, Predictor>>,
    kv: Option<Ref<'p, KvPool<'p>>>,
    experts: Ref<'p, ExpertPool<'p>>,
    gates: Gates,
    _parents: Outlived<'p>,
}

fn gates_of(experts: &ExpertPool<'_>, kv: Option<&KvPool<'_>>) -> Gates {
    let mut gates: Vec<_> = experts.gates.to_vec();
    gates.extend(kv.map(gate_of));
    ordered(gates)
}

impl<'p> Session<'p> {
    /// A session over an expert pool and a KV pool. [`Status::Busy`] while a step is open on their
    /// devices; [`Status::Budget`] if the workspace is too small ([`Session::workspace`]).
    pub fn create(
        experts: impl Into<Ref<'p, ExpertPool<'p>>>,
        kv: impl Into<Option<Ref<'p, KvPool<'p>>>>,
        config: SessionConfig<'p>,
    ) -> Result<Self> {
        let (experts, kv) = (experts.into(), kv.into());
        let gates = gates_of(&experts, kv.as_deref());
        let raw_kv = kv.as_ref().map_or(std::ptr::null_mut(), |kv| kv.raw());
        let handle = set_up(&gates, || {
            Handle::create_keeping(None, |out| {
                let raw = config.raw();
                // SAFETY: pools and predictor are live, and outlive the session; nobody sets
                // anything up or steps on their devices meanwhile.
                unsafe { sys::moepage_session_create(experts.raw(), raw_kv, &raw, out) }
            })
        })?;
        Session::new(handle, experts, kv, config.predictor)
    }

    pub(crate) fn new(
        handle: Handle<sys::moepage_session, Option<OpenStep>>,
        experts: Ref<'p, ExpertPool<'p>>,
        kv: Option<Ref<'p, KvPool<'p>>>,
        _predictor: Option<Ref<'p, Predictor>>,
    ) -> Result<Self> {
        let gates = gates_of(&experts, kv.as_deref());
        let info = experts.model().info()?;
        let dims = Dims {
            hidden: info.hidden as usize,
            experts: info.experts as usize,
            moe_layers: info.moe_layers as usize,
        };
        let core = Core { handle, dims, raw_sequences: Vec::new() };
        let _parents = Outlived::default();
        Ok(Session { core, trace: None, _predictor, kv, experts, gates, _parents })
    }

    /// Device bytes of scratch that a session with this config takes from every device.
    pub fn workspace(model: &Model, config: &SessionConfig<'_>) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: all pointers are valid for the call.
        check(unsafe { sys::moepage_session_workspace(model.raw(), &config.raw(), &mut bytes) })?;
        Ok(bytes)
    }

    /// Opens a step. The sequences that it names stand still until it is over.
    pub fn begin<'s>(&'s mut self, input: &StepInput<'s>) -> Result<Step<'s>> {
        let n_tokens = self.core.begin(&self.gates, input)?;
        Ok(Step::new(&mut self.core, &self.experts, self.kv.as_deref(), n_tokens))
    }

    /// Names experts that will probably be routed in `layer`, the likeliest first.
    pub fn hint(&mut self, layer: u32, experts: &[i32]) -> Result<()> {
        self.core.hint(layer, experts)
    }

    /// Remapping from the next step on; `None` turns it off.
    pub fn set_remap(&mut self, config: Option<&RemapConfig>) -> Result<()> {
        let config = match config {
            // SAFETY: the handle is live; NULL turns it off.
            None => {
                return check(unsafe {
                    sys::moepage_session_set_remap(self.raw(), std::ptr::null())
                })
            }
            Some(config) => config,
        };
        let (alphas, betas): (Vec<f32>, Vec<f32>) = config.by_layer.iter().copied().unzip();
        if !alphas.is_empty() && alphas.len() != self.core.dims.moe_layers {
            let (n, wanted) = (alphas.len(), self.core.dims.moe_layers);
            return Err(Error::argument(format!("by_layer has {n} entries, not {wanted}")));
        }
        let given = !alphas.is_empty();
        let raw = sys::moepage_remap_config {
            gate: config.gate.code(),
            alpha: config.alpha,
            beta: config.beta,
            alphas: pointer_of(given.then(|| &alphas[..])),
            betas: pointer_of(given.then(|| &betas[..])),
            resident: config.resident,
            ..Default::default()
        };
        // SAFETY: the handle is live; what `raw` points to is copied.
        check(unsafe { sys::moepage_session_set_remap(self.raw(), &raw) })
    }

    /// What prefetching for a layer has brought. Of [`Prefetch::Predictor`].
    pub fn prefetch_info(&self, layer: u32) -> Result<PrefetchInfo> {
        let mut info = PrefetchInfo::default();
        // SAFETY: the handle is live; `info` says its size.
        check(unsafe { sys::moepage_session_get_prefetch(self.raw(), layer, &mut info) })?;
        Ok(info)
    }

    /// Sums over all ended or cancelled steps.
    pub fn stats(&self) -> Result<SessionStats> {
        let mut stats = SessionStats::default();
        // SAFETY: the handle is live; `stats` says its size.
        check(unsafe { sys::moepage_session_get_stats(self.raw(), &mut stats) })?;
        Ok(stats)
    }

    /// Records every step from now on, in the place of an earlier recording, which ends.
    pub fn record(&mut self, trace: TraceWriter) -> Result<()> {
        // SAFETY: session and trace are live; the session keeps the trace.
        check(unsafe { sys::moepage_session_record(self.raw(), trace.raw()) })?;
        self.trace = Some(trace);
        Ok(())
    }

    /// Stops recording, and gives the trace back to be finished.
    pub fn stop_recording(&mut self) -> Result<Option<TraceWriter>> {
        // SAFETY: the handle is live; NULL stops.
        check(unsafe { sys::moepage_session_record(self.raw(), std::ptr::null_mut()) })?;
        Ok(self.trace.take())
    }

    /// Drops a step whose guard was leaked; nothing to do otherwise.
    pub fn cancel(&mut self) -> Result<()> {
        self.core.cancel()
    }

    /// Ends it, as dropping it does, and says whether all went well. A trace that it records to is
    /// finished first.
    pub fn close(mut self) -> Result<()> {
        self.cancel()?;
        if let Some(trace) = self.stop_recording()? {
            trace.finish()?;
        }
        self.core.handle.close()
    }

    /// The handle, for what `moepage_sys` has and this crate has not: paths of CUDA devices. They
    /// must be destroyed before the session is dropped.
    pub fn raw(&self) -> *mut sys::moepage_session {
        self.core.raw()
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.stats()).finish()
    }
}
