// Package abi shows what cgo makes of the C headers, so that its tests can compare it with the
// library's own listing of its ABI, lib/abi.
package abi
