//! The command line.
use std::path::PathBuf;

pub const USAGE: &str = "usage: generate --model DIR (--prompt TEXT | --prompt-tokens 1,2,3)... \
[--tokens N] [--budget P%] [--json] [--metrics]

  --tokens N     tokens to generate for each prompt (default 64)
  --budget P%    share of the routed experts that is resident (default 100%)
  --json         the tokens alone
  --metrics      the library's counters, as Prometheus scrapes them";

pub struct Options {
    pub model: PathBuf,
    pub prompts: Vec<Vec<u32>>,
    pub tokens: usize,
    pub budget_percent: u64,
    pub json: bool,
    pub metrics: bool,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            model: PathBuf::new(),
            prompts: Vec::new(),
            tokens: 64,
            budget_percent: 100,
            json: false,
            metrics: false,
        };
        while let Some(flag) = arguments.next() {
            match flag.as_str() {
                "--json" => options.json = true,
                "--metrics" => options.metrics = true,
                _ => {
                    let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
                    options.take(&flag, &value)?;
                }
            }
        }
        if options.model.as_os_str().is_empty() || options.prompts.is_empty() {
            return Err("--model and a prompt are needed".into());
        }
        Ok(options)
    }

    fn take(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let refused = || format!("{flag} '{value}' is out of range");
        match flag {
            "--model" => self.model = value.into(),
            "--prompt" => self.prompts.push(value.bytes().map(u32::from).collect()),
            "--prompt-tokens" => {
                let ids = value.split(',').map(str::parse).collect::<Result<_, _>>();
                self.prompts.push(ids.map_err(|_| refused())?);
            }
            "--tokens" => self.tokens = value.parse().map_err(|_| refused())?,
            "--budget" => {
                let percent = value.strip_suffix('%').ok_or_else(refused)?;
                self.budget_percent = percent.parse().map_err(|_| refused())?;
            }
            _ => return Err(format!("{flag} is no flag")),
        }
        let prompt_is_empty = self.prompts.last().map_or(false, Vec::is_empty);
        if self.tokens == 0 || !(1..=100).contains(&self.budget_percent) || prompt_is_empty {
            return Err(refused());
        }
        Ok(())
    }
}
