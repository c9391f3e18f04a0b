package moepage

/*
#include "moepage.h"

// Arrays come by themselves, and as characters: see session.go.
static moepage_status linear(moepage_device *device, moepage_linear linear, const char *x,
                             const char *w, const char *bias, const char *scales, float *out)
{
    linear.struct_size = sizeof linear;
    linear.x = x;
    linear.w = w;
    linear.bias = bias;
    linear.scales = scales;
    linear.out = out;
    return moepage_device_linear(device, &linear);
}
*/
import "C"

import (
	"sync"
	"unsafe"
)

// DeviceConfig is how a device is opened. BudgetBytes is required.
type DeviceConfig struct {
	Threads        uint32
	BudgetBytes    uint64
	WorkspaceBytes uint64
	BusBytesPerS   uint64
	IOThreads      uint32
	Ranges         bool
	Log            LogFunc
	MaxBudgetBytes uint64 // SetBudget raises the budget up to this; 0 = BudgetBytes
	ReserveBytes   uint64 // that FollowMemory leaves to others; 0 = a sixteenth of MaxBudgetBytes
}

// BudgetAuto, as DeviceConfig.BudgetBytes and EngineConfig.BudgetBytes, is what FollowMemory would set.
const BudgetAuto uint64 = C.MOEPAGE_BUDGET_AUTO

// Device is memory under a byte budget, and what computes there.
type Device struct {
	object
	c     *C.moepage_device
	box   unsafe.Pointer // of the log
	host  bool           // its memory is the program's own
	steps sync.RWMutex   // held shared by every open step
	// Held alone by what moves blocks of the KV pool on it; taken after `life`.
	tables sync.RWMutex
}

// c is the config for the library; the log's box is to be freed.
func (config *DeviceConfig) c() C.moepage_device_config {
	c := C.moepage_device_config{
		struct_size:     C.sizeof_moepage_device_config,
		threads:         C.uint32_t(config.Threads),
		budget_bytes:    C.uint64_t(config.BudgetBytes),
		workspace_bytes: C.uint64_t(config.WorkspaceBytes),
		bus_bytes_per_s: C.uint64_t(config.BusBytesPerS),
		io_threads:      C.uint32_t(config.IOThreads),
		ranges:          flag(config.Ranges),

		max_budget_bytes: C.uint64_t(config.MaxBudgetBytes),
		reserve_bytes:    C.uint64_t(config.ReserveBytes),
	}
	c.log, c.log_user = logBox(config.Log)
	return c
}

// OpenDevice opens "host" or "cuda:N".
func OpenDevice(name string, config DeviceConfig) (*Device, error) {
	if err := whole("open device", name); err != nil {
		return nil, err
	}
	c := config.c()
	text := C.CString(name)
	defer free(text)
	d := &Device{box: c.log_user}
	err := call("open device", func() C.moepage_status { return C.moepage_device_open(text, &c, &d.c) })
	if err != nil {
		freeBox(d.box)
		return nil, err
	}
	born(d)
	return opened(d, d.learn())
}

// learn asks for what never changes.
func (d *Device) learn() error {
	info, err := d.Info()
	d.host = info.Name == "host"
	return err
}

// Close is ErrBusy while a pool or a PagedTensor lives on the device.
func (d *Device) Close() error {
	return whileIdle("close device", []*Device{d}, func() error {
		err := d.shut("close device", func() C.moepage_status { return C.moepage_device_close(d.c) })
		if err == nil {
			freeBox(d.box)
		}
		return err
	})
}

// Info is what the device is, and what it holds now.
func (d *Device) Info() (DeviceInfo, error) {
	c := C.moepage_device_info{struct_size: C.sizeof_moepage_device_info}
	return fetch(&d.object, "device info", &c, func() C.moepage_status {
		return C.moepage_device_get_info(d.c, &c)
	}, newDeviceInfo)
}

// SetBudget moves the device's budget while its pools serve. ErrBusy while something in use is in the way of a
// smaller one, which is then the aim (DeviceInfo.BudgetAimBytes): the same call, between steps, goes on.
func (d *Device) SetBudget(bytes uint64, stream Stream) error {
	return d.movingBudget("set budget", func() C.moepage_status {
		return C.moepage_device_set_budget(d.c, C.uint64_t(bytes), unsafe.Pointer(stream))
	})
}

// FollowMemory sets the budget that leaves ReserveBytes of free memory to others; to be called now and then,
// between steps. Errors are SetBudget's.
func (d *Device) FollowMemory(stream Stream) error {
	return d.movingBudget("follow memory", func() C.moepage_status {
		return C.moepage_device_follow_memory(d.c, unsafe.Pointer(stream))
	})
}

func (d *Device) movingBudget(op string, move func() C.moepage_status) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	split.Lock()
	defer split.Unlock()
	d.tables.Lock()
	defer d.tables.Unlock()
	return call(op, move)
}

// Linear is a dense product: Out[r] = W X[r] + Bias, of rows of In elements, with W [n_out][In] and Out
// [rows][n_out].
type Linear struct {
	Math Math
	In   int
	X    Array // float32 or bfloat16
	W    Array // float32, float16, bfloat16, or E4M3 with Scales
	Bias Array // [n_out], or none
	Out  []float32
	// Of W in E4M3: float32 or bfloat16, one for each block of BlockRows and BlockColumns.
	Scales                  Array
	BlockRows, BlockColumns int
}

// shape is the rows and n_out, where all arrays have the elements of one.
func (l *Linear) shape() (rows, out int, err error) {
	const op = "linear"
	if l.In <= 0 || l.X.n < l.In || l.X.n%l.In != 0 {
		return 0, 0, refuse(op, ErrArgument, "X has %d elements, no rows of %d", l.X.n, l.In)
	}
	rows = l.X.n / l.In
	if len(l.Out) == 0 || len(l.Out)%rows != 0 {
		return 0, 0, refuse(op, ErrArgument, "Out has %d elements, X has %d rows", len(l.Out), rows)
	}
	out = len(l.Out) / rows
	if l.W.n/l.In != out || l.W.n%l.In != 0 || (l.Bias.n != 0 && l.Bias.n != out) {
		return 0, 0, refuse(op, ErrArgument, "W has %d and Bias %d elements, those of %d rows of %d are needed",
			l.W.n, l.Bias.n, out, l.In)
	}
	if l.Scales.n == 0 {
		return rows, out, nil
	}
	if l.BlockRows <= 0 || l.BlockColumns <= 0 ||
		l.Scales.n != ((out-1)/l.BlockRows+1)*((l.In-1)/l.BlockColumns+1) {
		return 0, 0, refuse(op, ErrArgument, "Scales has %d elements, those of blocks of %d by %d are needed",
			l.Scales.n, l.BlockRows, l.BlockColumns)
	}
	return rows, out, nil
}

// Linear multiplies on a host device. The bits of a row depend on it and the weights alone.
func (d *Device) Linear(l Linear) error {
	rows, out, err := l.shape()
	if err != nil {
		return err
	}
	c := C.moepage_linear{math: C.uint32_t(l.Math), n_rows: u32(rows), n_in: u32(l.In), n_out: u32(out),
		x_dtype: C.uint32_t(l.X.dtype), w_dtype: C.uint32_t(l.W.dtype), bias_dtype: C.uint32_t(l.Bias.dtype),
		scale_dtype: C.uint32_t(l.Scales.dtype), block_rows: u32(l.BlockRows), block_columns: u32(l.BlockColumns)}
	return d.any("linear", func() C.moepage_status {
		return C.linear(d.c, c, (*C.char)(l.X.data), (*C.char)(l.W.data), (*C.char)(l.Bias.data),
			(*C.char)(l.Scales.data), (*C.float)(first(l.Out)))
	})
}
