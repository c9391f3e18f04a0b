//! Keeps set-up calls apart from steps: the part of the threading contract that borrows cannot say.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result, Status};

/// One per device. Set-up calls on what lives there come one at a time, and never while a step is
/// open on one of its sessions.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Moves of the split come one at a time.
    pub(crate) split: Mutex<()>,
}

#[derive(Default)]
struct State {
    open_steps: usize,
    in_set_up: bool,
    /// Set-up calls that wait for the last open step to end.
    put_off: Vec<PutOff>,
}

type PutOff = Box<dyn FnOnce() + Send>;

/// The gates of an object's devices, in an order that is the same for everybody.
pub(crate) type Gates = Arc<[Arc<Gate>]>;

pub(crate) fn ordered(mut gates: Vec<Arc<Gate>>) -> Gates {
    gates.sort_by_key(Arc::as_ptr);
    gates.dedup_by_key(|gate| Arc::as_ptr(gate));
    gates.into()
}

/// A lock that protects no data cannot be left in a bad state by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// The state once no set-up is under way.
    fn settled(&self) -> MutexGuard<'_, State> {
        let state = lock(&self.state);
        self.changed
            .wait_while(state, |state| state.in_set_up)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn enter_set_up(&self) -> Result<()> {
        let mut state = self.settled();
        if state.open_steps > 0 {
            let n = state.open_steps;
            return Err(Error::new(
                Status::Busy,
                format!("{n} open step(s) on the device: set things up between steps"),
            ));
        }
        state.in_set_up = true;
        Ok(())
    }

    fn leave_set_up(&self) {
        lock(&self.state).in_set_up = false;
        self.changed.notify_all();
    }

    /// Runs a set-up call that nobody waits for: now, or else when no step is open any more.
    pub(crate) fn when_idle(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.settled();
        state.put_off.push(Box::new(call));
        self.run_put_off(state);
    }

    fn run_put_off(&self, mut state: MutexGuard<'_, State>) {
        if state.open_steps > 0 || state.put_off.is_empty() {
            return;
        }
        let calls = std::mem::take(&mut state.put_off);
        state.in_set_up = true;
        drop(state);
        calls.into_iter().for_each(|call| call());
        self.leave_set_up();
    }
}

/// Held while a step is open.
pub(crate) struct OpenStep(Gates);

impl OpenStep {
    /// Waits for set-ups under way.
    pub(crate) fn enter(gates: &Gates) -> Self {
        for gate in gates.iter() {
            gate.settled().open_steps += 1;
        }
        OpenStep(Arc::clone(gates))
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        for gate in self.0.iter() {
            let mut state = lock(&gate.state);
            state.open_steps -= 1;
            gate.run_put_off(state);
        }
    }
}

/// Runs a set-up call; [`Status::Busy`] while a step is open.
pub(crate) fn set_up<T>(gates: &[Arc<Gate>], call: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Entered<'g>(&'g [Arc<Gate>]);
    impl Drop for Entered<'_> {
        fn drop(&mut self) {
            self.0.iter().for_each(|gate| gate.leave_set_up());
        }
    }
    let mut entered = Entered(&[]);
    for (i, gate) in gates.iter().enumerate() {
        gate.enter_set_up()?;
        entered.0 = &gates[..=i];
    }
    call()
}
