package moepage

// #include <stdlib.h>
// #include "moepage.h"
import "C"

// PackConfig is how a pack is written.
type PackConfig struct {
	Forms       []Form // of the experts, at least one of them lossless; none = FormExph
	ColdLevel   int32
	GroupSize   uint32
	Threads     uint32
	Verify      bool
	ScaleSearch bool
	Progress    ProgressFunc
	Moments     MomentsFunc // nil: integer forms round each weight by itself
}

// WritePack writes a model to a .moepack file, which gets its name when it is complete.
func WritePack(model *Model, path string, config PackConfig) (PackStats, error) {
	const op = "write pack"
	if model == nil {
		return PackStats{}, refuse(op, ErrArgument, "no model")
	}
	if err := whole(op, path); err != nil {
		return PackStats{}, err
	}
	c := C.moepage_pack_config{
		struct_size:  C.sizeof_moepage_pack_config,
		cold_level:   C.int32_t(config.ColdLevel),
		group_size:   C.uint32_t(config.GroupSize),
		threads:      C.uint32_t(config.Threads),
		verify:       flag(config.Verify),
		scale_search: flag(config.ScaleSearch),
	}
	for _, form := range config.Forms {
		if form > 31 {
			return PackStats{}, refuse(op, ErrArgument, "form %d: there is none", form)
		}
		c.forms |= 1 << form
	}
	told := &progress{tell: config.Progress}
	if config.Progress != nil {
		c.progress, c.progress_user = goProgress, newBox(told)
		defer freeBox(c.progress_user)
	}
	gathered := &gathering{model: model, gather: config.Moments}
	if config.Moments != nil {
		if err := gathered.measure(); err != nil {
			return PackStats{}, err
		}
		c.moments, c.moments_user = goMoments, newBox(gathered)
		defer freeBox(c.moments_user)
	}
	text := C.CString(path)
	defer free(text)
	stats := C.moepage_pack_stats{struct_size: C.sizeof_moepage_pack_stats}
	out, err := fetch(&model.object, op, &stats, func() C.moepage_status {
		return C.moepage_pack_write(model.c, text, &c, &stats)
	}, newPackStats)
	err = model.reader.explain(err)
	if failure, ok := err.(*Error); ok && told.last != nil {
		failure.Cause = told.last
	} else if ok && gathered.last != nil {
		failure.Cause = gathered.last
	}
	return out, err
}
