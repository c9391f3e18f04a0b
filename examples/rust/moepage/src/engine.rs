//! Everything that experts are served with, opened together.
use std::ffi::CString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use moepage_sys as sys;

use crate::device::{raw_config, Device, DeviceConfig};
use crate::error::{Error, Result};
use crate::experts::{ExpertPool, ExpertPoolConfig, SessionStats};
use crate::handle::{Handle, Ref};
use crate::kv::{KvPool, KvPoolConfig};
use crate::log::Log;
use crate::model::Model;
use crate::predictor::{Predictor, PredictorConfig};
use crate::session::{Session, SessionConfig};
use crate::step::{Step, StepInput};
use crate::types::{c_path, c_text, pointer_or_null};

/// How an engine is opened. Zero and `None` are the defaults.
#[derive(Default)]
pub struct EngineConfig {
    /// All that the device may hold: workspaces, KV blocks and expert slots; or [`crate::BUDGET_AUTO`].
    pub budget_bytes: u64,
    /// Instead: so many percent of all experts have a slot; the rest comes on top.
    pub budget_percent: f64,
    /// `host`, `cuda:N`, `sim:FILE`; `None` = `host`.
    pub device_name: Option<String>,
    /// Of its sizes the engine decides: they must be 0.
    pub device: DeviceConfig,
    /// `slots` 0 = what the budget leaves.
    pub experts: ExpertPoolConfig,
    /// `None` = no KV pool.
    pub kv: Option<KvPoolConfig>,
    /// Of the engine's session.
    pub session: SessionConfig<'static>,
    /// The engine makes one for its session; `None` = none.
    pub predictor: Option<PredictorConfig>,
    /// Workspace kept for what is added to the engine.
    pub extra_workspace_bytes: u64,
    /// Arena that the pools do not take.
    pub extra_arena_bytes: u64,
    /// That will share the expert pool; 0 = 1.
    pub sessions: u32,
}

/// Closes the engine when the last object that it lent is gone.
pub(crate) struct Lender {
    handle: Handle<sys::moepage_engine, (Log, Option<Arc<Model>>)>,
}

// SAFETY: docs/threading.md: its getters are for any thread, and closing takes the last owner, when
// nothing is left that could step.
unsafe impl Send for Lender {}
// SAFETY: the same.
unsafe impl Sync for Lender {}

/// A device, a model, pools and a session under one budget. It may move between threads, and is
/// used by one at a time, as its session.
///
/// Its parts can be shared ([`Engine::experts`] and so on). What they stand on is closed when the
/// last of them is dropped, the engine itself included.
pub struct Engine {
    // In the order in which they are to be dropped.
    session: Session<'static>,
    predictor: Option<Arc<Predictor>>,
    kv: Option<Arc<KvPool<'static>>>,
    experts: Arc<ExpertPool<'static>>,
    model: Arc<Model>,
    device: Arc<Device>,
    lender: Arc<Lender>,
    layers: u32,
}

impl Engine {
    /// Opens what [`Model::open`] opens. `options` is text for command lines, `budget=8G policy=cycle`, which takes
    /// precedence over the config; it may be empty.
    pub fn open(path: impl AsRef<Path>, options: &str, config: EngineConfig) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        Engine::open_any(Some(path), None, options, config)
    }

    /// The same over a model that is open.
    pub fn over(model: Arc<Model>, options: &str, config: EngineConfig) -> Result<Self> {
        Engine::open_any(None, Some(model), options, config)
    }

    fn open_any(
        path: Option<CString>,
        model: Option<Arc<Model>>,
        options: &str,
        mut config: EngineConfig,
    ) -> Result<Self> {
        let options = c_text(options, "options")?;
        let log = Log::new(config.device.log.take());
        let lender = config.with_raw(&log, model.as_deref(), |raw| {
            let keep = (log.clone(), model.clone());
            let handle = Handle::create_keeping(keep, |out| {
                // SAFETY: all pointers are valid for the call; the log and the model live in the
                // handle.
                unsafe {
                    sys::moepage_engine_open(pointer_or_null(&path), options.as_ptr(), raw, out)
                }
            });
            let explain = |error| match &model {
                Some(model) => model.explain(error),
                None => error,
            };
            Ok(Arc::new(Lender { handle: handle.map_err(explain)? }))
        })?;
        Engine::lend(lender, config, model)
    }

    /// The objects that the engine has opened, as this crate's.
    fn lend(lender: Arc<Lender>, config: EngineConfig, model: Option<Arc<Model>>) -> Result<Self> {
        let engine = lender.handle.raw();
        // SAFETY: the engine is live.
        let device = unsafe { sys::moepage_engine_device(engine) };
        let device = Handle::lent(device, Log::new(None), &lender).ok_or_else(missing)?;
        let device = Arc::new(Device::new(device)?);
        // SAFETY: the same.
        let own_model = || unsafe { Model::lent(sys::moepage_engine_model(engine), &lender) };
        let model = model.or_else(|| own_model().map(Arc::new)).ok_or_else(missing)?;
        // SAFETY: the same.
        let experts = unsafe { sys::moepage_engine_expert_pool(engine) };
        let experts = Handle::lent(experts, (), &lender).ok_or_else(missing)?;
        let devices = vec![Ref::Shared(Arc::clone(&device))];
        let experts = ExpertPool::new(experts, devices, Ref::Shared(Arc::clone(&model)))?;
        // SAFETY: the same.
        let kv = unsafe { sys::moepage_engine_kv_pool(engine) };
        let kv = match Handle::lent(kv, (), &lender).zip(config.kv) {
            Some((kv, of)) => Some(Arc::new(KvPool::new(
                kv,
                Ref::Shared(Arc::clone(&device)),
                of.bytes_per_token,
            )?)),
            None => None,
        };
        // SAFETY: the same.
        let predictor = unsafe { Predictor::lent(sys::moepage_engine_predictor(engine), &lender) };
        let (experts, predictor) = (Arc::new(experts), predictor.map(Arc::new));
        // SAFETY: the same.
        let session = unsafe { sys::moepage_engine_session(engine) };
        let session = Session::new(
            Handle::lent(session, None, &lender).ok_or_else(missing)?,
            Ref::Shared(Arc::clone(&experts)),
            kv.clone().map(Ref::Shared),
            config.session.predictor.or_else(|| predictor.clone().map(Ref::Shared)),
        )?;
        // SAFETY: the same.
        let layers = unsafe { sys::moepage_engine_layers(engine) };
        Ok(Engine { session, predictor, kv, experts, model, device, lender, layers })
    }

    /// Opens a step of its session: as [`Session::begin`].
    pub fn begin<'s>(&'s mut self, input: &StepInput<'s>) -> Result<Step<'s>> {
        self.session.begin(input)
    }

    /// The model's MoE layers.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Sums over all ended or cancelled steps of its session.
    pub fn stats(&self) -> Result<SessionStats> {
        self.session.stats()
    }

    /// Its session, for everything else that sessions do.
    pub fn session(&mut self) -> &mut Session<'static> {
        &mut self.session
    }

    /// Its expert pool: more sessions may be created on it.
    pub fn experts(&self) -> &Arc<ExpertPool<'static>> {
        &self.experts
    }

    /// Its KV pool, if the config has one.
    pub fn kv(&self) -> Option<&Arc<KvPool<'static>>> {
        self.kv.as_ref()
    }

    /// The predictor that it made, if the config or the options have one.
    pub fn predictor(&self) -> Option<&Arc<Predictor>> {
        self.predictor.as_ref()
    }

    /// Its model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The handle, for what `moepage_sys` has and this crate has not.
    pub fn raw(&self) -> *mut sys::moepage_engine {
        self.lender.handle.raw()
    }

    /// Ends it, as dropping it does, and says whether all went well. Where parts of it are shared,
    /// it ends with the last of them.
    pub fn close(self) -> Result<()> {
        let Engine { session, predictor, kv, experts, model, device, lender, .. } = self;
        session.close()?;
        drop((predictor, kv, experts, model, device));
        match Arc::try_unwrap(lender) {
            Ok(last) => last.handle.close(),
            Err(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engine").field(&self.experts).finish()
    }
}

fn missing() -> Error {
    Error::argument("the engine lacks a part that every engine has")
}

impl EngineConfig {
    /// Calls with the config in C's words.
    fn with_raw<T>(
        &self,
        log: &Log,
        model: Option<&Model>,
        call: impl FnOnce(&sys::moepage_engine_config) -> Result<T>,
    ) -> Result<T> {
        let name = self.device_name.as_ref().map(|name| c_text(name, "device")).transpose()?;
        let device = raw_config(&self.device, log);
        let kv = self.kv.as_ref().map(KvPoolConfig::raw).transpose()?;
        let session = self.session.raw();
        let raw = sys::moepage_engine_config {
            budget_bytes: self.budget_bytes,
            budget_percent: self.budget_percent,
            device_name: pointer_or_null(&name),
            device: &device,
            kv: kv.as_ref().map_or(std::ptr::null(), |kv| kv),
            session: &session,
            model: model.map_or(std::ptr::null_mut(), Model::raw),
            extra_workspace_bytes: self.extra_workspace_bytes,
            extra_arena_bytes: self.extra_arena_bytes,
            sessions: self.sessions,
            ..Default::default()
        };
        self.experts.with_raw(|experts| match &self.predictor {
            None => call(&sys::moepage_engine_config { experts, ..raw }),
            Some(of) => of.with_raw(|predictor| {
                call(&sys::moepage_engine_config { experts, predictor, ..raw })
            }),
        })
    }
}
