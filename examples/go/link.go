//go:build !pkgconfig

package moepage

// The library of the tree that this module lies in. CGO_CFLAGS and CGO_LDFLAGS come first and so can
// name another; with the build tag pkgconfig it is an installed one.

// #cgo CFLAGS: -I${SRCDIR}/../../include
// #cgo LDFLAGS: -L${SRCDIR}/../../lib -lmoepage -Wl,-rpath,${SRCDIR}/../../lib
import "C"
