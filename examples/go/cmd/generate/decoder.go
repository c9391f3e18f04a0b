package main

import "moepage"

// decoder is a forward pass: everything but the routed experts is computed here.
type decoder struct {
	config  *config
	weights *weights
	kv      *moepage.KVPool
	session *moepage.Session

	// of the largest step, a row for every token
	hidden, normed, q, k, v, attended, added, scores []float32
	attention                                        []float32 // [positions]
	ids                                              []int32
	top                                              []float32
	logits                                           []float32 // [vocabulary]
}

func newDecoder(c *config, w *weights, kv *moepage.KVPool, session *moepage.Session, tokens, positions int) *decoder {
	rows := func(width int) []float32 { return make([]float32, tokens*width) }
	return &decoder{config: c, weights: w, kv: kv, session: session,
		hidden: rows(c.Hidden), normed: rows(c.Hidden), added: rows(c.Hidden),
		q: rows(c.Heads * c.HeadDim), attended: rows(c.Heads * c.HeadDim),
		k: rows(c.kvWidth()), v: rows(c.kvWidth()), scores: rows(c.Experts),
		attention: make([]float32, positions), ids: make([]int32, tokens*c.TopK), top: rows(c.TopK),
		logits: make([]float32, c.Vocabulary)}
}

// step feeds tokens to a sequence that holds `position` tokens, and returns the logits after the last
// of them, until the next step. Prompts of more tokens than the session takes are fed in pieces.
func (d *decoder) step(seq *moepage.Sequence, position int, tokens []int, phase moepage.Phase) ([]float32, error) {
	if err := seq.Append(len(tokens), nil); err != nil {
		return nil, err
	}
	err := d.session.Begin(moepage.Step{Tokens: len(tokens), Sequences: []moepage.StepSequence{
		{Seq: seq, Tokens: len(tokens), Phase: phase}}})
	if err != nil {
		return nil, err
	}
	if err := d.layers(seq, position, tokens); err != nil {
		_ = d.session.Cancel() // the first failure is the one to tell
		return nil, err
	}
	if _, err := d.session.End(); err != nil {
		return nil, err
	}
	last := d.hidden[(len(tokens)-1)*d.config.Hidden : len(tokens)*d.config.Hidden]
	rmsNorm(last, d.weights.finalNorm, d.config.NormEps, d.normed[:d.config.Hidden])
	linear(d.normed[:d.config.Hidden], &d.weights.head, d.logits)
	return d.logits, nil
}

func (d *decoder) layers(seq *moepage.Sequence, position int, tokens []int) error {
	for i, token := range tokens {
		copy(d.hidden[i*d.config.Hidden:], d.weights.embedding.row(token))
	}
	for layer := range d.weights.layers {
		if err := d.attend(seq, layer, position, len(tokens)); err != nil {
			return err
		}
		if err := d.experts(layer, len(tokens)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) attend(seq *moepage.Sequence, layer, position, n int) error {
	c, w := d.config, &d.weights.layers[layer]
	past, err := openCache(seq, layer, blockTokens, c.kvWidth())
	if err != nil {
		return err
	}
	hidden, normed := d.hidden[:n*c.Hidden], d.normed[:n*c.Hidden]
	q, k := d.q[:n*c.Heads*c.HeadDim], d.k[:n*c.kvWidth()]
	rmsNorm(hidden, w.inputNorm, c.NormEps, normed)
	linear(normed, &w.q, q)
	linear(normed, &w.k, k)
	linear(normed, &w.v, d.v)
	rmsNorm(q, w.qNorm, c.NormEps, q)
	rmsNorm(k, w.kNorm, c.NormEps, k)
	for i := 0; i < n; i++ {
		key := k[i*c.kvWidth() : (i+1)*c.kvWidth()]
		rotate(q[i*c.Heads*c.HeadDim:(i+1)*c.Heads*c.HeadDim], c.HeadDim, c.RopeTheta, position+i)
		rotate(key, c.HeadDim, c.RopeTheta, position+i)
		copy(past.key(position+i), key)
		copy(past.value(position+i), d.v[i*c.kvWidth():(i+1)*c.kvWidth()])
	}
	for i := 0; i < n; i++ {
		row := i * c.Heads * c.HeadDim
		past.attend(c, q[row:row+c.Heads*c.HeadDim], position+i, d.attention, d.attended[row:row+c.Heads*c.HeadDim])
	}
	linear(d.attended[:len(q)], &w.o, d.added)
	add(hidden, d.added[:len(hidden)])
	return nil
}

// experts announces what the router chose, and has the library compute it.
func (d *decoder) experts(layer, n int) error {
	c, w := d.config, &d.weights.layers[layer]
	hidden, normed, added := d.hidden[:n*c.Hidden], d.normed[:n*c.Hidden], d.added[:n*c.Hidden]
	rmsNorm(hidden, w.postNorm, c.NormEps, normed)
	linear(normed, &w.router, d.scores)
	for i := 0; i < n; i++ {
		choose(c, d.scores[i*c.Experts:(i+1)*c.Experts], d.ids[i*c.TopK:(i+1)*c.TopK], d.top[i*c.TopK:(i+1)*c.TopK])
	}
	err := d.session.Route(layer, moepage.Routing{IDs: d.ids[:n*c.TopK], Weights: d.top[:n*c.TopK],
		Probabilities: d.scores[:n*c.Experts]})
	if err != nil {
		return err
	}
	err = d.session.FFN(layer, moepage.FFN{X: moepage.Float32s(normed), Y: moepage.Float32s(added)})
	if err != nil {
		return err
	}
	add(hidden, added)
	return d.session.Retire(layer)
}
