package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

import "unsafe"

// StatsSource is what StatsText reports on; what is nil is left out.
type StatsSource struct {
	Device     *Device
	Experts    *ExpertPool
	KV         *KVPool
	Controller *Controller
	Predictor  *Predictor
	Labels     string // put into every sample: `model="qwen3"`
}

// StatsText is every counter and gauge in the text format that Prometheus scrapes. Any goroutine may
// ask while others serve.
func StatsText(source StatsSource) (string, error) {
	const op = "stats text"
	if err := whole(op, source.Labels); err != nil {
		return "", err
	}
	c := C.moepage_stats_source{struct_size: C.sizeof_moepage_stats_source, labels: cstring(source.Labels)}
	defer free(c.labels)
	var parts []*object
	if d := source.Device; d != nil {
		parts, c.device = append(parts, &d.object), d.c
	}
	if p := source.Experts; p != nil {
		parts, c.experts = append(parts, &p.object), p.c
	}
	if p := source.KV; p != nil {
		parts, c.kv = append(parts, &p.object), p.c
	}
	if p := source.Controller; p != nil {
		parts, c.controller = append(parts, &p.object), p.c
	}
	if p := source.Predictor; p != nil {
		parts, c.predictor = append(parts, &p.object), p.c
	}
	if err := enterAll(parts...); err != nil {
		return "", err
	}
	defer leaveAll(parts...)
	out := make([]byte, C.MOEPAGE_STATS_TEXT_BYTES)
	var length C.uint64_t
	err := call(op, func() C.moepage_status {
		return C.moepage_stats_text(&c, (*C.char)(unsafe.Pointer(&out[0])), C.uint64_t(len(out)), &length)
	})
	if err != nil {
		return "", err
	}
	return string(out[:length]), nil
}
