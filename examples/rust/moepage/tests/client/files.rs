//! What is written to files comes back: packs, traces, predictors, coded streams, metrics.
use moepage::*;

use crate::set_up::*;

fn step_through(session: &mut Session<'_>, steps: u64) {
    let (ids, top) = choices(2);
    let (x, mut y) = ([0.25f32; 2 * HIDDEN], [0f32; 2 * HIDDEN]);
    for _ in 0..steps {
        let step = session.begin(&StepInput::tokens(2, Phase::Decode)).unwrap();
        for layer in 0..LAYERS {
            let mut layer = step.route(layer, &Routing::new(&ids, &top)).unwrap();
            layer.ffn(&x, &mut y).unwrap();
            layer.retire().unwrap();
        }
        step.end().unwrap();
    }
}

#[test]
fn of_packs_hold_the_same_experts() {
    let weights = Weights::new();
    let mut banks = weights.banks(Dtype::Bf16);
    banks.architecture = Some("mixtral".into());
    banks.vocabulary = 10;
    banks.activation = ExpertActivation::SwigluClamped;
    banks.activation_limit = 5.0;
    let model = Model::from_banks(banks, ModelConfig::default()).unwrap();
    let file = File::new("pack");
    let config =
        PackConfig { forms: vec![Form::Dense, Form::Exph], verify: true, ..Default::default() };
    let stats = model.write_pack(&file.0, &config).unwrap();
    assert_eq!(stats.file_bytes, std::fs::metadata(&file.0).unwrap().len());

    let packed = Model::open(&file.0).unwrap();
    let info = packed.info().unwrap();
    assert_eq!((info.architecture, info.vocabulary, info.experts), ("mixtral", 10, EXPERTS));
    assert_eq!(info.activation, ExpertActivation::SwigluClamped);
    assert_eq!((info.activation_alpha, info.activation_limit), (1.702, 5.0));
    assert_eq!(packed.form(Form::Exph).unwrap().present, 1);
    assert_eq!(packed.form(Form::Int4).unwrap().present, 0);
    assert_eq!((packed.layer_index(1), packed.layer_index(2)), (Some(1), None));
    let slot = info.slot_bytes as usize;
    for expert in 0..EXPERTS {
        let (mut ours, mut theirs) = (vec![0; slot], vec![1; slot]);
        model.read_expert(1, expert, &mut ours).unwrap();
        packed.read_expert(1, expert, &mut theirs).unwrap();
        let used = info.expert_bytes as usize;
        assert_eq!(ours[..used], theirs[..used]);
    }
}

#[test]
fn of_traces_hold_the_routing() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 4);
    let mut session = session(&pool);
    let info = TraceInfo {
        model: "banks".into(),
        moe_layers: LAYERS,
        experts: EXPERTS,
        max_top_k: TOP_K,
        ..Default::default()
    };
    let file = File::new("trace");
    session.record(TraceWriter::create(&file.0, &info).unwrap()).unwrap();
    step_through(&mut session, 3);
    assert!(!file.0.exists(), "it appears when it is finished");
    session.stop_recording().unwrap().unwrap().finish().unwrap();
    assert!(session.stop_recording().unwrap().is_none());

    let mut reader = TraceReader::open(&file.0).unwrap();
    assert_eq!(reader.info(), &info);
    let (ids, top) = choices(2);
    for n in 0..3 {
        let step = reader.next_step().unwrap().unwrap();
        assert_eq!((step.step, step.n_tokens, step.top_k), (n, 2, TOP_K));
        assert_eq!(step.layer_present, [1, 1]);
        assert_eq!((step.ids, step.weights), (&ids.repeat(2)[..], &top.repeat(2)[..]));
        assert!(step.probabilities.is_empty() && step.semantic.is_empty());
        assert_eq!(step.sequences[0].n_tokens, 2);
    }
    assert!(reader.next_step().unwrap().is_none() && reader.next_step().unwrap().is_none());

    let other = TraceInfo { experts: 9, ..info.clone() };
    let elsewhere = File::new("other-trace");
    let refused = session.record(TraceWriter::create(&elsewhere.0, &other).unwrap());
    assert_eq!(status(refused), Status::Argument);
    let long = TraceInfo { model: "x".repeat(64), ..info };
    assert_eq!(status(TraceWriter::create(&elsewhere.0, &long)), Status::Argument);
}

#[test]
fn of_predictors_hold_what_was_learnt() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 4);
    let named =
        |name: &str| PredictorConfig { name: Some(name.into()), distance: 1, ..Default::default() };
    let predictor = Predictor::create(&model, &named("coactivation")).unwrap();
    assert_eq!(status(predictor.rightsize(0.5)), Status::State, "nothing is learnt");
    let config = SessionConfig {
        prefetch: Prefetch::Predictor,
        predictor: Some((&predictor).into()),
        ..Default::default()
    };
    let mut session = Session::create(&pool, None, config).unwrap();
    // It learns beside the steps, and skips what comes too fast.
    while predictor.rightsize(0.5).is_err() {
        step_through(&mut session, 1);
        std::thread::yield_now();
    }
    session.hint(0, &[1, 2]).unwrap();
    assert_eq!(session.prefetch_info(1).unwrap().layer, 1);
    session.close().unwrap();

    let file = File::new("predictor");
    predictor.save(&file.0).unwrap();
    let again = Predictor::create(&model, &named("coactivation")).unwrap();
    again.load(&file.0).unwrap();
    assert_eq!(again.info().unwrap().iterations, predictor.info().unwrap().iterations);
    assert_eq!(again.rightsize(0.5).unwrap(), predictor.rightsize(0.5).unwrap());
    let other = Predictor::create(&model, &named("hit-count")).unwrap();
    assert!(other.load(&file.0).is_err());
    assert_eq!(status(Predictor::create(&model, &named("oracle"))), Status::NotFound);
}

#[test]
fn of_coded_streams_come_back() {
    let bytes = Numbers::new(5).bytes(4096);
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F8E4M3, Dtype::F8E5M2] {
        let stream = codec::encode(dtype, &bytes).unwrap();
        let n = bytes.len() as u64 / dtype.size().unwrap();
        assert!(stream.len() as u64 <= codec::bound(dtype, n).unwrap());
        let mut out = vec![0; bytes.len()];
        codec::decode(dtype, &stream, &mut out).unwrap();
        assert_eq!(out, bytes, "{dtype:?}");
        codec::decode_with(Some("portable"), dtype, &stream, &mut out).unwrap();
        let short = codec::decode(dtype, &stream[..stream.len() / 2], &mut out);
        assert_eq!(status(short), Status::Format);
        let unknown = codec::decode_with(Some("abacus"), dtype, &stream, &mut out);
        assert_eq!(status(unknown), Status::NotFound);
    }
    assert_eq!(codec::bound(Dtype::F32, 8), None);
    assert_eq!(status(codec::encode(Dtype::F32, &bytes)), Status::Argument);
    assert_eq!(status(codec::encode(Dtype::Bf16, &bytes[1..])), Status::Argument);
}

#[test]
fn of_metrics_count_what_was_done() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 4);
    let mut session = session(&pool);
    step_through(&mut session, 2);
    let source = StatsSource {
        device: Some(&device),
        experts: Some(&pool),
        labels: Some("replica=\"0\""),
        ..Default::default()
    };
    let text = source.text().unwrap();
    assert!(text.contains("replica=\"0\"") && text.ends_with('\n'));
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let bad = samples
        .filter(|line| line.rsplit(' ').next().map_or(true, |value| value.parse::<f64>().is_err()));
    assert_eq!(bad.count(), 0);
    let wrong = StatsSource { labels: Some("no label"), ..source };
    assert_eq!(status(wrong.text()), Status::Argument);
    assert_eq!(version(), 800);
    assert_eq!(version_text(), "0.8.0");
}

/// Banks whose tensors lie in two files, from the last to the first, at any offset; and their bytes.
fn in_files(files: &[File; 2]) -> (Banks, Vec<Bytes>) {
    let mut banks = Weights::new().banks(Dtype::Bf16);
    let bytes = match std::mem::take(&mut banks.source) {
        Experts::Memory(bytes) => bytes,
        _ => unreachable!(),
    };
    let mut contents = [Vec::new(), Vec::new()];
    let mut places = vec![FilePlace { file: 0, offset: 0 }; bytes.len()];
    for (i, tensor) in bytes.iter().enumerate().rev() {
        let file = i / 3 % 2;
        let to = &mut contents[file];
        to.resize(to.len() + i % 5, 0);
        places[i] = FilePlace { file: file as u32, offset: to.len() as u64 };
        to.extend_from_slice(tensor.as_slice());
    }
    for (file, contents) in files.iter().zip(&contents) {
        std::fs::write(&file.0, contents).unwrap();
    }
    let paths = files.iter().map(|file| file.0.clone()).collect();
    banks.source = Experts::Files { paths, places };
    (banks, bytes)
}

#[test]
fn of_any_format_hold_experts() {
    let files = [File::new("experts-a"), File::new("experts-b")];
    let (banks, bytes) = in_files(&files);
    let model = Model::from_banks(banks, ModelConfig::default()).unwrap();
    let device = device();
    let pool = pool(&device, &model, 5);
    let mut session = session(&pool);
    let ids = [0, 5, 2, 5];
    let step = session.begin(&StepInput::tokens(2, Phase::Decode)).unwrap();
    let mut seen = 0;
    for layer in 0..LAYERS {
        assert_eq!(
            status(step.route(layer, &Routing::unweighted(&ids)).map(drop)),
            Status::Argument
        );
        let mut routed = step.route_planned(layer, &Routing::unweighted(&ids)).unwrap();
        loop {
            let plan = routed.plan().unwrap();
            assert_eq!(plan.weights(), [1.0; 4]);
            for expert in plan.experts() {
                let at = 2 * (layer * EXPERTS + expert.expert()) as usize;
                for i in 0..2 {
                    assert_eq!(expert.tensor(i).unwrap().bytes(), bytes[at + i].as_slice());
                }
                seen += 1;
            }
            if !routed.next_group().unwrap() {
                break;
            }
        }
        routed.retire().unwrap();
    }
    assert_eq!(seen, 3 * LAYERS);
    step.end().unwrap();
    std::fs::write(&files[0].0, "changed").unwrap();
    std::fs::write(&files[1].0, "changed").unwrap();
    let mut slot = vec![0; model.info().unwrap().slot_bytes as usize];
    assert_eq!(status(model.read_expert(1, 1, &mut slot)), Status::Io);
}

#[test]
fn of_experts_that_cannot_be_are_refused() {
    let spoilt = |name: &str, spoil: &dyn Fn(&mut Vec<std::path::PathBuf>, &mut Vec<FilePlace>)| {
        let files = [File::new(&format!("{name}-a")), File::new(&format!("{name}-b"))];
        let (mut banks, _) = in_files(&files);
        if let Experts::Files { paths, places } = &mut banks.source {
            spoil(paths, places);
        }
        Model::from_banks(banks, ModelConfig::default()).map(drop).unwrap_err().status()
    };
    assert_eq!(spoilt("few", &|_, places| places.truncate(3)), Status::Argument);
    assert_eq!(spoilt("no-files", &|paths, _| paths.clear()), Status::Argument);
    assert_eq!(spoilt("third", &|_, places| places[5].file = 2), Status::Argument);
    assert_eq!(spoilt("nul", &|paths, _| paths[1].push("\0")), Status::Argument);
    assert_eq!(spoilt("missing", &|paths, _| paths[1].push("x")), Status::NotFound);
    assert_eq!(spoilt("end", &|_, places| places[0].offset += 1), Status::Format);
    assert_eq!(spoilt("far", &|_, places| places[9].offset = u64::MAX), Status::Format);
}
