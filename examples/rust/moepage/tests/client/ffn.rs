//! Routed experts give what plain arithmetic gives, through `ffn` and through plans.
use moepage::*;

use crate::set_up::*;

fn matrix_times(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len())
        .map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
        .collect()
}

/// `down(silu(gate x) * up x)` in doubles.
pub fn swiglu(gate_up: &[f32], down: &[f32], x: &[f64]) -> Vec<f64> {
    let both = matrix_times(gate_up, x);
    let (gate, up) = both.split_at(INNER);
    let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    matrix_times(down, &inner)
}

fn expected(weights: &Weights, layer: usize, x: &[f32], ids: &[i32], top: &[f32]) -> Vec<f64> {
    let k = TOP_K as usize;
    let rows = x.chunks_exact(HIDDEN).zip(ids.chunks_exact(k).zip(top.chunks_exact(k)));
    rows.flat_map(|(x, (ids, top))| {
        let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let mut y = vec![0.0; HIDDEN];
        for (&id, &weight) in ids.iter().zip(top) {
            let expert = layer * EXPERTS as usize + id as usize;
            let added = swiglu(&weights.gate_up[expert], &weights.down[expert], &x);
            y.iter_mut().zip(added).for_each(|(y, a)| *y += f64::from(weight) * a);
        }
        y
    })
    .collect()
}

/// Of the largest number there is.
pub fn assert_close(ours: &[f32], theirs: &[f64], tolerance: f64) {
    let most = theirs.iter().fold(0f64, |most, v| most.max(v.abs()));
    assert!(most > 1.0 && ours.len() == theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert!((f64::from(*a) - b).abs() <= tolerance * most, "{a} is not {b}");
    }
}

fn run<T: Activation>(model: &Model, slots: u64, x: &[T], zero: T) -> Vec<T> {
    let device = device();
    let pool = pool(&device, model, slots);
    let mut session = session(&pool);
    let n = x.len() / HIDDEN;
    let (ids, top) = choices(n);
    let mut y = vec![zero; x.len()];
    let step = session.begin(&StepInput::tokens(n as u32, Phase::Prefill)).unwrap();
    for layer in 0..LAYERS {
        let mut layer = step.route(layer, &Routing::new(&ids, &top)).unwrap();
        layer.ffn(x, &mut y).unwrap();
        layer.retire().unwrap();
    }
    let stats = step.end().unwrap();
    assert_eq!((stats.steps, stats.tokens, stats.layers), (1, n as u64, u64::from(LAYERS)));
    y
}

/// The second layer's, which is the last that [`run`] leaves.
fn check(dtype: Dtype, slots: u64) -> Vec<f32> {
    let weights = Weights::new();
    let x = Numbers::new(11).floats(6 * HIDDEN);
    let (ids, top) = choices(6);
    let y = run(&weights.model(dtype), slots, &x, 0.0);
    assert_close(&y, &expected(&weights, 1, &x, &ids, &top), 1e-6);
    y
}

#[test]
fn is_swiglu_of_every_float_type() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        check(dtype, 0);
    }
}

#[test]
fn has_the_same_bits_under_every_budget() {
    let whole = check(Dtype::Bf16, 16);
    for slots in [1, 2, 3, 8] {
        assert_eq!(check(Dtype::Bf16, slots), whole, "{slots} slots");
    }
}

#[test]
fn takes_and_gives_sixteen_bit_activations() {
    let weights = Weights::new();
    let x = Numbers::new(12).floats(4 * HIDDEN);
    let (ids, top) = choices(4);
    let wanted = expected(&weights, 1, &x, &ids, &top);
    let model = weights.model(Dtype::F32);

    let bf16: Vec<_> = x.iter().map(|&v| Bf16::from(v)).collect();
    let y: Vec<_> = run(&model, 0, &bf16, Bf16(0)).into_iter().map(f32::from).collect();
    assert_close(&y, &wanted, 1.0 / 256.0);

    let half: Vec<_> = x.iter().map(|&v| F16::from(v)).collect();
    let y: Vec<_> = run(&model, 0, &half, F16(0)).into_iter().map(f32::from).collect();
    assert_close(&y, &wanted, 1.0 / 2048.0);
}

#[test]
fn strides_and_accumulates() {
    let weights = Weights::new();
    let (model, device) = (weights.model(Dtype::F32), device());
    let pool = pool(&device, &model, 0);
    let mut session = session(&pool);
    let x = Numbers::new(13).floats(2 * HIDDEN);
    let (ids, top) = choices(2);
    let step = session.begin(&StepInput::tokens(2, Phase::Decode)).unwrap();

    let mut dense = vec![0f32; 2 * HIDDEN];
    let mut layer = step.route(0, &Routing::new(&ids, &top)).unwrap();
    layer.ffn(&x, &mut dense).unwrap();

    let mut apart = vec![1f32; 2 * HIDDEN + 8];
    let options = FfnOptions { y_stride: HIDDEN + 8, accumulate: true, ..Default::default() };
    layer.ffn_with(&x, &mut apart, options).unwrap();
    layer.retire().unwrap();
    for (row, wanted) in dense.chunks_exact(HIDDEN).enumerate() {
        let given = &apart[row * (HIDDEN + 8)..][..HIDDEN];
        let added: Vec<f32> = wanted.iter().map(|v| 1.0 + v).collect();
        assert_eq!(given, &added[..]);
    }
    assert_eq!(apart[HIDDEN..HIDDEN + 8], [1.0; 8]);
}

#[test]
fn by_plans_is_ffn() {
    let weights = Weights::new();
    let (model, device) = (weights.model(Dtype::F32), device());
    let pool = pool(&device, &model, 3);
    let mut session = session(&pool);
    let x = Numbers::new(14).floats(5 * HIDDEN);
    let (ids, top) = choices(5);
    let wanted = expected(&weights, 1, &x, &ids, &top);
    let mut y = vec![0f64; x.len()];

    let step = session.begin(&StepInput::tokens(5, Phase::Decode)).unwrap();
    let mut layer = step.route_planned(1, &Routing::new(&ids, &top)).unwrap();
    let mut groups = 0;
    loop {
        let plan = layer.plan().unwrap();
        assert_eq!((plan.layer(), plan.group(), plan.top_k()), (1, groups, TOP_K));
        assert_eq!((plan.ids(), plan.weights()), (&ids[..], &top[..]));
        for expert in plan.experts() {
            let slot = expert.slot().unwrap();
            assert_eq!(plan.expert_map()[expert.expert() as usize], slot as i32);
            let at = Residency::Resident { slot, device: 0 };
            assert_eq!(pool.lookup(1, expert.expert()).unwrap(), at);
            let gate_up = expert.tensor(0).unwrap();
            assert_eq!(gate_up.shape(), [2 * INNER as u64, HIDDEN as u64]);
            let down = expert.tensor(1).unwrap();
            for &row in expert.rows() {
                let token = row as usize / TOP_K as usize;
                let x: Vec<f64> = x[token * HIDDEN..][..HIDDEN].iter().map(|&v| v.into()).collect();
                let added = swiglu(gate_up.elements().unwrap(), down.elements().unwrap(), &x);
                let to = y[token * HIDDEN..].iter_mut();
                to.zip(added).for_each(|(y, a)| *y += f64::from(top[row as usize]) * a);
            }
            assert_eq!(status(expert.tensor(2)), Status::Argument);
            assert_eq!(status(gate_up.elements::<Bf16>()), Status::Argument);
        }
        groups += 1;
        if !layer.next_group().unwrap() {
            break;
        }
    }
    assert!(groups > 1, "three slots cannot hold what five tokens choose");
    layer.retire().unwrap();
    step.end().unwrap();
    let y: Vec<f32> = y.into_iter().map(|v| v as f32).collect();
    assert_close(&y, &wanted, 1e-6);
}

#[test]
fn skips_slots_without_an_expert() {
    let weights = Weights::new();
    let (model, device) = (weights.model(Dtype::F32), device());
    let pool = pool(&device, &model, 0);
    let mut session = session(&pool);
    let x = Numbers::new(15).floats(HIDDEN);
    let mut y = vec![9f32; HIDDEN];
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    let routing = Routing::new(&[NO_EXPERT, NO_EXPERT], &[0.5, 0.5]);
    let mut layer = step.route(0, &routing).unwrap();
    layer.ffn(&x, &mut y).unwrap();
    assert_eq!(y, [0.0; HIDDEN]);
}

#[test]
fn devices_multiply_by_dense_weights() {
    let device = device();
    let x = [1.0f32, 2.0, 3.0, -1.0, 0.5, 4.0];
    let w = [1.0f32, 0.0, -2.0, 0.25, 8.0, 1.0];
    let mut out = [0f32; 4];
    for math in [Math::Fp32, Math::Bf16] {
        device.linear(math, 3, &x, &w, Some(&[0.0, 0.5]), &mut out).unwrap();
        assert_eq!(out, [-5.0, 19.75, -9.0, 8.25]);
    }
    let refused = device.linear(Math::Fp32, 3, &x, &w[1..], None, &mut out);
    assert_eq!(refused.unwrap_err().status(), Status::Argument);
    assert_eq!(out, [-5.0, 19.75, -9.0, 8.25]);
}
