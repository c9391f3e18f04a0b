package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

// PredictorConfig is what a predictor predicts from. Name is "none", "previous", "hit-count", "gate",
// "coactivation" or "maps", which "" stands for.
type PredictorConfig struct {
	Distance    uint32
	Name        string
	Capacity    uint32
	SemanticDim uint32
}

// Predictor says which experts will be routed. It may be shared by sessions.
type Predictor struct {
	object
	c *C.moepage_predictor
}

// Rightsize is the working set that routing converges to.
type Rightsize struct {
	Layers   uint32
	Coverage float64
	Experts  uint64
	Bytes    uint64
	Freed    uint64
	Unseen   float64
}

// c is the config for the library; the name is to be freed.
func (config *PredictorConfig) c() C.moepage_predictor_config {
	return C.moepage_predictor_config{
		struct_size:  C.sizeof_moepage_predictor_config,
		distance:     C.uint32_t(config.Distance),
		name:         cstring(config.Name),
		capacity:     C.uint32_t(config.Capacity),
		semantic_dim: C.uint32_t(config.SemanticDim),
	}
}

// NewPredictor makes a predictor for models of this shape, which it does not keep.
func NewPredictor(model *Model, config PredictorConfig) (*Predictor, error) {
	const op = "create predictor"
	if model == nil {
		return nil, refuse(op, ErrArgument, "no model")
	}
	if err := whole(op, config.Name); err != nil {
		return nil, err
	}
	c := config.c()
	defer free(c.name)
	p := &Predictor{}
	err := model.any(op, func() C.moepage_status { return C.moepage_predictor_create(model.c, &c, &p.c) })
	if err != nil {
		return nil, err
	}
	born(p)
	return p, nil
}

// Close is ErrBusy while a session uses the predictor, or a controller that sizes its user.
func (p *Predictor) Close() error {
	return p.shut("close predictor", func() C.moepage_status { return C.moepage_predictor_destroy(p.c) })
}

// Info is what the predictor is and has learnt.
func (p *Predictor) Info() (PredictorInfo, error) {
	c := C.moepage_predictor_info{struct_size: C.sizeof_moepage_predictor_info}
	return fetch(&p.object, "predictor info", &c, func() C.moepage_status {
		return C.moepage_predictor_get_info(p.c, &c)
	}, newPredictorInfo)
}

// Save writes what has been learnt to a file.
func (p *Predictor) Save(path string) error {
	if err := whole("save predictor", path); err != nil {
		return err
	}
	text := C.CString(path)
	defer free(text)
	return p.any("save predictor", func() C.moepage_status { return C.moepage_predictor_save(p.c, text) })
}

// Load takes over what a predictor of the same name for the same shape saved.
func (p *Predictor) Load(path string) error {
	if err := whole("load predictor", path); err != nil {
		return err
	}
	text := C.CString(path)
	defer free(text)
	return p.any("load predictor", func() C.moepage_status { return C.moepage_predictor_load(p.c, text) })
}

// Rightsize is the smallest set of experts that covers so much of the choices; 0 = 0.99.
func (p *Predictor) Rightsize(coverage float64) (Rightsize, error) {
	c := C.moepage_rightsize{struct_size: C.sizeof_moepage_rightsize, coverage: C.double(coverage)}
	err := p.any("rightsize", func() C.moepage_status { return C.moepage_predictor_rightsize(p.c, &c) })
	if err != nil {
		return Rightsize{}, err
	}
	return newRightsize(&c), nil
}

func newRightsize(c *C.moepage_rightsize) Rightsize {
	return Rightsize{uint32(c.layers), float64(c.coverage), uint64(c.experts), uint64(c.bytes),
		uint64(c.freed), float64(c.unseen)}
}
