package main

import "math"

func exp32(x float32) float32 { return float32(math.Exp(float64(x))) }

// dot adds up in four parts, which do not wait for each other.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// linear is y = x * w transposed, for every row of x.
func linear(x []float32, w *matrix, y []float32) {
	rows := len(w.data) / w.columns
	for r := 0; r*w.columns < len(x); r++ {
		in := x[r*w.columns : (r+1)*w.columns]
		for i := 0; i < rows; i++ {
			y[r*rows+i] = dot(in, w.row(i))
		}
	}
}

// rmsNorm normalises every len(scale) numbers of x by themselves.
func rmsNorm(x, scale []float32, eps float32, out []float32) {
	width := len(scale)
	for r := 0; r < len(x); r += width {
		in := x[r : r+width]
		inverse := 1 / float32(math.Sqrt(float64(dot(in, in)/float32(width)+eps)))
		for i, v := range in {
			out[r+i] = v * inverse * scale[i]
		}
	}
}

func softmax(x []float32) {
	most, sum := x[0], float32(0)
	for _, v := range x {
		if v > most {
			most = v
		}
	}
	for i, v := range x {
		x[i] = exp32(v - most)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

// rotate turns the heads of x to their position (RoPE, halves paired).
func rotate(x []float32, headDim int, theta float64, position int) {
	half := headDim / 2
	for i := 0; i < half; i++ {
		frequency := float32(1 / math.Pow(theta, float64(2*i)/float64(headDim)))
		sin, cos := math.Sincos(float64(float32(position) * frequency))
		for head := 0; head < len(x); head += headDim {
			a, b := x[head+i], x[head+i+half]
			x[head+i] = a*float32(cos) - b*float32(sin)
			x[head+i+half] = b*float32(cos) + a*float32(sin)
		}
	}
}

func add(x, more []float32) {
	for i, v := range more {
		x[i] += v
	}
}

// argmax is the largest of x, the first of equals.
func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}
