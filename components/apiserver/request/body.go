package request

import (
	"bytes"
	"io"
	"net/http"
)

// Body is one that has been read: what came of it, and what ended it.
type Body struct {
	// Data is all of the body, or its first bytes.
	Data []byte
	// Err is why there is no more; nil when the body ends there.
	Err error

	left io.Reader
	rest io.Closer
}

// ReadBody replaces the body of req by what it reads of it: all, or an error,
// or one byte more than limit, behind which the rest is still to be read. Grow
// is asked before more memory is used for it, in bytes, and may refuse.
func ReadBody(req *http.Request, limit int64, grow func(int) error) error {
	const first = 16 << 10
	size := req.ContentLength // below zero: not known
	room := int64(first)
	if size >= 0 && size <= 4*first {
		room = size
	}
	room = min(room, limit+1)
	if err := grow(int(room)); err != nil {
		return err
	}
	b := &Body{Data: make([]byte, 0, room), rest: req.Body}
	var after io.Reader
	for {
		if len(b.Data) == cap(b.Data) {
			if int64(len(b.Data)) == size {
				break
			}
			if int64(len(b.Data)) > limit {
				after = req.Body
				break
			}
			room = min(2*int64(cap(b.Data))+1, limit+1)
			if size >= 0 {
				room = min(room, size)
			}
			if err := grow(int(room)); err != nil {
				return err
			}
			b.Data = append(make([]byte, 0, room), b.Data...)
		}
		n, err := req.Body.Read(b.Data[len(b.Data):cap(b.Data)])
		b.Data = b.Data[:len(b.Data)+n]
		if err != nil {
			if err != io.EOF {
				b.Err = err
			} else if size >= 0 && int64(len(b.Data)) < size {
				b.Err = io.ErrUnexpectedEOF
			}
			break
		}
	}
	b.left = bytes.NewReader(b.Data)
	if after != nil {
		b.left = io.MultiReader(b.left, after)
	}
	req.Body = b
	return nil
}

// Read as io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.left.Read(p)
	if err == io.EOF && b.Err != nil {
		err = b.Err
	}
	return n, err
}

// Close as io.Closer.
func (b *Body) Close() error { return b.rest.Close() }
