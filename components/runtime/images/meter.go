package images

import (
	"context"
	"io"
	"sync"
)

// Report receives how many bytes of the total of an image have been downloaded. Layers that the store already contains
// count as downloaded. Calls are not concurrent. It must not block.
type Report func(done, total int64)

// meter counts the downloaded bytes of one attempt to pull an image. It is safe for concurrent use.
type meter struct {
	report Report
	total  int64

	mu   sync.Mutex // guards done, and serializes the calls of report
	done int64
}

// add adds n downloaded bytes and reports them.
func (m *meter) add(n int64) {
	if n <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.report(m.done, m.total)
}

// wrap returns open with a result that counts what is read from it.
func (m *meter) wrap(open blob) blob {
	return func(ctx context.Context) (io.ReadCloser, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return &meteredBody{r, m}, nil
	}
}

// meteredBody adds what is read from it to a meter.
type meteredBody struct {
	io.ReadCloser
	meter *meter
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.meter.add(int64(n))
	return n, err
}
