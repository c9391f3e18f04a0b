//! What compiles and is wrong all the same is an error, and leaves things usable.
use moepage::*;

use crate::set_up::*;

struct Stand {
    device: Device,
    model: Model,
}

fn stand() -> Stand {
    Stand { device: device(), model: Weights::new().model(Dtype::F32) }
}

#[test]
fn unknown_names_are_not_found() {
    let Stand { device, model } = stand();
    let error =
        Device::open("abacus", DeviceConfig { budget_bytes: 1 << 20, ..Default::default() })
            .unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
    assert!(!error.text().is_empty());
    assert!(error.to_string().contains(error.text()));
    assert_eq!(error.status().code(), -8);
    let config = ExpertPoolConfig { policy: Some("random".into()), ..Default::default() };
    assert_eq!(status(ExpertPool::create(&device, &model, &config)), Status::NotFound);
    assert_eq!(status(Model::open("/nonexistent")), Status::NotFound);
    assert_eq!(status(Model::open("with\0nul")), Status::Argument);
}

#[test]
fn budgets_that_are_too_small_are_refused() {
    let Stand { device: _, model } = stand();
    assert_eq!(status(Device::open("host", DeviceConfig::default())), Status::Budget);
    let config =
        DeviceConfig { budget_bytes: 64 << 10, workspace_bytes: 4 << 10, ..Default::default() };
    let tight = Device::open("host", config).unwrap();
    let config = ExpertPoolConfig { slots: 8, ..Default::default() };
    let error = ExpertPool::create(&tight, &model, &config).unwrap_err();
    assert_eq!(error.status(), Status::Budget, "{error}");
    let pool = pool(&tight, &model, 1);
    let error = Session::create(&pool, None, SessionConfig::default()).unwrap_err();
    assert_eq!(error.status(), Status::Budget, "{error}");
    let needed = Session::workspace(&model, &SessionConfig::default()).unwrap();
    assert!(needed > 4 << 10);
}

#[test]
fn of_slices_is_refused_before_c_sees_them() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 0);
    let mut session = session(&pool);
    let step = session.begin(&StepInput::tokens(2, Phase::Decode)).unwrap();
    let (ids, top) = choices(2);
    let short = Routing::new(&ids, &top[1..]);
    assert_eq!(status(step.route(0, &short)), Status::Argument);
    let odd = Routing::new(&ids[..3], &top[..3]);
    assert_eq!(status(step.route(0, &odd)), Status::Argument);
    let narrow = [0f32; 3];
    for wrong in [
        Routing { logits: Some(&narrow), ..Routing::new(&ids, &top) },
        Routing { probabilities: Some(&narrow), ..Routing::new(&ids, &top) },
        Routing { hidden: Some(&narrow), ..Routing::new(&ids, &top) },
    ] {
        assert_eq!(status(step.route(0, &wrong)), Status::Argument);
    }
    let mut layer = step.route(0, &Routing::new(&ids, &top)).unwrap();
    let (x, mut y) = ([0f32; 2 * HIDDEN], [0f32; 2 * HIDDEN]);
    assert_eq!(status(layer.ffn(&x[1..], &mut y)), Status::Argument);
    assert_eq!(status(layer.ffn(&x, &mut y[1..])), Status::Argument);
    let far = FfnOptions { x_stride: usize::MAX, ..Default::default() };
    assert_eq!(status(layer.ffn_with(&x, &mut y, far)), Status::Argument);
    let apart = FfnOptions { y_stride: HIDDEN + 1, ..Default::default() };
    assert_eq!(status(layer.ffn_with(&x, &mut y, apart)), Status::Argument);
    layer.ffn(&x, &mut y).unwrap();
    layer.retire().unwrap();
    step.end().unwrap();
}

#[test]
fn of_ids_and_layers_is_an_error() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 0);
    let mut session = session(&pool);
    assert_eq!(status(session.begin(&StepInput::tokens(0, Phase::Decode))), Status::Argument);
    assert_eq!(status(session.begin(&StepInput::tokens(17, Phase::Decode))), Status::Argument);
    let semantic = StepInput { semantic: Some(&[]), ..StepInput::tokens(1, Phase::Decode) };
    drop(session.begin(&semantic));
    assert_eq!(status(session.hint(0, &[1])), Status::State, "prefetching is off");
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    assert_eq!(status(step.route(0, &Routing::new(&[8, 0], &[1.0, 0.0]))), Status::Argument);
    assert_eq!(status(step.route(2, &Routing::new(&[1, 0], &[1.0, 0.0]))), Status::Argument);
    let nan = [f32::NAN, 0.0];
    assert_eq!(status(step.route(0, &Routing::new(&[1, 0], &nan))), Status::Argument);
    let routing = Routing::new(&[1, 0], &[1.0, 0.0]);
    let open = step.route(0, &routing).unwrap();
    assert!(open.plan().is_none());
    assert_eq!(status(step.route(0, &routing)), Status::State, "the layer is open");
    drop(open);
    step.end().unwrap();
    assert_eq!(status(pool.lookup(0, 8)), Status::Argument);
    assert_eq!(status(pool.pin(2, 0)), Status::Argument);
    assert_eq!(status(model.read_expert(0, 0, &mut [0; 3])), Status::Argument);
    assert_eq!(status(session.prefetch_info(0)), Status::State);
}

#[test]
fn of_a_dropped_step_cancels_it() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 2);
    let mut session = session(&pool);
    let input = StepInput::tokens(1, Phase::Decode);
    let (ids, top) = choices(1);
    {
        let step = session.begin(&input).unwrap();
        let _layer = step.route_planned(0, &Routing::new(&ids, &top)).unwrap();
    }
    session.begin(&input).unwrap().end().unwrap();
    assert_eq!(pool.info().unwrap().pinned, 0);
}

#[test]
fn of_leaks_is_an_error_and_can_be_mended() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 2);
    let mut session = session(&pool);
    let input = StepInput::tokens(1, Phase::Decode);
    let (ids, top) = choices(1);

    std::mem::forget(session.begin(&input).unwrap());
    assert_eq!(status(session.begin(&input)), Status::State);
    session.cancel().unwrap();

    let step = session.begin(&input).unwrap();
    std::mem::forget(step.route(0, &Routing::new(&ids, &top)).unwrap());
    assert_eq!(status(step.end()), Status::State);
    session.begin(&input).unwrap().end().unwrap();

    std::mem::forget(session.begin(&input).unwrap());
    session.close().unwrap();
    let again = Session::create(&pool, None, SessionConfig::default());
    again.unwrap().close().unwrap();
}

#[test]
fn of_set_up_in_a_step_is_busy() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 2);
    let mut first = session(&pool);
    let step = first.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    let second = Session::create(&pool, None, SessionConfig::default());
    assert_eq!(status(second), Status::Busy);
    let kv = KvPoolConfig { bytes_per_token: vec![64], ..Default::default() };
    assert_eq!(status(KvPool::create(&device, &kv)), Status::Busy);
    let controller = Controller::create(&pool, None, &ControllerConfig::default());
    assert_eq!(status(controller), Status::Busy);
    step.end().unwrap();
    Session::create(&pool, None, SessionConfig::default()).unwrap().close().unwrap();
}

#[test]
fn of_a_controller_in_a_step_ends_it_with_the_step() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 2);
    let mut session = session(&pool);
    let config = ControllerConfig { mode: ControlMode::Observe, ..Default::default() };
    let controller = Controller::create(&pool, None, &config).unwrap();
    let raw = controller.raw();
    let mut info = ControllerInfo::default();
    // SAFETY: a handle that is live, or destroyed and recognised as such.
    let mut asked = || unsafe { sys::moepage_controller_get_info(raw, &mut info) };
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    drop(controller);
    assert_eq!(asked(), sys::MOEPAGE_OK, "the step has yet to tell it how it went");
    step.end().unwrap();
    assert_eq!(asked(), sys::MOEPAGE_E_HANDLE);
    let idle = Controller::create(&pool, None, &config).unwrap();
    let raw = idle.raw();
    drop(idle);
    // SAFETY: the same.
    let status = unsafe { sys::moepage_controller_get_info(raw, &mut info) };
    assert_eq!(status, sys::MOEPAGE_E_HANDLE);
}

#[test]
fn of_a_full_device_is_busy() {
    let Stand { device, model } = stand();
    let first = pool(&device, &model, 2);
    let second = ExpertPool::create(&device, &model, &ExpertPoolConfig::default());
    assert_eq!(status(second), Status::Busy);
    let paged = PagedTensors::create(&device, &model, &PagedConfig::default());
    assert_eq!(status(paged), Status::Busy);
    first.close().unwrap();
}

#[test]
fn of_raw_handles_leaks_and_says_so() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 2);
    let mut raw = std::ptr::null_mut();
    let config = sys::moepage_session_config::default();
    // SAFETY: the pool is live; the session is destroyed below.
    let status =
        unsafe { sys::moepage_session_create(pool.raw(), std::ptr::null_mut(), &config, &mut raw) };
    assert_eq!(status, sys::MOEPAGE_OK);
    let error = pool.close().unwrap_err();
    assert_eq!(error.status(), Status::Busy);
    assert_eq!(device.close().unwrap_err().status(), Status::Busy);
    assert_eq!(model.close().unwrap_err().status(), Status::Busy);
    // SAFETY: created above; the leaked pool is still there.
    assert_eq!(unsafe { sys::moepage_session_destroy(raw) }, sys::MOEPAGE_OK);
}

#[test]
fn of_pins_is_bounded() {
    let Stand { device, model } = stand();
    let pool = pool(&device, &model, 3);
    let pinned = pool.pin(0, 0).unwrap();
    assert!(matches!(pool.lookup(0, 0).unwrap(), Residency::Resident { .. }));
    assert_eq!(pool.info().unwrap().pinned, 1);
    assert_eq!(status(pool.pin(0, 1)), Status::Budget, "top-k slots must stay evictable");
    drop(pinned);
    assert_eq!(pool.info().unwrap().pinned, 0);
    pool.pin(0, 1).unwrap();
    assert_eq!(pool.lookup(1, 1).unwrap(), Residency::Absent);
}

#[test]
fn of_simulated_devices_for_numbers_is_unsupported() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");
    let mut files: Vec<_> =
        std::fs::read_dir(machine).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let file = files.iter().find(|path| path.extension().map_or(false, |e| e == "json")).unwrap();
    let config = DeviceConfig { budget_bytes: 64 << 20, ..Default::default() };
    let device = Device::open(&format!("sim:{}", file.display()), config).unwrap();
    assert!(!device.is_host());
    let model = Weights::new().model(Dtype::F32);
    let pool = pool(&device, &model, 4);
    let mut session = session(&pool);
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    let (ids, top) = choices(1);
    let mut layer = step.route_planned(0, &Routing::new(&ids, &top)).unwrap();
    let expert = layer.plan().unwrap().experts().next().unwrap();
    assert_eq!(status(expert.tensor(0)), Status::Unsupported);
    let refused = layer.ffn(&[0f32; HIDDEN], &mut [0f32; HIDDEN]);
    assert_eq!(status(refused), Status::Unsupported);
}
