//! KV pools and their sequences.
use moepage::*;

use crate::set_up::*;

fn kv_pool(device: &Device, blocks: u64) -> KvPool<'_> {
    let config = KvPoolConfig {
        bytes_per_token: vec![64, 64],
        block_tokens: 4,
        blocks_per_granule: 1,
        blocks,
        ..Default::default()
    };
    KvPool::create(device, &config).unwrap()
}

#[test]
fn sequences_take_and_give_back_blocks() {
    let device = device();
    let kv = kv_pool(&device, 8);
    let mut sequence = Sequence::create(&kv).unwrap();
    sequence.append(9, Stream::default()).unwrap();
    assert_eq!(sequence.info().unwrap(), SequenceInfo { tokens: 9, blocks: 3, swapped: false });
    let admission = kv.admit(&[16, 8]).unwrap();
    assert_eq!((admission.fits, admission.needed_blocks, admission.free_blocks), (0, 6, 5));
    let error = sequence.append(64, Stream::default()).unwrap_err();
    assert_eq!(error.status(), Status::WouldNotFit);

    let fork = sequence.fork().unwrap();
    assert_eq!(kv.info().unwrap().free_blocks, 5);
    fork.free().unwrap();

    sequence.swap_out(Stream::default()).unwrap();
    assert!(sequence.info().unwrap().swapped);
    assert_eq!(status(sequence.swap_out(Stream::default())), Status::State);
    sequence.swap_in(Stream::default()).unwrap();
    sequence.truncate(4).unwrap();
    assert_eq!(sequence.info().unwrap().blocks, 1);
    drop(sequence);
    let info = kv.info().unwrap();
    assert_eq!((info.free_blocks, info.sequences), (8, 0));
}

#[test]
fn blocks_keep_what_is_written() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 4);
    let kv = kv_pool(&device, 8);
    let mut session = Session::create(&pool, Some((&kv).into()), SessionConfig::default()).unwrap();
    let mut sequences = [Sequence::create(&kv).unwrap(), Sequence::create(&kv).unwrap()];
    for sequence in &mut sequences {
        sequence.append(6, Stream::default()).unwrap();
    }
    let part =
        |sequence| StepSequence { sequence: Some(sequence), n_tokens: 6, phase: Phase::Prefill };
    let parts = [part(&sequences[0]), part(&sequences[1])];
    let step = session.begin(&StepInput::sequences(&parts)).unwrap();
    assert_eq!(step.n_tokens(), 12);
    let fill = |value: usize| [value as u8; 256];
    for round in 0..2 {
        for (s, sequence) in sequences.iter().enumerate() {
            let table = step.kv_table(sequence).unwrap();
            assert_eq!((table.blocks.len(), table.n_tokens), (2, 6));
            for layer in 0..2 {
                let view = kv.layer(layer).unwrap();
                assert_eq!(view.block_bytes(), 256);
                for (b, &block) in table.blocks.iter().enumerate() {
                    let value = fill(100 * s + 10 * layer as usize + b);
                    if round == 0 {
                        // SAFETY: a host device, a block of an open step, and no other slice.
                        unsafe { view.block_mut::<u8>(block) }.copy_from_slice(&value);
                    } else {
                        // SAFETY: the same.
                        assert_eq!(unsafe { view.block::<u8>(block) }, value);
                    }
                }
            }
        }
    }
    step.end().unwrap();
}

#[test]
fn tables_of_other_pools_are_refused() {
    let model = Weights::new().model(Dtype::F32);
    let (device, other) = (device(), device());
    let pool = pool(&device, &model, 4);
    let (kv, foreign) = (kv_pool(&device, 4), kv_pool(&other, 4));
    let mut session = Session::create(&pool, Some((&kv).into()), SessionConfig::default()).unwrap();
    let stranger = Sequence::create(&foreign).unwrap();
    let parts = [StepSequence { sequence: Some(&stranger), n_tokens: 1, phase: Phase::Decode }];
    assert_eq!(status(session.begin(&StepInput::sequences(&parts))), Status::Handle);
    let step = session.begin(&StepInput::tokens(1, Phase::Decode)).unwrap();
    assert_eq!(status(step.kv_table(&stranger)), Status::Handle);
    step.cancel().unwrap();
    assert_eq!(status(kv.layer(2)), Status::Argument);
}

#[test]
fn the_budget_moves_under_a_pool() {
    const MIB: u64 = 1 << 20;
    let config = |budget_bytes| DeviceConfig {
        budget_bytes,
        workspace_bytes: MIB,
        max_budget_bytes: 4 * MIB,
        threads: 1,
        ..Default::default()
    };
    let device = Device::open("host", config(2 * MIB)).unwrap();
    let kv = kv_pool(&device, 8);
    for bytes in [4 * MIB, MIB + 65536, 3 * MIB] {
        device.set_budget(bytes, Stream::default()).unwrap();
        let info = device.info().unwrap();
        assert_eq!((info.budget_bytes, info.budget_aim_bytes), (bytes, bytes));
        assert_eq!(info.max_budget_bytes, 4 * MIB);
    }
    assert_eq!(status(device.set_budget(5 * MIB, Stream::default())), Status::Budget);
    device.follow_memory(Stream::default()).unwrap();
    assert_eq!(device.info().unwrap().budget_bytes, 4 * MIB);
    assert_eq!(device.info().unwrap().reserve_bytes, 4 * MIB / 16);
    drop(kv);
    let auto = Device::open("host", config(moepage::BUDGET_AUTO)).unwrap();
    assert_eq!(auto.info().unwrap().budget_bytes, 4 * MIB);
}

#[test]
fn and_experts_share_the_arena() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 8);
    let kv = kv_pool(&device, 8);
    set_split(Some(&pool), Some(&kv), 4, 64, Stream::default()).unwrap();
    assert_eq!((pool.info().unwrap().slots, kv.info().unwrap().blocks), (4, 64));
    let error = set_split(Some(&pool), Some(&kv), 1 << 20, 0, Stream::default()).unwrap_err();
    assert_eq!(error.status(), Status::Budget);
    assert_eq!(pool.info().unwrap().slots, 4, "a refused move leaves the split");
    assert_eq!(status(set_split(None, None, 0, 0, Stream::default())), Status::Argument);

    let predictor = |name: &str| {
        let config = PredictorConfig { name: Some(name.into()), ..Default::default() };
        Predictor::create(&model, &config).unwrap()
    };
    let (one, other) = (predictor("coactivation"), predictor("maps"));
    let config = ControllerConfig { mode: ControlMode::Observe, ..Default::default() };
    let mut controller = Controller::create(&pool, Some((&kv).into()), &config).unwrap();
    controller.kv_use(1, 16).unwrap();
    let report = controller.tick(Stream::default()).unwrap();
    assert_eq!((report.outcome, report.expert_slots), (Some(ControlOutcome::Waits), 4));
    assert_eq!(controller.info().unwrap().steps, 0);
    assert_eq!(
        status(controller.rightsize(vec![(&one).into(), (&other).into()], 0)),
        Status::Unsupported
    );
    controller.rightsize(vec![(&one).into()], 500).unwrap();
    assert_eq!(controller.info().unwrap().users, 1);
    assert_eq!(controller.user(0).unwrap().experts, 0, "nothing is learnt");
    assert_eq!(status(controller.user(1)), Status::Argument);
    let twice = Controller::create(&pool, Some((&kv).into()), &config);
    assert_eq!(status(twice), Status::Busy);
    drop(controller);
    Controller::create(&pool, Some((&kv).into()), &config).unwrap();
}
