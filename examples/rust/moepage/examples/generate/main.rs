//! Generates text greedily with a byte-level Qwen3-MoE checkpoint, its experts paged under a budget.
//!
//! ```text
//! cargo run --example generate -- --model DIR --prompt TEXT --tokens N --budget 25%
//! ```
mod config;
mod decoder;
mod math;
mod options;
mod weights;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use moepage::{
    DeviceConfig, Engine, EngineConfig, ExpertPoolConfig, KvPoolConfig, Model, Sequence, Session,
    SessionConfig, StatsSource, Stream,
};

use config::Config;
use decoder::Decoder;
use options::Options;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Most prompt tokens in one step.
const STEP_TOKENS: usize = 128;
const BLOCK_TOKENS: u32 = 16;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("generate: {problem}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("generate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let model = Arc::new(Model::open(&options.model)?);
    let config = Config::read(&model)?;
    let longest = options.prompts.iter().map(Vec::len).max().unwrap_or(0);
    let positions = (longest + options.tokens - 1) as u64;
    if positions > u64::from(config.max_positions) {
        return Err(format!("{positions} positions, the model has {}", config.max_positions).into());
    }

    let info = model.info()?;
    let all = u64::from(info.moe_layers) * u64::from(info.experts);
    let slots = (options.budget_percent * all / 100).max(1); // 0 would be all of them
    let engine_config = EngineConfig {
        device: DeviceConfig {
            log: Some(Box::new(|level, text| eprintln!("{level:?}: {text}"))),
            ..Default::default()
        },
        experts: ExpertPoolConfig { slots, ..Default::default() },
        kv: Some(KvPoolConfig {
            bytes_per_token: vec![config.kv_bytes_per_token(); config.layers],
            block_tokens: BLOCK_TOKENS,
            blocks_per_granule: 1,
            blocks: (positions + u64::from(BLOCK_TOKENS) - 1) / u64::from(BLOCK_TOKENS),
            max_sequences: 1,
        }),
        session: SessionConfig {
            max_tokens: STEP_TOKENS as u32,
            max_sequences: 1,
            ..Default::default()
        },
        ..Default::default()
    };
    let mut engine = Engine::over(Arc::clone(&model), "", engine_config)?;
    let kv = Arc::clone(engine.kv().expect("the config has one"));
    let mut decoder = Decoder::open(&model, &config, &kv)?;

    let start = Instant::now();
    let mut outputs = Vec::new();
    for prompt in &options.prompts {
        let mut sequence = Sequence::create(&kv)?;
        let session = engine.session();
        outputs.push(generate(&mut decoder, session, &mut sequence, prompt, options.tokens)?);
    }
    let seconds = start.elapsed().as_secs_f64();

    if options.json {
        println!("{}", json(&outputs));
        return Ok(());
    }
    for output in &outputs {
        println!("{}\n", String::from_utf8_lossy(&bytes_of(output)));
    }
    let stats = engine.stats()?;
    println!("tok/s           {:.1}", stats.tokens as f64 / seconds);
    println!(
        "hit rate        {:.2}% ({} hits, {} misses, {} late)",
        100.0 * stats.hits as f64 / stats.routed.max(1) as f64,
        stats.hits,
        stats.misses,
        stats.late
    );
    println!("bytes moved     {:.1} MiB on demand", stats.demand_bytes as f64 / (1 << 20) as f64);
    println!("arena, experts  {} slots of {all} experts", engine.experts().info()?.slots);
    if options.metrics {
        let source = StatsSource {
            device: Some(engine.device()),
            experts: Some(engine.experts()),
            kv: Some(&kv),
            ..Default::default()
        };
        print!("\n{}", source.text()?);
    }
    Ok(())
}

/// The most likely tokens after a prompt, up to the end of the text.
fn generate(
    decoder: &mut Decoder<'_>,
    session: &mut Session<'_>,
    sequence: &mut Sequence<'_>,
    prompt: &[u32],
    n_tokens: usize,
) -> Result<Vec<u32>> {
    let mut output = Vec::with_capacity(n_tokens);
    let mut next = 0;
    for part in prompt.chunks(STEP_TOKENS) {
        sequence.append(part.len() as u64, Stream::default())?;
        next = math::argmax(decoder.prefill(session, sequence, part)?);
    }
    output.push(next);
    while output.len() < n_tokens && !decoder.config().ends(next) {
        sequence.append(1, Stream::default())?;
        next = math::argmax(decoder.decode(session, sequence, next)?);
        output.push(next);
    }
    Ok(output)
}

/// Tokens of a byte-level model; those above 255 are no text.
fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect()
}

fn json(outputs: &[Vec<u32>]) -> String {
    let one = |output: &Vec<u32>| {
        let tokens: Vec<_> = output.iter().map(u32::to_string).collect();
        format!("{{\"tokens\":[{}]}}", tokens.join(","))
    };
    format!("{{\"outputs\":[{}]}}", outputs.iter().map(one).collect::<Vec<_>>().join(","))
}
