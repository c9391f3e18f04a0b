//! Engines: everything opened together, and closed with the last of what is shared.
use std::sync::Arc;

use moepage::*;

use crate::set_up::*;

fn config() -> EngineConfig {
    EngineConfig {
        session: SessionConfig { max_tokens: 16, ..Default::default() },
        ..Default::default()
    }
}

fn engine(options: &str) -> Engine {
    let model = Arc::new(Weights::new().model(Dtype::F32));
    Engine::over(model, options, config()).unwrap()
}

fn run(session: &mut Session<'_>, n: usize) -> Vec<f32> {
    let (ids, top) = choices(n);
    let x = Numbers::new(3).floats(n * HIDDEN);
    let mut y = vec![0.0; x.len()];
    let step = session.begin(&StepInput::tokens(n as u32, Phase::Prefill)).unwrap();
    for layer in 0..LAYERS {
        let mut layer = step.route(layer, &Routing::new(&ids, &top)).unwrap();
        layer.ffn_with(&x, &mut y, FfnOptions { accumulate: true, ..Default::default() }).unwrap();
        layer.retire().unwrap();
    }
    step.end().unwrap();
    y
}

#[test]
fn engines_give_the_bits_of_the_parts_opened_one_by_one() {
    let weights = Weights::new();
    let (device, model) = (device(), weights.model(Dtype::F32));
    let pool = pool(&device, &model, 0);
    let wanted = run(&mut session(&pool), 8);
    for options in ["budget=100%", "budget=25% policy=cycle", "budget=1M", "slots=3"] {
        let mut engine = engine(options);
        assert_eq!(engine.layers(), LAYERS);
        assert_eq!(run(engine.session(), 8), wanted, "{options}");
        engine.close().unwrap();
    }
}

#[test]
fn engine_parts_are_those_that_the_library_has() {
    let kv = KvPoolConfig { bytes_per_token: vec![16, 16], blocks: 4, ..Default::default() };
    let config = EngineConfig {
        budget_percent: 50.0,
        kv: Some(kv.clone()),
        predictor: Some(PredictorConfig {
            name: Some("hit-count".to_owned()),
            ..Default::default()
        }),
        ..config()
    };
    let model = Arc::new(Weights::new().model(Dtype::F32));
    let mut engine = Engine::over(model, "threads=1", config).unwrap();
    assert_eq!(engine.experts().info().unwrap().slots, u64::from(LAYERS * EXPERTS / 2));
    assert_eq!(engine.kv().unwrap().info().unwrap().blocks, 4);
    assert_eq!(engine.device().info().unwrap().threads, 1);
    assert_eq!(engine.device().info().unwrap().arena_kv_bytes, KvPool::sizes(&kv).unwrap());
    assert_eq!(engine.predictor().unwrap().info().unwrap().name, "hit-count");
    engine.session().hint(0, &[1]).unwrap();
    run(engine.session(), 4);
    assert_eq!(engine.stats().unwrap().steps, 1);
}

#[test]
fn engine_that_is_dropped_lives_as_long_as_what_it_lent() {
    let experts = Arc::clone(engine("budget=50% sessions=2").experts());
    let mut second =
        Session::create(experts, None, SessionConfig { max_tokens: 16, ..Default::default() })
            .unwrap();
    run(&mut second, 4);
    second.close().unwrap();
}

#[test]
fn engine_is_closed_with_a_step_that_was_leaked() {
    let mut engine = engine("budget=50%");
    let device = Arc::clone(engine.device());
    std::mem::forget(engine.begin(&StepInput::tokens(1, Phase::Decode)).unwrap());
    drop(engine);
    assert_eq!(device.info().unwrap().name, "host"); // lent still
}

#[test]
fn engine_refusals_say_what_is_wrong() {
    let open = |options: &str, config| {
        Engine::over(Arc::new(Weights::new().model(Dtype::F32)), options, config).unwrap_err()
    };
    let error = open("polcy=lru", config());
    assert_eq!(error.status(), Status::Argument);
    assert!(error.to_string().contains("there is no \"polcy\""), "{error}");
    assert_eq!(open("", config()).status(), Status::Budget);
    assert_eq!(open("budget=1K", config()).status(), Status::Budget);
    assert_eq!(open("budget=50% policy=none-such", config()).status(), Status::NotFound);
    let sized = DeviceConfig { budget_bytes: 1 << 20, ..Default::default() };
    let error = open("budget=50%", EngineConfig { device: sized, ..config() });
    assert_eq!(error.status(), Status::Argument);
    let error = Engine::open("no-such-model", "budget=1G", config()).unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
}
