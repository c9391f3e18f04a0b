package main

// choose turns one token's router logits into probabilities, and takes the best TopK experts of
// them.
func choose(c *config, logits []float32, ids []int32, top []float32) {
	softmax(logits)
	var sum float32
	for k := range ids {
		best := int32(-1)
		for e := int32(0); e < int32(c.Experts); e++ {
			if !contains(ids[:k], e) && (best < 0 || logits[e] > logits[best]) {
				best = e
			}
		}
		ids[k], top[k] = best, logits[best]
		sum += top[k]
	}
	if c.Normalise {
		for k := range top {
			top[k] /= sum
		}
	}
}

func contains(ids []int32, id int32) bool {
	for _, other := range ids {
		if other == id {
			return true
		}
	}
	return false
}
