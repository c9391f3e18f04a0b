package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"moepage"
)

const blockTokens = 16

// most prompt tokens in one step
const stepTokens = 128

type options struct {
	model   string
	prompts [][]byte
	tokens  int
	budget  string
}

// result is what came out, and what it took.
type result struct {
	outputs [][]int
	stats   moepage.SessionStats
	slots   uint64
	experts uint64
	device  moepage.DeviceInfo
	wall    time.Duration
}

// host is everything that has to be closed, in the order in which it was opened.
type host struct {
	open []interface{ Close() error }
}

func (h *host) keep(c interface{ Close() error }) { h.open = append(h.open, c) }

// close closes the newest first, and reports the first failure.
func (h *host) close(err *error) {
	for i := len(h.open) - 1; i >= 0; i-- {
		if failure := h.open[i].Close(); *err == nil {
			*err = failure
		}
	}
}

// slotsOf turns -budget into slots: a percentage of the experts, the KV on top, or bytes for both.
func slotsOf(budget string, info *moepage.ModelInfo, kvBytes uint64) (uint64, error) {
	experts := uint64(info.MoELayers) * uint64(info.Experts)
	slots := uint64(0)
	if strings.HasSuffix(budget, "%") {
		share, err := strconv.ParseFloat(strings.TrimSuffix(budget, "%"), 64)
		if err != nil || !(share > 0) {
			return 0, fmt.Errorf("-budget %s: a percentage above 0", budget)
		}
		slots = uint64(share * float64(experts) / 100)
	} else {
		bytes, err := parseBytes(budget)
		if err != nil {
			return 0, err
		}
		if bytes > kvBytes {
			slots = (bytes - kvBytes) / info.SlotBytes
		}
	}
	if slots > experts {
		slots = experts
	}
	if slots == 0 {
		return 0, fmt.Errorf("-budget %s: not one expert of %d bytes fits beside %d bytes of KV",
			budget, info.SlotBytes, kvBytes)
	}
	return slots, nil
}

// parseBytes reads a number with K, M or G for 2^10, 2^20 or 2^30.
func parseBytes(text string) (uint64, error) {
	shift := map[string]uint{"K": 10, "M": 20, "G": 30}
	unit := strings.TrimLeft(text, "0123456789")
	n, err := strconv.ParseUint(strings.TrimSuffix(text, unit), 10, 64)
	if by, ok := shift[unit]; err == nil && (ok || unit == "") && n<<by>>by == n {
		return n << by, nil
	}
	return 0, fmt.Errorf("-budget %s: bytes, as in 6M, or a percentage of the experts, as in 25%%", text)
}

// positions is the longest context of the run; the last token generated is not fed.
func (o *options) positions() int {
	longest := 0
	for _, prompt := range o.prompts {
		if len(prompt) > longest {
			longest = len(prompt)
		}
	}
	return longest + o.tokens - 1
}

// run generates for one prompt after the other, greedily. onToken, unless nil, is told every token.
func run(o *options, onToken func(prompt, token int)) (out *result, err error) {
	h := &host{}
	defer h.close(&err)
	model, err := moepage.OpenModel(o.model, moepage.ModelConfig{})
	if err != nil {
		return nil, err
	}
	h.keep(model)
	c, err := readConfig(model)
	if err != nil {
		return nil, err
	}
	positions := o.positions()
	if o.tokens < 1 || positions > c.MaxPositions {
		return nil, fmt.Errorf("a context of %d tokens: the model has %d positions", positions, c.MaxPositions)
	}
	w, err := loadWeights(model, c)
	if err != nil {
		return nil, err
	}
	d, slots, err := h.serve(model, c, w, positions, o.budget)
	if err != nil {
		return nil, err
	}
	out = &result{slots: slots, experts: uint64(c.Layers) * uint64(c.Experts)}
	start := time.Now()
	for i, prompt := range o.prompts {
		tokens, err := d.generate(prompt, o.tokens, func(token int) {
			if onToken != nil {
				onToken(i, token)
			}
		})
		if err != nil {
			return nil, err
		}
		out.outputs = append(out.outputs, tokens)
	}
	out.wall = time.Since(start)
	if out.stats, err = d.session.Stats(); err != nil {
		return nil, err
	}
	out.device, err = h.open[1].(*moepage.Engine).Device.Info()
	return out, err
}

// serve opens an engine, and the decoder over it.
func (h *host) serve(model *moepage.Model, c *config, w *weights, positions int,
	budget string) (*decoder, uint64, error) {
	info, err := model.Info()
	if err != nil {
		return nil, 0, err
	}
	perToken := make([]uint32, c.Layers)
	for i := range perToken {
		perToken[i] = uint32(2 * c.kvWidth() * 4)
	}
	blocks := uint64(positions+blockTokens-1) / blockTokens
	kvBytes := blocks * blockTokens * uint64(perToken[0]) * uint64(c.Layers)
	slots, err := slotsOf(budget, &info, kvBytes)
	if err != nil {
		return nil, 0, err
	}
	engine, err := moepage.NewEngine(model, "", moepage.EngineConfig{
		Experts: moepage.ExpertPoolConfig{Slots: slots},
		KV: &moepage.KVPoolConfig{BlockTokens: blockTokens, BlocksPerGranule: 1,
			BytesPerToken: perToken, Blocks: blocks},
		Session: moepage.SessionConfig{MaxTokens: stepTokens},
	})
	if err != nil {
		return nil, 0, err
	}
	h.keep(engine)
	return newDecoder(c, w, engine.KV, engine.Session, stepTokens, positions), slots, nil
}

// generate feeds a prompt, in steps of at most stepTokens, and then every token that comes out.
func (d *decoder) generate(prompt []byte, n int, onToken func(int)) (out []int, err error) {
	seq, err := d.kv.NewSequence()
	if err != nil {
		return nil, err
	}
	defer func() {
		if failure := seq.Close(); err == nil {
			err = failure
		}
	}()
	feed := make([]int, len(prompt))
	for i, b := range prompt {
		feed[i] = int(b)
	}
	var logits []float32
	position, phase := 0, moepage.PhasePrefill
	for len(out) < n {
		for len(feed) > 0 {
			piece := feed
			if len(piece) > stepTokens {
				piece = piece[:stepTokens]
			}
			if logits, err = d.step(seq, position, piece, phase); err != nil {
				return nil, err
			}
			position, feed = position+len(piece), feed[len(piece):]
		}
		token := argmax(logits)
		out = append(out, token)
		onToken(token)
		if token == d.config.EOS {
			break
		}
		feed, phase = []int{token}, moepage.PhaseDecode
	}
	return out, nil
}
