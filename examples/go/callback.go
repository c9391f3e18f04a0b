package moepage

/*
#include <stdlib.h>
#include "moepage.h"

extern void moepageGoLog(void *user, int32_t level, char *text);
extern int32_t moepageGoRead(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                             uint64_t offset, uint64_t bytes, void *out);
extern int32_t moepageGoProgress(void *user, uint64_t done, uint64_t total);
extern int32_t moepageGoMoments(void *user, uint32_t layer, uint32_t expert, uint32_t tensor,
                                void *slot, uint64_t columns, float *out);
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime/cgo"
	"runtime/debug"
	"sync"
	"unsafe"
)

// LogLevel is how grave a message is.
type LogLevel int32

const (
	LogError   LogLevel = C.MOEPAGE_LOG_ERROR
	LogWarning LogLevel = C.MOEPAGE_LOG_WARNING
	LogInfo    LogLevel = C.MOEPAGE_LOG_INFO
)

// LogFunc receives messages worth an operator's eye, in any goroutine. A panic in it is dropped.
type LogFunc func(level LogLevel, text string)

// ReadFunc fills out with bytes of one expert's tensor, from offset on. It is called from several
// goroutines at once where the pool has a host tier, may block for I/O, and must not keep out. An
// error or a panic fails the load with ErrCallback, and is the Cause of that error.
type ReadFunc func(layer, expert, tensor int, offset int64, out []byte) error

// ProgressFunc is told of the work done so far and in all. An error or a panic ends the call with
// ErrCallback, and is the Cause of that error.
type ProgressFunc func(done, total uint64) error

// MomentsFunc gives the second moments of what one matrix of an expert is multiplied with, the sum of
// x x' over inputs x, in out, columns times columns zeros of which the upper triangle counts: integer forms
// are then rounded for these inputs (GPTQ). Tensor indexes Model.LayerTensors, which says where slot, the
// expert's bytes, has what. It is called from several goroutines at once, must not keep slot or out, and must
// not call the library. An error or a panic ends the call with ErrCallback, and is the Cause of that error.
type MomentsFunc func(layer, expert, tensor int, slot []byte, columns int, out []float32) error

// errExited is a callback that called runtime.Goexit, as testing.T.FailNow does.
var errExited = errors.New("the callback did not return: it exited its goroutine")

// PanicError is a panic that a callback ended in.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// guarded calls back and turns what must not unwind the library's frames, a panic or the end of the
// goroutine, into an error. The latter nothing stops: it is given a goroutine of its own to end.
func guarded(function func() error) error {
	outcome := make(chan error, 1)
	go func() {
		err := errExited
		defer func() {
			if value := recover(); value != nil {
				err = &PanicError{Value: value, Stack: debug.Stack()}
			}
			outcome <- err
		}()
		err = function()
	}()
	return <-outcome
}

// A box is C memory that holds the handle of a Go value: what the library keeps as `user`.
func newBox(value any) unsafe.Pointer {
	box := C.malloc(C.size_t(unsafe.Sizeof(cgo.Handle(0))))
	*(*cgo.Handle)(box) = cgo.NewHandle(value)
	return box
}

func unbox[T any](box unsafe.Pointer) T { return (*(*cgo.Handle)(box)).Value().(T) }

func freeBox(box unsafe.Pointer) {
	if box != nil {
		(*(*cgo.Handle)(box)).Delete()
		C.free(box)
	}
}

// logBox is what a config needs for `log`: nil and nil for none.
func logBox(log LogFunc) (C.moepage_log_fn, unsafe.Pointer) {
	if log == nil {
		return nil, nil
	}
	return C.moepage_log_fn(C.moepageGoLog), newBox(log)
}

//export moepageGoLog
func moepageGoLog(user unsafe.Pointer, level C.int32_t, text *C.char) {
	log := unbox[LogFunc](user)
	_ = guarded(func() error {
		log(LogLevel(level), C.GoString(text))
		return nil
	})
}

// reader is a ReadFunc and its last failure.
type reader struct {
	read ReadFunc
	mu   sync.Mutex
	last error
}

//export moepageGoRead
func moepageGoRead(user unsafe.Pointer, layer, expert, tensor C.uint32_t, offset, bytes C.uint64_t,
	out unsafe.Pointer) C.int32_t {
	r := unbox[*reader](user)
	return r.outcome(guarded(func() error {
		return r.read(int(layer), int(expert), int(tensor), int64(offset),
			unsafe.Slice((*byte)(out), int(bytes)))
	}))
}

func (r *reader) outcome(err error) C.int32_t {
	if err == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = err
	return 1
}

// explain names the callback's own error as the cause of an ErrCallback.
func (r *reader) explain(err error) error {
	failure, ok := err.(*Error)
	if r != nil && ok && failure.Status == ErrCallback {
		r.mu.Lock()
		defer r.mu.Unlock()
		failure.Cause = r.last
	}
	return err
}

// progress is a ProgressFunc and what it ended the call with.
type progress struct {
	tell ProgressFunc
	last error
}

//export moepageGoProgress
func moepageGoProgress(user unsafe.Pointer, done, total C.uint64_t) C.int32_t {
	p := unbox[*progress](user)
	p.last = guarded(func() error { return p.tell(uint64(done), uint64(total)) })
	if p.last != nil {
		return 1
	}
	return 0
}

// gathering is a MomentsFunc, the bytes of each layer's slots, and its last failure.
type gathering struct {
	model  *Model
	gather MomentsFunc
	ends   []uint64
	mu     sync.Mutex
	last   error
}

// measure finds where the last tensor of each layer's experts ends.
func (g *gathering) measure() error {
	info, err := g.model.Info()
	for layer := 0; err == nil && layer < int(info.MoELayers); layer++ {
		var tensors []ExpertTensor
		tensors, err = g.model.LayerTensors(layer)
		end := uint64(0)
		for _, tensor := range tensors {
			if tensor.Offset+tensor.Bytes > end {
				end = tensor.Offset + tensor.Bytes
			}
		}
		g.ends = append(g.ends, end)
	}
	return err
}

//export moepageGoMoments
func moepageGoMoments(user unsafe.Pointer, layer, expert, tensor C.uint32_t, slot unsafe.Pointer,
	columns C.uint64_t, out *C.float) C.int32_t {
	g := unbox[*gathering](user)
	err := guarded(func() error {
		return g.gather(int(layer), int(expert), int(tensor),
			unsafe.Slice((*byte)(slot), int(g.ends[layer])), int(columns),
			unsafe.Slice((*float32)(unsafe.Pointer(out)), int(columns*columns)))
	})
	if err == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = err
	return 1
}

var (
	goMoments  = C.moepage_moments_fn(C.moepageGoMoments)
	goRead     = C.moepage_read_fn(C.moepageGoRead)
	goProgress = C.moepage_progress_fn(C.moepageGoProgress)
)
