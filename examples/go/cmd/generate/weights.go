package main

import (
	"fmt"

	"moepage"
)

// matrix is [rows][columns], row by row.
type matrix struct {
	data    []float32
	columns int
}

func (m *matrix) row(i int) []float32 { return m.data[i*m.columns : (i+1)*m.columns] }

// layerWeights is what of a layer is never paged.
type layerWeights struct {
	inputNorm, postNorm, qNorm, kNorm []float32
	q, k, v, o, router                matrix
}

type weights struct {
	embedding, head matrix
	finalNorm       []float32
	layers          []layerWeights
}

// loader reads tensors, widened to float32, until one fails.
type loader struct {
	model *moepage.Model
	err   error
}

func (l *loader) matrix(name string, rows, columns int) matrix {
	if l.err != nil {
		return matrix{}
	}
	tensor, err := l.model.FindTensor(name)
	if err == nil && len(tensor.Shape) > 0 {
		elements := 1
		for _, d := range tensor.Shape {
			elements *= d
		}
		if tensor.Shape[0] != rows || elements != rows*columns {
			err = fmt.Errorf("%s has shape %v, not %d x %d", name, tensor.Shape, rows, columns)
		}
	}
	if err != nil {
		l.err = err
		return matrix{}
	}
	data, err := tensor.Float32s()
	l.err = err
	return matrix{data, columns}
}

func (l *loader) vector(name string, n int) []float32 { return l.matrix(name, n, 1).data }

func loadWeights(model *moepage.Model, c *config) (*weights, error) {
	l := &loader{model: model}
	q := c.Heads * c.HeadDim
	w := &weights{
		embedding: l.matrix("model.embed_tokens.weight", c.Vocabulary, c.Hidden),
		head:      l.matrix("lm_head.weight", c.Vocabulary, c.Hidden),
		finalNorm: l.vector("model.norm.weight", c.Hidden),
	}
	for i := 0; i < c.Layers; i++ {
		at := fmt.Sprintf("model.layers.%d.", i)
		w.layers = append(w.layers, layerWeights{
			inputNorm: l.vector(at+"input_layernorm.weight", c.Hidden),
			postNorm:  l.vector(at+"post_attention_layernorm.weight", c.Hidden),
			qNorm:     l.vector(at+"self_attn.q_norm.weight", c.HeadDim),
			kNorm:     l.vector(at+"self_attn.k_norm.weight", c.HeadDim),
			q:         l.matrix(at+"self_attn.q_proj.weight", q, c.Hidden),
			k:         l.matrix(at+"self_attn.k_proj.weight", c.kvWidth(), c.Hidden),
			v:         l.matrix(at+"self_attn.v_proj.weight", c.kvWidth(), c.Hidden),
			o:         l.matrix(at+"self_attn.o_proj.weight", c.Hidden, q),
			router:    l.matrix(at+"mlp.gate.weight", c.Experts, c.Hidden),
		})
	}
	return w, l.err
}
