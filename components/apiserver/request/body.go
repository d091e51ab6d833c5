package request

import (
	"bytes"
	"io"
	"net/http"
)

// Body is a request body whose beginning, or all of it, has been read into memory. It replaces
// http.Request.Body, so that handlers read it as usual.
type Body struct {
	// Data is the complete body, or its first bytes.
	Data []byte
	// Err is the error that ended reading. It is nil if the body is complete.
	Err error

	buffered io.Reader
	rest     io.Closer
}

// ReadBody reads the body of req into memory and replaces it by a Body. It stops at the end of the body, at an error,
// which it keeps in Body.Err, or after limit plus one bytes; the Body then continues to read from the connection.
// ReadBody calls grow with the total number of bytes before it allocates more memory. It returns only the error of
// grow.
func ReadBody(req *http.Request, limit int64, grow func(int) error) error {
	const first = 16 << 10
	size := req.ContentLength // negative if unknown
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
	b.buffered = bytes.NewReader(b.Data)
	if after != nil {
		b.buffered = io.MultiReader(b.buffered, after)
	}
	req.Body = b
	return nil
}

// Read implements io.Reader. After the data it returns the error that occurred when the body was
// read, if any.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.buffered.Read(p)
	if err == io.EOF && b.Err != nil {
		err = b.Err
	}
	return n, err
}

// Close closes the client's request body. The data that was read remains available.
func (b *Body) Close() error { return b.rest.Close() }
