package moepage

// #include "moepage.h"
import "C"

import "unsafe"

// Sequence is the tokens of one sequence in a KV pool. Its calls are for one goroutine at a time. One
// that is dropped without Close is freed when the garbage collector finds it.
type Sequence struct {
	object
	pool *KVPool
	id   C.moepage_seq
}

// KVTable is a copy of a sequence's block table. What it names stays where it is until the sequence
// changes or, outside of steps, the pool is resized.
type KVTable struct {
	Blocks  []uint32 // nil while swapped out
	Tokens  uint64
	Swapped bool
}

// NewSequence makes an empty sequence; ErrWouldNotFit when as many as the pool can have are live.
func (p *KVPool) NewSequence() (*Sequence, error) {
	s := &Sequence{pool: p}
	err := p.any("create sequence", func() C.moepage_status { return C.moepage_kv_create(p.c, &s.id) })
	if err != nil {
		return nil, err
	}
	born(s)
	return s, nil
}

// Close frees the sequence, swapped or not.
func (s *Sequence) Close() error {
	if s.pool == nil {
		return ErrClosed
	}
	if err := s.pool.enter(); err != nil {
		return err
	}
	defer s.pool.leave()
	return s.shut("free sequence", func() C.moepage_status { return C.moepage_kv_free(s.pool.c, s.id) })
}

// do is a call of the pool that is for one goroutine at a time for each sequence.
func (s *Sequence) do(op string, function func() C.moepage_status) error {
	if err := s.enterAlone(); err != nil {
		return err
	}
	defer s.leaveAlone()
	return s.pool.any(op, function)
}

func (s *Sequence) count(op string, n int, function func(C.uint64_t) C.moepage_status) error {
	if n < 0 {
		return refuse(op, ErrArgument, "%d tokens: 0 or more are needed", n)
	}
	return s.do(op, func() C.moepage_status { return function(C.uint64_t(n)) })
}

// Append makes room for more tokens, all of them or none: ErrWouldNotFit.
func (s *Sequence) Append(tokens int, stream Stream) error {
	return s.count("append", tokens, func(n C.uint64_t) C.moepage_status {
		return C.moepage_kv_append(s.pool.c, s.id, n, unsafe.Pointer(stream))
	})
}

// Truncate drops tokens from the end, down to so many.
func (s *Sequence) Truncate(tokens int) error {
	return s.count("truncate", tokens, func(n C.uint64_t) C.moepage_status {
		return C.moepage_kv_truncate(s.pool.c, s.id, n)
	})
}

// Fork makes a second sequence of the same tokens; blocks are shared until one side writes.
func (s *Sequence) Fork() (*Sequence, error) {
	child := &Sequence{pool: s.pool}
	err := s.do("fork", func() C.moepage_status { return C.moepage_kv_fork(s.pool.c, s.id, &child.id) })
	if err != nil {
		return nil, err
	}
	born(child)
	return child, nil
}

// SwapOut copies the sequence's blocks to host memory and frees them on the device.
func (s *Sequence) SwapOut(stream Stream) error {
	return s.do("swap out", func() C.moepage_status {
		return C.moepage_kv_swap_out(s.pool.c, s.id, unsafe.Pointer(stream))
	})
}

// SwapIn brings it back; ErrWouldNotFit leaves it swapped and whole.
func (s *Sequence) SwapIn(stream Stream) error {
	return s.do("swap in", func() C.moepage_status {
		return C.moepage_kv_swap_in(s.pool.c, s.id, unsafe.Pointer(stream))
	})
}

// table reads the library's own table while it cannot change.
func (s *Sequence) table(op string, read func(*C.moepage_kv_table)) error {
	c := C.moepage_kv_table{struct_size: C.sizeof_moepage_kv_table}
	return s.do(op, func() C.moepage_status {
		s.pool.device.tables.RLock()
		defer s.pool.device.tables.RUnlock()
		status := C.moepage_kv_get_table(s.pool.c, s.id, &c)
		if status == C.MOEPAGE_OK {
			read(&c)
		}
		return status
	})
}

// Table is the sequence's blocks and tokens.
func (s *Sequence) Table() (table KVTable, err error) {
	err = s.table("block table", func(c *C.moepage_kv_table) {
		table = KVTable{copied[uint32](c.blocks, int(c.n_blocks)), uint64(c.n_tokens), c.swapped != 0}
	})
	return table, err
}

// Blocks is one layer's bytes of each of the sequence's blocks, on a host device. The slices may be
// used as long as a Table is valid; after that another sequence's tokens may lie there, and once the
// device is closed nothing does.
func (s *Sequence) Blocks(layer int) (blocks [][]byte, err error) {
	const op = "KV blocks"
	if s.pool == nil {
		return nil, ErrClosed
	}
	view, err := s.pool.Layer(layer)
	if err != nil {
		return nil, err
	}
	if !s.pool.device.host {
		return nil, refuse(op, ErrUnsupported, "the device's memory is not the program's: Layer has its addresses")
	}
	if view.Base == nil {
		return nil, refuse(op, ErrArgument, "layer %d keeps no KV", layer)
	}
	size, swapped := int(s.pool.perToken[layer])*s.pool.blockTokens, false
	err = s.table(op, func(c *C.moepage_kv_table) {
		if swapped = c.swapped != 0; swapped {
			return
		}
		for _, id := range unsafe.Slice(c.blocks, int(c.n_blocks)) {
			blocks = append(blocks, unsafe.Slice((*byte)(unsafe.Add(view.Base, view.Offset(uint32(id)))), size))
		}
	})
	if err == nil && swapped {
		err = refuse(op, ErrState, "the sequence is swapped out")
	}
	return blocks, err
}
