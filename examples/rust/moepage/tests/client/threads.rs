//! Who may go where, and who owns whom.
use std::sync::Arc;

use moepage::*;

use crate::set_up::*;

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

#[test]
fn may_share_and_move_what_the_contract_says() {
    is_sync::<Device>();
    is_sync::<Model>();
    is_sync::<ExpertPool<'_>>();
    is_sync::<KvPool<'_>>();
    is_sync::<Controller<'_>>();
    is_sync::<Predictor>();
    is_send::<Session<'_>>();
    is_send::<Step<'_>>();
    is_send::<Sequence<'_>>();
    is_send::<PagedTensors<'_>>();
    is_send::<TraceWriter>();
    is_send::<TraceReader>();
}

/// Steps each layer `steps` times and returns what the last one gave.
fn drive(session: &mut Session<'_>, seed: u64, steps: usize) -> Vec<f32> {
    let (ids, top) = choices(3);
    let x = Numbers::new(seed).floats(3 * HIDDEN);
    let mut y = vec![0.0; x.len()];
    for _ in 0..steps {
        let step = session.begin(&StepInput::tokens(3, Phase::Decode)).unwrap();
        for layer in 0..LAYERS {
            let mut layer = step.route(layer, &Routing::new(&ids, &top)).unwrap();
            layer.ffn(&x, &mut y).unwrap();
            layer.retire().unwrap();
        }
        step.end().unwrap();
    }
    y
}

#[test]
fn with_sessions_of_their_own_share_a_pool() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 6);
    let mut sessions = [session(&pool), session(&pool)];
    let alone: Vec<_> = (0..2).map(|seed| drive(&mut sessions[0], seed, 1)).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = sessions
            .iter_mut()
            .zip(0u64..)
            .map(|(session, seed)| scope.spawn(move || drive(session, seed, 50)))
            .collect();
        let scraped = StatsSource { experts: Some(&pool), ..Default::default() };
        (0..20).for_each(|_| assert!(scraped.text().unwrap().contains("moepage")));
        running.into_iter().map(|each| each.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    assert_eq!(pool.stats().unwrap().steps, 102);
}

/// What a host keeps in one struct, in an order that would close parents first.
struct Server {
    _device: Arc<Device>,
    _model: Arc<Model>,
    pool: Arc<ExpertPool<'static>>,
    kv: Arc<KvPool<'static>>,
    sequences: Vec<Sequence<'static>>,
    session: Session<'static>,
}

impl Server {
    fn start() -> Result<Self> {
        let device = Arc::new(device());
        let model = Arc::new(Weights::new().model(Dtype::F32));
        let config = ExpertPoolConfig { slots: 4, ..Default::default() };
        let pool = Arc::new(ExpertPool::create(&device, &model, &config)?);
        let config = KvPoolConfig { bytes_per_token: vec![64], ..Default::default() };
        let kv = Arc::new(KvPool::create(&device, &config)?);
        let session =
            Session::create(&pool, Some(Arc::clone(&kv).into()), SessionConfig::default())?;
        Ok(Server { _device: device, _model: model, pool, kv, sequences: Vec::new(), session })
    }

    fn admit(&mut self) -> Result<()> {
        let mut sequence = Sequence::create(&self.kv)?;
        sequence.append(3, Stream::default())?;
        self.sequences.push(sequence);
        Ok(())
    }
}

#[test]
fn can_take_a_server_that_owns_everything() {
    let mut server = Server::start().unwrap();
    server.admit().unwrap();
    let pool = Arc::clone(&server.pool);
    let served = std::thread::spawn(move || {
        let y = drive(&mut server.session, 3, 2);
        drop(server);
        y
    });
    assert_eq!(served.join().unwrap().len(), 3 * HIDDEN);
    assert_eq!(pool.info().unwrap().devices, 1, "the pool keeps its device and its model");
    Arc::try_unwrap(pool).unwrap().close().unwrap();
}

#[test]
fn that_set_up_wait_for_each_other() {
    let model = Weights::new().model(Dtype::F32);
    let device = device();
    let pool = pool(&device, &model, 6);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    session(&pool).close().unwrap();
                }
            });
        }
    });
}
