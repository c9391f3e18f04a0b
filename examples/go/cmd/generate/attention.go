package main

import (
	"math"
	"unsafe"

	"moepage"
)

// cache is one sequence's keys and values in one layer. A block holds the keys of its tokens, then
// their values.
type cache struct {
	blocks      [][]float32
	blockTokens int
	width       int
}

// openCache finds a layer's blocks; they stay where they are until the step ends.
func openCache(seq *moepage.Sequence, layer, blockTokens, width int) (*cache, error) {
	c := &cache{blockTokens: blockTokens, width: width}
	blocks, err := seq.Blocks(layer)
	if err != nil {
		return nil, err
	}
	for _, block := range blocks {
		c.blocks = append(c.blocks, unsafe.Slice((*float32)(unsafe.Pointer(&block[0])), len(block)/4))
	}
	return c, nil
}

func (c *cache) key(position int) []float32 {
	at := position % c.blockTokens * c.width
	return c.blocks[position/c.blockTokens][at : at+c.width]
}

func (c *cache) value(position int) []float32 {
	at := (c.blockTokens + position%c.blockTokens) * c.width
	return c.blocks[position/c.blockTokens][at : at+c.width]
}

// attend is causal attention of one token's query heads over its sequence; groups of query heads
// share a KV head.
func (c *cache) attend(cfg *config, q []float32, position int, scores, out []float32) {
	scale := float32(1 / math.Sqrt(float64(cfg.HeadDim)))
	scores = scores[:position+1]
	for head := 0; head < cfg.Heads; head++ {
		at := head / (cfg.Heads / cfg.KVHeads) * cfg.HeadDim
		mine := q[head*cfg.HeadDim : (head+1)*cfg.HeadDim]
		for p := range scores {
			scores[p] = dot(mine, c.key(p)[at:at+cfg.HeadDim]) * scale
		}
		softmax(scores)
		sum := out[head*cfg.HeadDim : (head+1)*cfg.HeadDim]
		for i := range sum {
			sum[i] = 0
		}
		for p, weight := range scores {
			for i, v := range c.value(p)[at : at+cfg.HeadDim] {
				sum[i] += weight * v
			}
		}
	}
}
