//go:build pkgconfig

package moepage

// #cgo pkg-config: moepage
import "C"
