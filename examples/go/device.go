package moepage

// #include "moepage.h"
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
}

// Device is memory under a byte budget, and what computes there.
type Device struct {
	object
	c     *C.moepage_device
	box   unsafe.Pointer // of the log
	host  bool           // its memory is the program's own
	steps sync.RWMutex   // held shared by every open step
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
