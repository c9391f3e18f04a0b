//! Callbacks serve, fail, and panic, and nothing of it crosses into C. (`resume_unwind` panics without
//! a word on stderr.)
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use moepage::*;

use crate::set_up::*;

const X: [f32; HIDDEN] = [0.5; HIDDEN];

fn read_model<F>(read: F) -> Model
where
    F: Fn(ExpertPart, &mut [u8]) -> std::result::Result<(), ReadError> + Send + Sync + 'static,
{
    let banks = Banks { source: Experts::Read(Box::new(read)), ..shape(Dtype::F32) };
    Model::from_banks(banks, ModelConfig::default()).unwrap()
}

/// Serves the same numbers as banks in memory would.
fn serve(weights: &Weights, part: ExpertPart, out: &mut [u8]) {
    let expert = (part.layer * EXPERTS + part.expert) as usize;
    let of = if part.tensor == 0 { &weights.gate_up } else { &weights.down };
    let bytes = as_bytes(Dtype::F32, &of[expert]);
    out.copy_from_slice(&bytes.as_slice()[part.offset as usize..][..out.len()]);
}

fn first_layer(session: &mut Session<'_>) -> Result<Vec<f32>> {
    let (ids, top) = choices(1);
    let step = session.begin(&StepInput::tokens(1, Phase::Decode))?;
    let mut y = vec![0.0; HIDDEN];
    let mut layer = step.route(0, &Routing::new(&ids, &top))?;
    layer.ffn(&X, &mut y)?;
    layer.retire()?;
    step.end()?;
    Ok(y)
}

#[test]
fn serve_what_memory_serves() {
    let weights = Arc::new(Weights::new());
    let reading = Arc::clone(&weights);
    let read = read_model(move |part, out| {
        serve(&reading, part, out);
        Ok(())
    });
    let held = weights.model(Dtype::F32);
    let outputs: Vec<_> = [&read, &held]
        .iter()
        .map(|model| {
            let device = device();
            let pool = pool(&device, model, 4);
            let mut session = session(&pool);
            first_layer(&mut session).unwrap()
        })
        .collect();
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn that_fail_are_errors_with_their_text() {
    let broken = Arc::new(AtomicBool::new(true));
    let (weights, switch) = (Weights::new(), Arc::clone(&broken));
    let model = read_model(move |part, out| {
        if switch.load(Ordering::SeqCst) {
            return Err(format!("no disk for expert {}", part.expert).into());
        }
        serve(&weights, part, out);
        Ok(())
    });
    let device = device();
    let pool = pool(&device, &model, 4);
    let mut session = session(&pool);
    let error = first_layer(&mut session).unwrap_err();
    assert_eq!(error.status(), Status::Callback);
    assert!(error.text().contains("no disk for expert"), "{error}");
    assert!(model.take_panic().is_none());

    broken.store(false, Ordering::SeqCst);
    let y = first_layer(&mut session).unwrap();
    assert!(y.iter().any(|&v| v != 0.0));
}

#[test]
fn that_panic_are_errors_and_leave_the_panic() {
    let model = read_model(|_, _| resume_unwind(Box::new("the reader is lost")));
    let device = device();
    let pool = pool(&device, &model, 4);
    let mut session = session(&pool);
    for _ in 0..2 {
        let error = first_layer(&mut session).unwrap_err();
        assert_eq!(error.status(), Status::Callback);
        assert!(error.text().contains("panicked: the reader is lost"), "{error}");
    }
    let pinned = pool.pin(0, 0).unwrap_err();
    assert_eq!(pinned.status(), Status::Callback);
    let panic = model.take_panic().unwrap();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "the reader is lost");
    assert!(model.take_panic().is_none());
}

/// Panics wherever it is looked at, and when it is dropped.
#[derive(Debug)]
struct Bomb;

impl std::fmt::Display for Bomb {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        resume_unwind(Box::new("told"))
    }
}

impl std::error::Error for Bomb {}

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("dropped"));
        }
    }
}

#[test]
fn that_leave_what_panics_are_errors() {
    let reads = AtomicUsize::new(0);
    let model = read_model(move |_, _| match reads.fetch_add(1, Ordering::SeqCst) {
        0 | 2 => resume_unwind(Box::new(Bomb)),
        _ => Err(Box::new(Bomb)),
    });
    let device = device();
    let pool = pool(&device, &model, 4);
    for expert in 0..4 {
        assert_eq!(pool.pin(0, expert).unwrap_err().status(), Status::Callback);
    }
    let panic = model.take_panic().unwrap();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "told");
}

/// To destroy an object there would wait for the thread that the callback keeps.
#[test]
fn that_drop_objects_leak_them() {
    type Kept = (Session<'static>, Arc<ExpertPool<'static>>, Model);
    let slot: Arc<Mutex<Option<Kept>>> = Arc::default();
    let (tell, told) = channel();
    let (taken, tell) = (Arc::clone(&slot), Mutex::new(tell));
    let model = Arc::new(read_model(move |_, out| {
        out.fill(0);
        if let Some((session, pool, other)) = taken.lock().unwrap().take() {
            drop((session, pool));
            tell.lock().unwrap().send(other.close()).unwrap();
        }
        Ok(())
    }));
    let device = Arc::new(device());
    let config = ExpertPoolConfig { slots: 4, ..Default::default() };
    let pool = Arc::new(ExpertPool::create(&device, &model, &config).unwrap());
    let config = SessionConfig { prefetch: Prefetch::Hint, ..Default::default() };
    let mut session = Session::create(&pool, None, config).unwrap();
    let other = Weights::new().model(Dtype::F32);
    let mut open = slot.lock().unwrap();
    session.hint(0, &[1]).unwrap();
    *open = Some((session, pool, other));
    drop(open);
    assert_eq!(status(told.recv().unwrap()), Status::Busy);
    assert!(device.info().unwrap().used_bytes > 0, "the pool is still there");
}

#[test]
fn live_as_long_as_their_model() {
    let counter = Arc::new(());
    let kept = Arc::clone(&counter);
    let model = read_model(move |_, out| {
        let _kept = &kept;
        out.fill(0);
        Ok(())
    });
    assert_eq!(Arc::strong_count(&counter), 2);
    drop(model);
    assert_eq!(Arc::strong_count(&counter), 1);
}

#[test]
fn of_packs_tell_and_end_them() {
    let model = Weights::new().model(Dtype::Bf16);
    let (whole, ended, lost) = (File::new("whole"), File::new("ended"), File::new("lost"));
    let calls = AtomicUsize::new(0);
    let config = PackConfig { forms: vec![Form::Dense], ..Default::default() };
    model
        .write_pack_telling(&whole.0, &config, |done, total| {
            calls.fetch_add(1, Ordering::SeqCst);
            assert!(done <= total);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(calls.load(Ordering::SeqCst) > 0 && whole.0.exists());

    let stop = |_, _| std::ops::ControlFlow::Break(());
    let stopped = model.write_pack_telling(&ended.0, &config, stop);
    assert_eq!(status(stopped), Status::Callback);
    assert!(!ended.0.exists());

    let panicking = catch_unwind(AssertUnwindSafe(|| {
        model.write_pack_telling(&lost.0, &config, |_, _| resume_unwind(Box::new("enough")))
    }));
    assert_eq!(*panicking.unwrap_err().downcast::<&str>().unwrap(), "enough");
    assert!(!lost.0.exists());
}

#[test]
fn of_packs_give_the_moments_that_integers_are_rounded_for() {
    let model = Weights::new().model(Dtype::Bf16);
    let (plain, even, along, lost) =
        (File::new("plain"), File::new("even"), File::new("along"), File::new("lost"));
    let config = PackConfig { forms: vec![Form::Dense, Form::Int2], ..Default::default() };
    model.write_pack(&plain.0, &config).unwrap();
    let read = |file: &File| std::fs::read(&file.0).unwrap();
    let tensors = model.layer_tensors(0).unwrap();
    model
        .write_pack_for(&even.0, &config, |inputs, out| {
            let of = &tensors[inputs.tensor as usize];
            assert_eq!(inputs.columns as u64, of.shape()[1]);
            assert!(inputs.slot.len() as u64 >= of.offset() + of.bytes());
            (0..inputs.columns).for_each(|i| out[i * (inputs.columns + 1)] = 3.0);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(read(&even), read(&plain));
    model
        .write_pack_for(&along.0, &config, |_, out| {
            out.fill(1.0);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_ne!(read(&along), read(&plain));

    let stop = |_: &MatrixInputs<'_>, _: &mut [f32]| std::ops::ControlFlow::Break(());
    assert_eq!(status(model.write_pack_for(&lost.0, &config, stop)), Status::Callback);
    let panicking = catch_unwind(AssertUnwindSafe(|| {
        model.write_pack_for(&lost.0, &config, |_, _| resume_unwind(Box::new("enough")))
    }));
    assert_eq!(*panicking.unwrap_err().downcast::<&str>().unwrap(), "enough");
    assert!(!lost.0.exists());
}

#[test]
fn of_logs_live_as_long_as_their_device() {
    let counter = Arc::new(());
    let kept = Arc::clone(&counter);
    let log: Logger = Box::new(move |_, _| drop(Arc::clone(&kept)));
    let config = DeviceConfig { budget_bytes: 1 << 20, log: Some(log), ..Default::default() };
    let device = Device::open("host", config).unwrap();
    assert_eq!(Arc::strong_count(&counter), 2);
    device.close().unwrap();
    assert_eq!(Arc::strong_count(&counter), 1);
}
