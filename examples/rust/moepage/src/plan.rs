//! What a group of a layer's experts consists of, for the caller's own kernels.
use std::fmt;
use std::os::raw::c_void;

use moepage_sys as sys;

use crate::banks::ExpertTensor;
use crate::error::{Error, Result, Status};
use crate::experts::ExpertPool;
use crate::types::{slice_at, Dtype, TensorRef};

/// One group of one layer of a step. It borrows from its layer, which therefore cannot be retired,
/// or move on to the next group, while anything of the plan is in use.
#[derive(Clone, Copy)]
pub struct Plan<'l> {
    raw: sys::moepage_plan,
    pool: &'l ExpertPool<'l>,
    choices: usize,
    experts: usize,
}

impl<'l> Plan<'l> {
    pub(crate) fn new(
        raw: sys::moepage_plan,
        pool: &'l ExpertPool<'l>,
        choices: usize,
        experts: usize,
    ) -> Self {
        Plan { raw, pool, choices, experts }
    }

    /// MoE layer.
    pub fn layer(&self) -> u32 {
        self.raw.layer
    }

    /// Which group it is, of [`Plan::groups`].
    pub fn group(&self) -> u32 {
        self.raw.group
    }

    /// How many there are.
    pub fn groups(&self) -> u32 {
        self.raw.n_groups
    }

    /// Choices per token.
    pub fn top_k(&self) -> u32 {
        self.raw.top_k
    }

    /// The group's experts.
    pub fn experts(&self) -> impl ExactSizeIterator<Item = PlanExpert<'l>> + 'l {
        // SAFETY: the library keeps them until the layer moves on, which the borrow excludes.
        let experts = unsafe { slice_at(self.raw.experts, self.raw.n_experts as usize) };
        let plan = *self;
        experts.iter().map(move |raw| PlanExpert { raw, plan })
    }

    /// `token * top_k + k`, sorted by expert.
    pub fn rows(&self) -> &'l [u32] {
        // SAFETY: as in `experts`.
        unsafe { slice_at(self.raw.rows, self.raw.n_rows as usize) }
    }

    /// The group's tokens, ascending; `None` = all.
    pub fn tokens(&self) -> Option<&'l [u32]> {
        // SAFETY: as in `experts`.
        let tokens = unsafe { slice_at(self.raw.tokens, self.raw.n_tokens as usize) };
        (!self.raw.tokens.is_null()).then_some(tokens)
    }

    /// `[step's tokens][top_k]` effective ids.
    pub fn ids(&self) -> &'l [i32] {
        // SAFETY: as in `experts`.
        unsafe { slice_at(self.raw.ids, self.choices) }
    }

    /// `[step's tokens][top_k]` effective weights.
    pub fn weights(&self) -> &'l [f32] {
        // SAFETY: as in `experts`.
        unsafe { slice_at(self.raw.weights, self.choices) }
    }

    /// `[experts]`: the slot of each expert of this group, else -1.
    pub fn expert_map(&self) -> &'l [i32] {
        // SAFETY: as in `experts`.
        unsafe { slice_at(self.raw.expert_map, self.experts) }
    }

    /// What each of its layer's experts consists of.
    fn tensors(&self) -> &'l [ExpertTensor] {
        &self.pool.tensors[self.layer() as usize]
    }

    /// With one device: the expert in slot s lies at base + s * stride of device memory.
    pub fn slots(&self) -> (*mut c_void, u64) {
        (self.raw.slot_base, self.raw.slot_stride_bytes)
    }
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// One expert of a plan.
#[derive(Clone, Copy)]
pub struct PlanExpert<'l> {
    raw: &'l sys::moepage_plan_expert,
    plan: Plan<'l>,
}

impl<'l> PlanExpert<'l> {
    /// Id within the layer.
    pub fn expert(&self) -> u32 {
        self.raw.expert
    }

    /// On its device; `None` for a low version, which is in none.
    pub fn slot(&self) -> Option<u32> {
        u32::try_from(self.raw.slot).ok()
    }

    /// Index into the pool's devices.
    pub fn device(&self) -> u32 {
        self.raw.device
    }

    /// Of its weights in this version, if this crate knows.
    pub fn dtype(&self) -> Option<Dtype> {
        Dtype::from_code(self.raw.dtype)
    }

    /// Its rows of the plan.
    pub fn rows(&self) -> &'l [u32] {
        let first = self.raw.first_row as usize;
        &self.plan.rows()[first..first + self.raw.n_rows as usize]
    }

    /// The device address of one of its tensors.
    pub fn address(&self, tensor: usize) -> Option<*const c_void> {
        // SAFETY: one pointer for each of the model's expert tensors.
        let tensors = unsafe { slice_at(self.raw.tensors, self.plan.tensors().len()) };
        tensors.get(tensor).copied()
    }

    /// One of its tensors, on a host device, in the checkpoint's own numbers.
    pub fn tensor(&self, tensor: usize) -> Result<TensorRef<'l>> {
        self.plan.pool.need_host("a tensor's slice")?;
        let tensors = self.plan.tensors();
        let (of, address) = match (tensors.get(tensor), self.address(tensor)) {
            (Some(of), Some(address)) => (of, address),
            _ => {
                let n = tensors.len();
                return Err(Error::argument(format!("tensor is {tensor}, experts have {n}")));
            }
        };
        let (dtype, wanted) = (self.dtype(), weights_dtype(tensors));
        match of.dtype() {
            Some(own) if dtype == wanted => {
                // SAFETY: the slot holds the tensor as the model lays it out, and is not written
                // while the plan is open, which the borrow sees to.
                let bytes = unsafe { slice_at(address.cast::<u8>(), of.bytes() as usize) };
                Ok(TensorRef::new(own, of.shape(), bytes))
            }
            _ => Err(Error::new(
                Status::Unsupported,
                format!("expert {} is here in {dtype:?}, packed", self.expert()),
            )),
        }
    }
}

impl fmt::Debug for PlanExpert<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// The type of the first tensor is what plans say of experts in the checkpoint's numbers.
fn weights_dtype(tensors: &[ExpertTensor]) -> Option<Dtype> {
    tensors.first().and_then(ExpertTensor::dtype)
}
