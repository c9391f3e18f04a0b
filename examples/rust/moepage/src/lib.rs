//! libmoepage, safely: Mixture-of-Experts models on devices whose memory cannot hold them.
//!
//! Two working sets, the routed expert weights and the KV cache, share one byte budget. The host
//! application steps the model itself and asks, layer by layer, where the routed experts are:
//!
//! ```no_run
//! use moepage::*;
//!
//! # fn main() -> Result<()> {
//! # let (ids, weights, x, mut y) = ([0, 3], [0.6, 0.4], [0f32; 128], [0f32; 128]);
//! let options = "budget=64M policy=lru";
//! let mut engine =
//!     Engine::open("examples/models/tiny-qwen3moe", options, EngineConfig::default())?;
//!
//! let layers = engine.layers();
//! let step = engine.begin(&StepInput::tokens(1, Phase::Decode))?;
//! for layer in 0..layers {
//!     // ... attention and the router, which are the application's ...
//!     let mut layer = step.route(layer, &Routing::new(&ids, &weights))?;
//!     layer.ffn(&x, &mut y)?;
//!     layer.retire()?;
//! }
//! let stats = step.end()?;
//! println!("{} hits, {} misses", stats.hits, stats.misses);
//! # Ok(())
//! # }
//! ```
//!
//! An [`Engine`] opens a [`Device`], a [`Model`], an [`ExpertPool`] and a [`Session`] together, with
//! the budget divided among them; they may as well be opened one by one.
//!
//! This page says what Rust adds; everything else is as `moepage.h` and `docs/` describe it.
//!
//! # Ownership
//!
//! Objects close when they are dropped. Each takes those that it stands on as `impl Into<Ref<..>>`:
//!
//! - a reference, as above: the borrow checker keeps parents longer than their children;
//! - an [`Arc`](std::sync::Arc): the child is then `'static` and keeps its parents alive. This is
//!   for a server's struct that owns all of them, which borrows inside one struct could not say.
//!
//! A [`Step`] borrows its session, a [`Layer`] its step, a [`Plan`] its layer. A step that is
//! dropped on the way, by `?` say, is cancelled; a layer is retired. Nothing is [`Status::Busy`]
//! when it is dropped, so closing cannot fail. Where a `raw()` handle was used to put something on
//! an object that this crate knows nothing of, the library refuses to close it and it is leaked;
//! `close()` then says why.
//!
//! Values may be leaked ([`std::mem::forget`]) without harm: bytes that a model pages from are
//! shared with it ([`Bytes`]), not borrowed.
//!
//! # Threads
//!
//! | | `Send` | `Sync` |
//! | --- | --- | --- |
//! | [`Device`], [`Model`], [`ExpertPool`], [`KvPool`], [`Controller`], [`Predictor`] | yes | yes |
//! | [`Engine`], [`Session`], [`Step`], [`Sequence`], [`PagedTensors`] | yes | no |
//! | [`TraceWriter`], [`TraceReader`] | yes | no |
//! | [`Layer`], [`Plan`] | no | no |
//!
//! What `docs/threading.md` calls set-up (creating pools, sessions, controllers and paged tensors)
//! may not meet an open step on the same device. No borrow can say so; the calls return
//! [`Status::Busy`] then, and exclude each other. A [`Controller`] that is dropped then ends with
//! the last of the device's open steps.
//!
//! # Callbacks
//!
//! A panic in a [`ReadExpert`] does not cross into C. The load fails, the call that waits for it
//! returns [`Status::Callback`] with the panic's text, and [`Model::take_panic`] has its payload.
//!
//! A callback must not call into the library. Dropping one of its objects would be such a call:
//! what is dropped in a callback is leaked instead, and `close()` says [`Status::Busy`] there.
//!
//! # GPUs
//!
//! Slices are of host memory: on other devices [`Layer::ffn`] and [`PlanExpert::tensor`] return
//! [`Status::Unsupported`]. [`Layer::ffn_raw`], [`PlanExpert::address`], [`KvLayer::address`] and
//! [`PagedTensors::address`] have device memory, [`Stream::from_raw`] takes the caller's stream, and
//! [`sys`] declares what `moepage_cuda.h` adds.
//!
//! # What does not compile
//!
//! Use after close, and closing twice:
//!
//! ```compile_fail,E0382
//! # fn f(device: moepage::Device) {
//! device.close().unwrap();
//! device.info().unwrap();
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(session: moepage::Session<'_>) {
//! session.close().unwrap();
//! session.close().unwrap();
//! # }
//! ```
//!
//! A pool that is gone before its session:
//!
//! ```compile_fail,E0505
//! # use moepage::*;
//! # fn f(pool: ExpertPool<'_>) {
//! let session = Session::create(&pool, None, SessionConfig::default()).unwrap();
//! drop(pool);
//! session.stats().unwrap();
//! # }
//! ```
//! ```compile_fail,E0597
//! # use moepage::*;
//! # fn f(device: &Device, model: &Model) {
//! let mut session;
//! {
//!     let pool = ExpertPool::create(device, model, &Default::default()).unwrap();
//!     session = Session::create(&pool, None, SessionConfig::default()).unwrap();
//! }
//! session.cancel().unwrap();
//! # }
//! ```
//!
//! ```compile_fail,E0597
//! # use moepage::*;
//! # fn f(device: &Device, model: &Model) {
//! let _session; // not used again: that it is dropped after its pool is enough
//! {
//!     let pool = ExpertPool::create(device, model, &Default::default()).unwrap();
//!     _session = Session::create(&pool, None, SessionConfig::default()).unwrap();
//! }
//! # }
//! ```
//! ```compile_fail,E0597
//! # use moepage::*;
//! # fn f(model: &Model) {
//! let _pool;
//! let device = Device::open("host", DeviceConfig::default()).unwrap();
//! _pool = ExpertPool::create(&device, model, &Default::default()).unwrap();
//! # }
//! ```
//! ```compile_fail,E0597
//! # use moepage::*;
//! let _pool;
//! let device = Device::open("host", DeviceConfig::default()).unwrap();
//! _pool = KvPool::create(&device, &Default::default()).unwrap();
//! ```
//! ```compile_fail,E0597
//! # use moepage::*;
//! # fn f(device: &Device) {
//! let _paged;
//! let model = Model::open("model").unwrap();
//! _paged = PagedTensors::create(device, &model, &Default::default()).unwrap();
//! # }
//! ```
//!
//! A session that two threads share:
//!
//! ```compile_fail,E0277
//! # fn f(session: moepage::Session<'_>) {
//! std::thread::scope(|scope| {
//!     scope.spawn(|| session.stats());
//!     scope.spawn(|| session.stats());
//! });
//! # }
//! ```
//!
//! Two steps of one session:
//!
//! ```compile_fail,E0499
//! # use moepage::*;
//! # fn f(session: &mut Session<'_>) {
//! let one = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
//! let two = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
//! one.end().unwrap();
//! # }
//! ```
//!
//! A plan that outlives its group, its layer, or its step:
//!
//! ```compile_fail,E0502
//! # fn f(mut layer: moepage::Layer<'_>) {
//! let plan = layer.plan().unwrap();
//! layer.next_group().unwrap();
//! println!("{:?}", plan.rows());
//! # }
//! ```
//! ```compile_fail,E0505
//! # fn f(layer: moepage::Layer<'_>) {
//! let expert = layer.plan().unwrap().experts().next().unwrap();
//! layer.retire().unwrap();
//! println!("{:?}", expert.tensor(0).unwrap().bytes());
//! # }
//! ```
//! ```compile_fail,E0505
//! # use moepage::*;
//! # fn f(step: Step<'_>, routing: Routing<'_>) {
//! let layer = step.route(0, &routing).unwrap();
//! step.end().unwrap();
//! layer.retire().unwrap();
//! # }
//! ```
//!
//! Activations of a type that the kernels do not take:
//!
//! ```compile_fail,E0277
//! # fn f(mut layer: moepage::Layer<'_>) {
//! layer.ffn(&[0i32; 64], &mut [0i32; 64]).unwrap();
//! # }
//! ```
//!
//! A sequence that changes under a step that names it:
//!
//! ```compile_fail,E0502
//! # use moepage::*;
//! # fn f(session: &mut Session<'_>, mut sequence: Sequence<'_>) {
//! let part = [StepSequence { sequence: Some(&sequence), n_tokens: 1, phase: Phase::Decode }];
//! let step = session.begin(&StepInput::sequences(&part)).unwrap();
//! sequence.append(1, Stream::default()).unwrap();
//! step.end().unwrap();
//! # }
//! ```
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

mod banks;
pub mod codec;
mod controller;
mod device;
mod engine;
mod error;
mod experts;
mod gate;
mod handle;
mod kv;
mod log;
mod model;
mod paged;
mod plan;
mod predictor;
mod session;
mod stats;
mod step;
mod trace;
mod types;

pub use banks::{
    Banks, Bytes, DenseTensor, ExpertPart, ExpertTensor, Experts, FilePlace, ReadError, ReadExpert,
};
pub use controller::{
    ControlMode, ControlOutcome, Controller, ControllerConfig, ControllerInfo, ControllerReport,
    CurveOf, KvMiss,
};
pub use device::{Device, DeviceConfig, DeviceInfo, BUDGET_AUTO};
pub use engine::{Engine, EngineConfig};
pub use error::{Error, Result, Status};
pub use experts::{
    DeviceBytes, ExpertPool, ExpertPoolConfig, ExpertPoolInfo, Hotness, PinnedExpert, Placement,
    PrecisionConfig, Residency, Scope, Serve, SessionStats,
};
pub use handle::Ref;
pub use kv::{
    set_split, KvAdmission, KvLayer, KvPool, KvPoolConfig, KvPoolInfo, Sequence, SequenceInfo,
};
pub use log::{LogLevel, Logger};
pub use model::{
    FormInfo, MatrixInputs, Metadata, Model, ModelConfig, ModelInfo, PackConfig, PackStats,
};
pub use moepage_sys as sys;
pub use paged::{AcquiredLayer, PagedAddress, PagedConfig, PagedState, PagedTensors};
pub use plan::{Plan, PlanExpert};
pub use predictor::{Predictor, PredictorConfig, PredictorInfo, Rightsize};
pub use session::{
    Grouping, Math, Miss, Prefetch, PrefetchInfo, Regime, RemapConfig, RouterGate, Session,
    SessionConfig,
};
pub use stats::StatsSource;
pub use step::{FfnOptions, KvTable, Layer, Routing, Step, StepInput, StepSequence};
pub use trace::{TraceInfo, TraceReader, TraceSequence, TraceStep, TraceWriter};
pub use types::{
    Activation, Bf16, Dtype, Element, ExpertActivation, Form, Phase, Role, Stream, TensorRef, F16,
};

/// A routed id that names no expert.
pub const NO_EXPERT: i32 = sys::MOEPAGE_NO_EXPERT;

/// The version of the library that is linked, as `major * 10000 + minor * 100 + patch`.
pub fn version() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { sys::moepage_version() }
}

/// The same as text.
pub fn version_text() -> &'static str {
    // SAFETY: static and NUL-terminated.
    unsafe { types::text_at(sys::moepage_version_text()) }
}
