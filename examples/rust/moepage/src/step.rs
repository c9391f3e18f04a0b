//! A step, its layers, and their plans. Each borrows from the one before: what has ended, or moved
//! on, cannot be looked at.
use std::fmt;

use moepage_sys as sys;

use crate::error::{check, Error, Result, Status};
use crate::experts::{ExpertPool, SessionStats};
use crate::kv::{KvPool, Sequence};
use crate::plan::Plan;
use crate::session::Core;
use crate::types::{count, pointer_of, slice_at, Activation, Phase, Stream};

/// One sequence's share of a step; its tokens are consecutive in the batch.
#[derive(Clone, Copy, Debug)]
pub struct StepSequence<'q> {
    /// In the session's KV pool, or none.
    pub sequence: Option<&'q Sequence<'q>>,
    /// At least one.
    pub n_tokens: u32,
    /// What they are.
    pub phase: Phase,
}

impl StepSequence<'_> {
    pub(crate) fn raw(&self) -> sys::moepage_step_sequence {
        sys::moepage_step_sequence {
            seq: self.sequence.map_or(0, |sequence| sequence.id()),
            n_tokens: self.n_tokens,
            phase: self.phase.code(),
        }
    }
}

/// What a step is of.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInput<'q> {
    /// Tokens of one anonymous sequence; used when `sequences` is empty.
    pub n_tokens: u32,
    /// What they are; used when `sequences` is empty.
    pub phase: Phase,
    /// Whose tokens the batch consists of.
    pub sequences: &'q [StepSequence<'q>],
    /// `[sequences][dim]`: an embedding of each sequence.
    pub semantic: Option<&'q [f32]>,
}

impl<'q> StepInput<'q> {
    /// Tokens of one sequence that is in no KV pool.
    pub fn tokens(n_tokens: u32, phase: Phase) -> Self {
        StepInput { n_tokens, phase, ..Default::default() }
    }

    /// Tokens of several sequences.
    pub fn sequences(sequences: &'q [StepSequence<'q>]) -> Self {
        StepInput { sequences, ..Default::default() }
    }

    pub(crate) fn raw(
        &self,
        sequences: &[sys::moepage_step_sequence],
    ) -> Result<sys::moepage_step> {
        let tokens = sequences.iter().map(|each| u64::from(each.n_tokens)).sum::<u64>();
        let n = sequences.len().max(1);
        let semantic_dim = match self.semantic {
            Some(semantic) if semantic.len() % n != 0 => {
                let values = semantic.len();
                return Err(Error::argument(format!(
                    "{values} semantic values are no embeddings of {n} sequences"
                )));
            }
            Some(semantic) => count(semantic.len() / n, "semantic values")?,
            None => 0,
        };
        let n_tokens =
            if sequences.is_empty() { self.n_tokens } else { count(tokens as usize, "tokens")? };
        Ok(sys::moepage_step {
            n_tokens,
            n_sequences: count(sequences.len(), "sequences")?,
            phase: self.phase.code(),
            sequences: sequences.as_ptr(),
            semantic: pointer_of(self.semantic),
            semantic_dim,
            ..Default::default()
        })
    }
}

/// A router's choices for a batch.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'r> {
    /// `[tokens][top_k]`, each an expert or [`crate::NO_EXPERT`].
    pub ids: &'r [i32],
    /// `[tokens][top_k]`, finite. [`Step::route_planned`] takes routing without any, which has
    /// weights of 1.
    pub weights: &'r [f32],
    /// `[tokens][experts]`: the router's full output.
    pub probabilities: Option<&'r [f32]>,
    /// `[tokens][experts]`: what the gate was applied to.
    pub logits: Option<&'r [f32]>,
    /// `[tokens][hidden]`: the router's input.
    pub hidden: Option<&'r [f32]>,
    /// Of the caller's kernels that read the plan's slots.
    pub stream: Stream,
}

impl<'r> Routing<'r> {
    /// Ids and weights alone.
    pub fn new(ids: &'r [i32], weights: &'r [f32]) -> Self {
        let stream = Stream::default();
        Routing { ids, weights, probabilities: None, logits: None, hidden: None, stream }
    }

    /// Ids alone, for [`Step::route_planned`].
    pub fn unweighted(ids: &'r [i32]) -> Self {
        Routing::new(ids, &[])
    }

    fn raw(&self, step: &Step<'_>, planned: bool) -> Result<sys::moepage_routing> {
        let (n, dims) = (step.n_tokens, step.core.dims);
        let unweighted = planned && self.weights.is_empty();
        let weighted = unweighted || self.weights.len() == self.ids.len();
        if self.ids.is_empty() || self.ids.len() % n != 0 || !weighted {
            return Err(Error::argument(format!(
                "{} ids and {} weights are no choices of {n} tokens",
                self.ids.len(),
                self.weights.len()
            )));
        }
        let wanted = [
            ("probabilities", self.probabilities, dims.experts),
            ("logits", self.logits, dims.experts),
            ("hidden", self.hidden, dims.hidden),
        ];
        for (name, given, width) in wanted {
            let len = given.map_or(n * width, <[f32]>::len);
            if len != n * width {
                return Err(Error::argument(format!(
                    "{name} has {len} values, {n} tokens of {width} take {}",
                    n * width
                )));
            }
        }
        Ok(sys::moepage_routing {
            top_k: count(self.ids.len() / n, "choices")?,
            ids: self.ids.as_ptr(),
            weights: if unweighted { std::ptr::null() } else { self.weights.as_ptr() },
            probabilities: pointer_of(self.probabilities),
            stream: self.stream.raw(),
            logits: pointer_of(self.logits),
            hidden: pointer_of(self.hidden),
            ..Default::default()
        })
    }
}

/// The blocks of a sequence while a step is open.
#[derive(Clone, Copy, Debug)]
pub struct KvTable<'t> {
    /// Ids, for [`crate::KvLayer`]; empty when it is swapped out.
    pub blocks: &'t [u32],
    /// Tokens in them.
    pub n_tokens: u64,
}

/// An open step. Dropping it without [`Step::end`] cancels it.
#[must_use = "a step that is dropped is cancelled"]
pub struct Step<'s> {
    core: &'s mut Core,
    experts: &'s ExpertPool<'s>,
    kv: Option<&'s KvPool<'s>>,
    n_tokens: usize,
}

impl<'s> Step<'s> {
    pub(crate) fn new(
        core: &'s mut Core,
        experts: &'s ExpertPool<'s>,
        kv: Option<&'s KvPool<'s>>,
        n_tokens: usize,
    ) -> Self {
        Step { core, experts, kv, n_tokens }
    }

    /// Announces the routing of an MoE layer: absent experts begin to load, for [`Layer::ffn`] to
    /// wait for as it goes. Up to four layers may be open together.
    pub fn route(&self, layer: u32, routing: &Routing<'_>) -> Result<Layer<'_>> {
        let raw = routing.raw(self, false)?;
        // SAFETY: the step is open; `routing.raw` has checked the slices.
        let status = unsafe {
            sys::moepage_session_route(self.core.raw(), layer, &raw, std::ptr::null_mut())
        };
        self.experts.model().check(status)?;
        Ok(Layer { step: self, layer, plan: None })
    }

    /// The same for the caller's own kernels: waits for the first group's experts, which
    /// [`Layer::plan`] then shows.
    pub fn route_planned(&self, layer: u32, routing: &Routing<'_>) -> Result<Layer<'_>> {
        let raw = routing.raw(self, true)?;
        let mut plan = sys::moepage_plan::default();
        // SAFETY: the step is open; `routing.raw` has checked the slices; `plan` says its size.
        let status = unsafe { sys::moepage_session_route(self.core.raw(), layer, &raw, &mut plan) };
        self.experts.model().check(status)?;
        Ok(Layer { step: self, layer, plan: Some(plan) })
    }

    /// Names experts that will probably be routed in `layer`, the likeliest first.
    pub fn hint(&self, layer: u32, experts: &[i32]) -> Result<()> {
        self.core.hint(layer, experts)
    }

    /// A sequence's blocks. They stand still while step and sequence are borrowed: nothing resizes
    /// a pool under the open step of a session that uses it.
    pub fn kv_table<'t>(&'t self, sequence: &'t Sequence<'_>) -> Result<KvTable<'t>> {
        match self.kv {
            Some(kv) if kv.raw() == sequence.pool().raw() => {}
            _ => return Err(Error::new(Status::Handle, "the sequence is of another KV pool")),
        }
        let table = sequence.table()?;
        // SAFETY: `n_blocks` ids, which do not change while this step is open and the sequence is
        // borrowed.
        let blocks = unsafe { slice_at(table.blocks, table.n_blocks as usize) };
        Ok(KvTable { blocks, n_tokens: table.n_tokens })
    }

    /// Tokens of the batch.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Closes it, and says what it did. [`Status::State`] if a layer was leaked: the step is then
    /// cancelled.
    pub fn end(self) -> Result<SessionStats> {
        let mut stats = SessionStats::default();
        // SAFETY: the step is open; `stats` says its size.
        check(unsafe { sys::moepage_session_end(self.core.raw(), &mut stats) })?;
        self.core.step_has_ended();
        Ok(stats)
    }

    /// Drops it, as dropping the value does, and says whether all went well.
    pub fn cancel(self) -> Result<()> {
        self.core.cancel()
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // Refused only while a stream of the step is being captured: it then stays open, and
        // `Session::cancel` tries again.
        let _ = self.core.cancel();
    }
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("n_tokens", &self.n_tokens).finish()
    }
}

/// How [`Layer::ffn_with`] reads and writes rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct FfnOptions {
    /// Elements from row to row of `x`; 0 = hidden.
    pub x_stride: usize,
    /// Elements from row to row of `y`; 0 = hidden.
    pub y_stride: usize,
    /// Adds to what `y` holds.
    pub accumulate: bool,
}

/// An open layer of a step. Dropping it retires it.
#[must_use = "a layer that is dropped is retired"]
pub struct Layer<'t> {
    step: &'t Step<'t>,
    layer: u32,
    /// Of the group that is held, if any.
    plan: Option<sys::moepage_plan>,
}

impl Layer<'_> {
    /// The group that is held; `None` where the layer was routed without a plan, and after
    /// [`Layer::ffn`] or a [`Layer::next_group`] that failed.
    pub fn plan(&self) -> Option<Plan<'_>> {
        let raw = self.plan?;
        let top_k = raw.top_k as usize * self.step.n_tokens;
        Some(Plan::new(raw, self.step.experts, top_k, self.step.core.dims.experts))
    }

    /// Gives the group's slots back and takes the next group; false, and the group is kept, after
    /// the last. After a failure no group is held, and the call may be repeated.
    pub fn next_group(&mut self) -> Result<bool> {
        if self.plan.map_or(false, |plan| plan.group + 1 == plan.n_groups) {
            return Ok(false);
        }
        self.plan = None;
        let mut plan = sys::moepage_plan::default();
        // SAFETY: the layer is open; `plan` says its size.
        let status =
            unsafe { sys::moepage_session_next_group(self.step.core.raw(), self.layer, &mut plan) };
        self.step.experts.model().check(status)?;
        self.plan = Some(plan);
        Ok(true)
    }

    /// Runs the layer's experts: `y = sum over k of weight_k * expert_k(x)`, both `[tokens][hidden]`
    /// in host memory. A row has the same bits whatever is resident. After a failure the call may
    /// be repeated.
    pub fn ffn<T: Activation>(&mut self, x: &[T], y: &mut [T]) -> Result<()> {
        self.ffn_with(x, y, FfnOptions::default())
    }

    /// The same with strides, or adding to `y`.
    pub fn ffn_with<T: Activation>(
        &mut self,
        x: &[T],
        y: &mut [T],
        options: FfnOptions,
    ) -> Result<()> {
        self.step.experts.need_host("ffn of slices")?;
        check_rows("x", x.len(), self.step, options.x_stride)?;
        check_rows("y", y.len(), self.step, options.y_stride)?;
        let raw = sys::moepage_ffn {
            dtype: T::DTYPE.code(),
            x: x.as_ptr().cast(),
            y: y.as_mut_ptr().cast(),
            x_stride: options.x_stride as u64,
            y_stride: options.y_stride as u64,
            accumulate: u32::from(options.accumulate),
            ..Default::default()
        };
        // SAFETY: both slices have the rows, and on the host the call is done with them when it
        // returns.
        unsafe { self.ffn_raw(&raw) }
    }

    /// The same on device memory.
    ///
    /// # Safety
    /// `x` and `y` are as `moepage_ffn` in `moepage.h` wants them: for CUDA, device memory that
    /// stays until the stream has passed.
    pub unsafe fn ffn_raw(&mut self, ffn: &sys::moepage_ffn) -> Result<()> {
        self.plan = None;
        // SAFETY: the layer is open; the rest is the caller's promise.
        let status = unsafe { sys::moepage_session_ffn(self.step.core.raw(), self.layer, ffn) };
        self.step.experts.model().check(status)
    }

    /// Ends it, as dropping it does, and says whether all went well: its slots may be evicted. All
    /// kernels that read them have been submitted.
    pub fn retire(self) -> Result<()> {
        std::mem::ManuallyDrop::new(self).give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        // SAFETY: the layer is open.
        check(unsafe { sys::moepage_session_retire(self.step.core.raw(), self.layer) })
    }
}

impl Drop for Layer<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}

impl fmt::Debug for Layer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("layer", &self.layer).field("plan", &self.plan()).finish()
    }
}

fn check_rows(name: &str, len: usize, step: &Step<'_>, stride: usize) -> Result<()> {
    let (n, hidden) = (step.n_tokens, step.core.dims.hidden);
    let stride = if stride == 0 { hidden } else { stride };
    let needed = (n - 1).checked_mul(stride).and_then(|before| before.checked_add(hidden));
    if needed.map_or(false, |needed| needed <= len) {
        return Ok(());
    }
    Err(Error::argument(format!(
        "{name} has {len} elements, too few for {n} rows of {hidden} that are {stride} apart"
    )))
}
