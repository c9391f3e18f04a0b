// Command generate runs a Qwen3-MoE checkpoint with byte tokens on libmoepage, greedily: what a host
// in Go looks like.
//
//	generate -model ../models/tiny-qwen3moe -prompt 'int main(' -budget 25%
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// prompts is a flag that may be repeated.
type prompts [][]byte

func (p *prompts) String() string { return fmt.Sprintf("%q", [][]byte(*p)) }

func (p *prompts) Set(text string) error {
	if text == "" {
		return errors.New("an empty prompt has nothing to go on from")
	}
	*p = append(*p, []byte(text))
	return nil
}

func main() {
	o := &options{}
	flag.StringVar(&o.model, "model", "", "checkpoint `directory`, or .moepack file")
	flag.Var((*prompts)(&o.prompts), "prompt", "`text` to continue; repeatable")
	flag.IntVar(&o.tokens, "tokens", 64, "tokens to generate for each prompt")
	flag.StringVar(&o.budget, "budget", "100%", "`bytes` for experts and KV, as in 6M, or a percentage of the experts")
	asJSON := flag.Bool("json", false, "print one JSON object instead of text")
	flag.Parse()
	if o.model == "" || len(o.prompts) == 0 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := show(o, *asJSON, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// show generates and prints: text as it comes, or one JSON object at the end.
func show(o *options, asJSON bool, out io.Writer) error {
	current := -1
	var failure error
	r, err := run(o, func(prompt, token int) {
		if asJSON || failure != nil {
			return
		}
		if prompt != current && current >= 0 {
			_, failure = fmt.Fprintln(out)
		}
		current = prompt
		if token < 256 {
			_, failure = out.Write([]byte{byte(token)})
		}
	})
	if err == nil {
		err = failure
	}
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(out).Encode(map[string]any{"outputs": r.outputs, "stats": r.stats})
	}
	return summarise(r, out)
}

func summarise(r *result, out io.Writer) error {
	s := &r.stats
	const mib = 1 << 20
	generated := 0
	for _, tokens := range r.outputs {
		generated += len(tokens)
	}
	_, err := fmt.Fprintf(out, `

tokens     %d generated, %.1f per second
hit rate   %.2f%% (%d hits, %d misses, %d late)
moved      %.1f MiB on demand
time       %v in steps: %v stalled, %v in experts
arena      %.1f MiB for %d slots of %d experts, %.1f MiB for KV
`, generated, float64(generated)/r.wall.Seconds(),
		100*float64(s.Hits)/float64(s.Routed), s.Hits, s.Misses, s.Late, float64(s.DemandBytes)/mib,
		s.Wall.Round(1e5), s.Stall.Round(1e5), s.Compute.Round(1e5),
		float64(r.device.ArenaExpertBytes)/mib, r.slots, r.experts, float64(r.device.ArenaKVBytes)/mib)
	return err
}
