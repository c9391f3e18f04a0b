package moepage

// #include "moepage.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
)

// Status is what kind of failure an error is: errors.Is(err, ErrBusy). docs/errors.md says for each
// what can be done about it.
type Status int32

const (
	ErrArgument    Status = C.MOEPAGE_E_ARGUMENT
	ErrState       Status = C.MOEPAGE_E_STATE
	ErrHandle      Status = C.MOEPAGE_E_HANDLE
	ErrBusy        Status = C.MOEPAGE_E_BUSY
	ErrNoMemory    Status = C.MOEPAGE_E_NO_MEMORY
	ErrBudget      Status = C.MOEPAGE_E_BUDGET
	ErrWouldNotFit Status = C.MOEPAGE_E_WOULD_NOT_FIT
	ErrNotFound    Status = C.MOEPAGE_E_NOT_FOUND
	ErrIO          Status = C.MOEPAGE_E_IO
	ErrFormat      Status = C.MOEPAGE_E_FORMAT
	ErrUnsupported Status = C.MOEPAGE_E_UNSUPPORTED
	ErrVersion     Status = C.MOEPAGE_E_VERSION
	ErrCallback    Status = C.MOEPAGE_E_CALLBACK
	ErrDevice      Status = C.MOEPAGE_E_DEVICE
	ErrEnd         Status = C.MOEPAGE_E_END // never returned: Trace.Next says io.EOF
)

// Error is the library's short text for the status.
func (s Status) Error() string {
	return C.GoString(C.moepage_status_text(C.moepage_status(s)))
}

// ErrClosed is what an object that has been closed, or is a zero value, returns, from Close too.
var ErrClosed = errors.New("moepage: the object is closed")

// ErrConcurrent is what an object for one goroutine at a time returns to a second one.
var ErrConcurrent = errors.New("moepage: another goroutine is using the object")

// Error is a call that was refused or failed. Except where a method says otherwise nothing has
// changed.
type Error struct {
	Op     string // the method, in words
	Status Status
	Text   string // one sentence: what was wrong, and what would be right
	Cause  error  // of ErrCallback: what the callback returned, or a *PanicError
}

func (e *Error) Error() string {
	text := "moepage: " + e.Op + ": " + e.Text
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is makes errors.Is compare with a Status.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}

func (e *Error) Unwrap() error { return e.Cause }

// call runs one function of the library. Its last error is kept for each thread of the operating
// system, so the goroutine stays on one until it has read it.
func call(op string, function func() C.moepage_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := function()
	if status == C.MOEPAGE_OK {
		return nil
	}
	return &Error{Op: op, Status: Status(status), Text: C.GoString(C.moepage_last_error())}
}

// refuse is what this package finds wrong before the library is asked.
func refuse(op string, status Status, format string, values ...any) error {
	return &Error{Op: op, Status: status, Text: fmt.Sprintf(format, values...)}
}

// HeaderVersion is the version of moepage.h that the program was compiled with: 10000 times the
// major, 100 times the minor, and the patch version.
const HeaderVersion = C.MOEPAGE_VERSION

// Version is that of the library that is linked, counted likewise.
func Version() int { return int(C.moepage_version()) }

// VersionText is the same in words: "0.8.0".
func VersionText() string { return C.GoString(C.moepage_version_text()) }
