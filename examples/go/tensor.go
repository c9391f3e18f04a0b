package moepage

// #include "moepage.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// DType is a type of a tensor's elements.
type DType uint32

const (
	DTypeNone          DType = C.MOEPAGE_DTYPE_NONE
	DTypeF32           DType = C.MOEPAGE_DTYPE_F32
	DTypeF16           DType = C.MOEPAGE_DTYPE_F16
	DTypeBF16          DType = C.MOEPAGE_DTYPE_BF16
	DTypeF8E4M3        DType = C.MOEPAGE_DTYPE_F8_E4M3
	DTypeF8E5M2        DType = C.MOEPAGE_DTYPE_F8_E5M2
	DTypeF8E8M0        DType = C.MOEPAGE_DTYPE_F8_E8M0
	DTypeU8            DType = C.MOEPAGE_DTYPE_U8
	DTypeI8            DType = C.MOEPAGE_DTYPE_I8
	DTypeI32           DType = C.MOEPAGE_DTYPE_I32
	DTypeI64           DType = C.MOEPAGE_DTYPE_I64
	DTypeInt8          DType = C.MOEPAGE_DTYPE_INT8
	DTypeInt4          DType = C.MOEPAGE_DTYPE_INT4
	DTypeInt2          DType = C.MOEPAGE_DTYPE_INT2
	DTypeQ4_0          DType = C.MOEPAGE_DTYPE_Q4_0
	DTypeQ4_1          DType = C.MOEPAGE_DTYPE_Q4_1
	DTypeQ5_0          DType = C.MOEPAGE_DTYPE_Q5_0
	DTypeQ5_1          DType = C.MOEPAGE_DTYPE_Q5_1
	DTypeQ8_0          DType = C.MOEPAGE_DTYPE_Q8_0
	DTypeQ2_K          DType = C.MOEPAGE_DTYPE_Q2_K
	DTypeQ3_K          DType = C.MOEPAGE_DTYPE_Q3_K
	DTypeQ4_K          DType = C.MOEPAGE_DTYPE_Q4_K
	DTypeQ5_K          DType = C.MOEPAGE_DTYPE_Q5_K
	DTypeQ6_K          DType = C.MOEPAGE_DTYPE_Q6_K
	DTypeIQ4_NL        DType = C.MOEPAGE_DTYPE_IQ4_NL
	DTypeIQ4_XS        DType = C.MOEPAGE_DTYPE_IQ4_XS
	DTypeMXFP4         DType = C.MOEPAGE_DTYPE_MXFP4
	DTypeNVFP4         DType = C.MOEPAGE_DTYPE_NVFP4
	DTypeW4G32_F16     DType = C.MOEPAGE_DTYPE_W4G32_F16
	DTypeW4G64_F16     DType = C.MOEPAGE_DTYPE_W4G64_F16
	DTypeW4G128_F16    DType = C.MOEPAGE_DTYPE_W4G128_F16
	DTypeW4G32_BF16    DType = C.MOEPAGE_DTYPE_W4G32_BF16
	DTypeW4G64_BF16    DType = C.MOEPAGE_DTYPE_W4G64_BF16
	DTypeW4G128_BF16   DType = C.MOEPAGE_DTYPE_W4G128_BF16
	DTypeNVFP4G64_F32  DType = C.MOEPAGE_DTYPE_NVFP4G64_F32
	DTypeNVFP4G128_F32 DType = C.MOEPAGE_DTYPE_NVFP4G128_F32
	DTypeNVFP4G256_F32 DType = C.MOEPAGE_DTYPE_NVFP4G256_F32
)

var dtypeNames = [...]string{"none", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0", "u8",
	"i8", "i32", "i64", "int8", "int4", "int2"}

// block is a block format, of GGUF files or of W4A16 weights: so many weights in so many bytes.
type block struct {
	name           string
	weights, bytes int
}

var blocks = map[DType]block{
	DTypeQ4_0:          {"Q4_0", 32, 18},
	DTypeQ4_1:          {"Q4_1", 32, 20},
	DTypeQ5_0:          {"Q5_0", 32, 22},
	DTypeQ5_1:          {"Q5_1", 32, 24},
	DTypeQ8_0:          {"Q8_0", 32, 34},
	DTypeQ2_K:          {"Q2_K", 256, 84},
	DTypeQ3_K:          {"Q3_K", 256, 110},
	DTypeQ4_K:          {"Q4_K", 256, 144},
	DTypeQ5_K:          {"Q5_K", 256, 176},
	DTypeQ6_K:          {"Q6_K", 256, 210},
	DTypeIQ4_NL:        {"IQ4_NL", 32, 18},
	DTypeIQ4_XS:        {"IQ4_XS", 256, 136},
	DTypeMXFP4:         {"MXFP4", 32, 17},
	DTypeNVFP4:         {"NVFP4", 64, 36},
	DTypeW4G32_F16:     {"W4G32_F16", 32, 20},
	DTypeW4G64_F16:     {"W4G64_F16", 64, 36},
	DTypeW4G128_F16:    {"W4G128_F16", 128, 68},
	DTypeW4G32_BF16:    {"W4G32_BF16", 32, 20},
	DTypeW4G64_BF16:    {"W4G64_BF16", 64, 36},
	DTypeW4G128_BF16:   {"W4G128_BF16", 128, 68},
	DTypeNVFP4G64_F32:  {"NVFP4G64_F32", 64, 40},
	DTypeNVFP4G128_F32: {"NVFP4G128_F32", 128, 76},
	DTypeNVFP4G256_F32: {"NVFP4G256_F32", 256, 148},
}

func (d DType) String() string {
	if int(d) < len(dtypeNames) {
		return dtypeNames[d]
	}
	if b, ok := blocks[d]; ok {
		return b.name
	}
	return fmt.Sprintf("dtype(%d)", uint32(d))
}

// Size is the bytes of an element; 0 for what is packed or in blocks.
func (d DType) Size() int {
	switch d {
	case DTypeF32, DTypeI32:
		return 4
	case DTypeF16, DTypeBF16:
		return 2
	case DTypeI64:
		return 8
	case DTypeF8E4M3, DTypeF8E5M2, DTypeF8E8M0, DTypeU8, DTypeI8:
		return 1
	}
	return 0
}

// Block is how many weights a block of d has, and how many bytes; 0 and 0 for what is not in blocks.
// Blocks lie along a tensor's last dimension.
func (d DType) Block() (weights, bytes int) {
	b := blocks[d]
	return b.weights, b.bytes
}

// Role is what an expert's tensor is for.
type Role uint32

const (
	RoleNone        Role = C.MOEPAGE_ROLE_NONE
	RoleGateUp      Role = C.MOEPAGE_ROLE_GATE_UP
	RoleGate        Role = C.MOEPAGE_ROLE_GATE
	RoleUp          Role = C.MOEPAGE_ROLE_UP
	RoleDown        Role = C.MOEPAGE_ROLE_DOWN
	RoleGateUpScale Role = C.MOEPAGE_ROLE_GATE_UP_SCALE
	RoleGateScale   Role = C.MOEPAGE_ROLE_GATE_SCALE
	RoleUpScale     Role = C.MOEPAGE_ROLE_UP_SCALE
	RoleDownScale   Role = C.MOEPAGE_ROLE_DOWN_SCALE
	RoleGateUpBias  Role = C.MOEPAGE_ROLE_GATE_UP_BIAS
	RoleGateBias    Role = C.MOEPAGE_ROLE_GATE_BIAS
	RoleUpBias      Role = C.MOEPAGE_ROLE_UP_BIAS
	RoleDownBias    Role = C.MOEPAGE_ROLE_DOWN_BIAS
)

// Activation is what an expert computes of its gate and up projections.
type Activation uint32

const (
	ActivationSwiGLU        Activation = C.MOEPAGE_ACTIVATION_SWIGLU
	ActivationSwiGLUClamped Activation = C.MOEPAGE_ACTIVATION_SWIGLU_CLAMPED // gpt-oss's
	ActivationOther         Activation = C.MOEPAGE_ACTIVATION_OTHER          // none that the library computes
)

const (
	MaxExpertTensors = C.MOEPAGE_MAX_EXPERT_TENSORS
	MaxRank          = C.MOEPAGE_MAX_RANK
	MaxDevices       = C.MOEPAGE_MAX_DEVICES
)

// Array is numbers of one DType in a row: a Go slice, or memory of a device. It is not copied.
type Array struct {
	dtype  DType
	data   unsafe.Pointer
	n      int
	device bool
}

// Float32s is x as an Array.
func Float32s(x []float32) Array {
	return Array{dtype: DTypeF32, data: unsafe.Pointer(first(x)), n: len(x)}
}

// Float16s is IEEE half-precision numbers, given by their bits, as an Array.
func Float16s(x []uint16) Array {
	return Array{dtype: DTypeF16, data: unsafe.Pointer(first(x)), n: len(x)}
}

// BFloat16s is bfloat16 numbers, given by their bits, as an Array.
func BFloat16s(x []uint16) Array {
	return Array{dtype: DTypeBF16, data: unsafe.Pointer(first(x)), n: len(x)}
}

// Float8E4M3s is numbers of eight bits, the variant of E4M3 without infinities, as an Array.
func Float8E4M3s(x []byte) Array {
	return Array{dtype: DTypeF8E4M3, data: unsafe.Pointer(first(x)), n: len(x)}
}

// DeviceArray is n elements in the memory of the device that they are used with: on CUDA the only
// kind there is. That the memory is there, and long enough, is the caller's word.
func DeviceArray(dtype DType, data unsafe.Pointer, n int) Array {
	return Array{dtype: dtype, data: data, n: n, device: true}
}

// Tensor is a tensor of a model's checkpoint that is never paged.
type Tensor struct {
	DType DType
	Shape []int
	data  []byte
	model *Model
}

// Bytes is the tensor in the model's own memory, not to be written. It may be used until the model
// is closed; a program that keeps the slice alone has to keep the model too.
func (t *Tensor) Bytes() ([]byte, error) {
	if err := t.model.enter(); err != nil {
		return nil, err
	}
	defer t.model.leave()
	return t.data, nil
}

// Float32s is a copy of a tensor of F32, F16, BF16 or a block format.
func (t *Tensor) Float32s() ([]float32, error) {
	if err := t.model.enter(); err != nil {
		return nil, err
	}
	defer t.model.leave()
	return widen(t.DType, t.data)
}

func widen(dtype DType, data []byte) ([]float32, error) {
	if _, ok := blocks[dtype]; ok {
		return BlocksDecode(dtype, data)
	}
	if dtype != DTypeF32 && dtype != DTypeF16 && dtype != DTypeBF16 {
		return nil, refuse("float32s", ErrUnsupported,
			"a tensor of %v; f32, f16, bf16 and block formats can be widened", dtype)
	}
	out := make([]float32, len(data)/dtype.Size())
	for i := range out {
		switch dtype {
		case DTypeF32:
			out[i] = math.Float32frombits(uint32(data[4*i]) | uint32(data[4*i+1])<<8 |
				uint32(data[4*i+2])<<16 | uint32(data[4*i+3])<<24)
		case DTypeBF16:
			out[i] = math.Float32frombits(uint32(data[2*i])<<16 | uint32(data[2*i+1])<<24)
		default:
			out[i] = halfToFloat32(uint16(data[2*i]) | uint16(data[2*i+1])<<8)
		}
	}
	return out, nil
}

func halfToFloat32(half uint16) float32 {
	sign := uint32(half&0x8000) << 16
	exponent, fraction := uint32(half>>10)&31, uint32(half)&0x3ff
	switch exponent {
	case 0:
		value := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(value) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
