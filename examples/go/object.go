package moepage

// #include "moepage.h"
import "C"

import (
	"errors"
	"runtime"
	"sync"
)

// object is what every object of the library has in common on the Go side: it is open or closed, and
// calls come in two classes, from any goroutine and from one at a time. Those of the second class
// hold `alone`; all of them hold `life` shared, and Close holds it alone, so that no handle is freed
// under a call.
//
// Holding a lock inside the object also keeps the object from its finaliser until the call is over.
type object struct {
	alone sync.Mutex
	life  sync.RWMutex
	open  bool // not of the zero value, whose handle the library could take for "none"
	// Of an object that is an engine's: closing it is the engine's affair, which lives as long as any.
	lender *lender
}

func (o *object) enter() error {
	o.life.RLock()
	if !o.open {
		o.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (o *object) leave() {
	o.life.RUnlock()
	runtime.KeepAlive(o)
}

func (o *object) enterAlone() error {
	if !o.alone.TryLock() {
		return ErrConcurrent
	}
	err := o.enter()
	if err != nil {
		o.alone.Unlock()
	}
	return err
}

func (o *object) leaveAlone() {
	o.leave()
	o.alone.Unlock()
}

// shut closes the object by `destroy`, after which it is closed if that succeeded.
func (o *object) shut(op string, destroy func() C.moepage_status) error {
	if !o.alone.TryLock() {
		return ErrConcurrent
	}
	defer o.alone.Unlock()
	o.life.Lock()
	defer o.life.Unlock()
	if !o.open {
		return ErrClosed
	}
	if o.lender != nil {
		return refuse(op, ErrState, "the object is an engine's: close the engine")
	}
	err := call(op, destroy)
	o.open = err != nil
	return err
}

// any calls `function` while the object cannot be closed.
func (o *object) any(op string, function func() C.moepage_status) error {
	if err := o.enter(); err != nil {
		return err
	}
	defer o.leave()
	return call(op, function)
}

// one is the same for calls of one goroutine at a time.
func (o *object) one(op string, function func() C.moepage_status) error {
	if err := o.enterAlone(); err != nil {
		return err
	}
	defer o.leaveAlone()
	return call(op, function)
}

// fetch has the library fill in the struct at c, and returns the Go copy of it.
func fetch[S, G any](o *object, op string, c *S, get func() C.moepage_status,
	convert func(*S) G) (filled G, err error) {
	err = o.any(op, func() C.moepage_status {
		status := get()
		if status == C.MOEPAGE_OK {
			filled = convert(c)
		}
		return status
	})
	return filled, err
}

// enterAll enters all objects or none.
func enterAll(objects ...*object) error {
	for i, o := range objects {
		if err := o.enter(); err != nil {
			leaveAll(objects[:i]...)
			return err
		}
	}
	return nil
}

func leaveAll(objects ...*object) {
	for _, o := range objects {
		o.leave()
	}
}

// setUp is held by what creates and destroys pools, sessions and controllers: the library wants that
// from one thread at a time.
var setUp sync.Mutex

// whileIdle runs set-up work on devices that no session has a step open on.
func whileIdle(op string, devices []*Device, work func() error) error {
	setUp.Lock()
	defer setUp.Unlock()
	for i, d := range devices {
		if d == nil {
			return ErrClosed // the parent of what was never opened
		}
		if !d.steps.TryLock() {
			return refuse(op, ErrBusy, "a step is open on a session of device %d: end it first", i)
		}
		defer d.steps.Unlock()
	}
	return work()
}

func (o *object) base() *object { return o }

type closer interface {
	Close() error
	base() *object
}

// opened closes an object again of which not everything could be learnt.
func opened[T closer](o T, err error) (T, error) {
	if err != nil {
		_ = o.Close()
		var none T
		return none, err
	}
	return o, nil
}

// born makes an object of the library's usable, and has the garbage collector close it when the program
// no longer reaches it.
func born[T closer](o T) {
	o.base().open = true
	closeWhenDropped(o)
}

// closeWhenDropped has the garbage collector close what the program no longer reaches. An object
// that is busy then, as with a step that is open on another session of its device, waits for the
// next collection.
func closeWhenDropped[T closer](o T) {
	runtime.SetFinalizer(o, func(o T) {
		if err := o.Close(); errors.Is(err, ErrBusy) {
			closeWhenDropped(o)
		}
	})
}
