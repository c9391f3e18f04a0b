// Package moepage pages Mixture-of-Experts inference: it is libmoepage for Go.
//
// Two working sets, the routed expert weights and the KV cache, share one byte budget on a device
// whose memory cannot hold them. The program steps the model itself and asks, layer by layer, for
// what the routed experts compute:
//
//	engine, err := moepage.OpenEngine("model-directory", "budget=8G", moepage.EngineConfig{})
//
//	session := engine.Session
//	err = session.Begin(moepage.Step{Tokens: n})
//	for layer := range layers {
//		err = session.Route(layer, moepage.Routing{IDs: ids, Weights: weights})
//		err = session.FFN(layer, moepage.FFN{X: moepage.Float32s(x), Y: moepage.Float32s(y)})
//		err = session.Retire(layer)
//	}
//	stats, err := session.End()
//
// An engine is a device, a model, an expert pool, a session, and perhaps a KV pool and a predictor,
// opened together; they may as well be opened one by one, by [OpenDevice], [OpenModel],
// [NewExpertPool] and [NewSession].
//
// moepage.h, whose functions and structs the methods and configs here mirror name by name, is the
// reference for what each of them means. What follows is what Go adds.
//
// # Errors
//
// What the library or this package refuses is an *[Error] with the library's status and one sentence:
// errors.Is(err, [ErrBudget]) asks for the status. [ErrClosed] and [ErrConcurrent] are this package's
// own. Zero in a field of a config means the default.
//
// # Lifetimes
//
// Every object has Close, which is to be called, children first; an engine's parts go with it. Closing what others still use is
// ErrBusy and changes nothing. Closing twice, and using what is closed or a zero value, is ErrClosed. An object that
// was dropped without Close is closed when the garbage collector finds it. Children keep their parents
// from that; so does a callback that refers to the object that it was given to. Slices over the
// library's memory say how long they may be used.
//
// # Goroutines
//
// Devices, models, pools and predictors may be shared. A session, a sequence, a trace, a paged tensor
// and the ticks of a controller belong to one goroutine at a time; a second one meanwhile gets
// ErrConcurrent. Pools and sessions are created and closed while no step is open on their devices:
// ErrBusy otherwise. Close waits for calls that other goroutines have under way. Callbacks run in
// goroutines of their own, and must not call into this package.
package moepage

//go:generate go run ./internal/gen .
