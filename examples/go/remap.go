package moepage

/*
#include "moepage.h"

// Arrays come by themselves: a struct in Go's memory must not hold Go's pointers.
static moepage_status set_remap(moepage_session *session, moepage_remap_config config,
                                const float *alphas, const float *betas)
{
    config.struct_size = sizeof config;
    config.alphas = alphas;
    config.betas = betas;
    return moepage_session_set_remap(session, &config);
}
*/
import "C"

// Gate is what turns a router's logits into weights.
type Gate uint32

const (
	GateSoftmax Gate = C.MOEPAGE_GATE_SOFTMAX
	GateSigmoid Gate = C.MOEPAGE_GATE_SIGMOID
)

// RemapConfig has decode batches do without experts that few tokens care about. It changes outputs.
type RemapConfig struct {
	Gate     Gate
	Alpha    float64
	Beta     float64
	Alphas   []float32 // for every MoE layer, with Betas; nil = Alpha and Beta everywhere
	Betas    []float32
	Resident float64
}

// SetRemap holds from the next step on; nil turns remapping off. ErrState while a step is open.
func (s *Session) SetRemap(config *RemapConfig) error {
	const op = "set remap"
	if config == nil {
		return s.one(op, func() C.moepage_status { return C.moepage_session_set_remap(s.c, nil) })
	}
	if s.experts == nil {
		return ErrClosed
	}
	for _, list := range [][]float32{config.Alphas, config.Betas} {
		if layers := int(s.experts.model.info.MoELayers); list != nil && len(list) != layers {
			return refuse(op, ErrArgument, "%d numbers for %d MoE layers", len(list), layers)
		}
	}
	c := C.moepage_remap_config{gate: C.uint32_t(config.Gate), alpha: C.double(config.Alpha),
		beta: C.double(config.Beta), resident: C.double(config.Resident)}
	return s.one(op, func() C.moepage_status {
		return C.set_remap(s.c, c, (*C.float)(first(config.Alphas)), (*C.float)(first(config.Betas)))
	})
}
