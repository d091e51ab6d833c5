package request

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadBody(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		body  io.Reader
		size  int64 // Content-Length
		limit int64
		want  string // the data read ahead
		all   string // the data that can be read afterwards
		err   error
	}{
		"whole":          {strings.NewReader("hello"), 5, 10, "hello", "hello", nil},
		"of any length":  {strings.NewReader("hello"), -1, 10, "hello", "hello", nil},
		"byte by byte":   {iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 100_000))), -1, 1 << 20, strings.Repeat("x", 100_000), strings.Repeat("x", 100_000), nil},
		"large":          {iotest.HalfReader(strings.NewReader(strings.Repeat("x", 1<<20))), 1 << 20, 1 << 20, strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20), nil},
		"over the limit": {strings.NewReader("hello"), -1, 3, "hell", "hello", nil},
		"short":          {strings.NewReader("hel"), 5, 10, "hel", "hel", io.ErrUnexpectedEOF},
		"broken":         {io.MultiReader(strings.NewReader("he"), iotest.ErrReader(broken)), -1, 10, "he", "he", broken},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, "/", c.body)
			req.ContentLength = c.size
			held := 0
			if err := ReadBody(req, c.limit, func(n int) error { held = n; return nil }); err != nil {
				t.Fatal(err)
			}
			b := req.Body.(*Body)
			if string(b.Data) != c.want || cap(b.Data) > held || !errors.Is(b.Err, c.err) {
				t.Errorf("%d bytes of %d, %v", len(b.Data), held, b.Err)
			}
			all, err := io.ReadAll(req.Body)
			if !bytes.Equal(all, []byte(c.all)) || !errors.Is(err, c.err) {
				t.Errorf("afterwards %d bytes, %v", len(all), err)
			}
		})
	}
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 1<<20)))
	refused := errors.New("refused")
	if err := ReadBody(req, 1<<20, func(n int) error {
		if n > 100_000 {
			return refused
		}
		return nil
	}); !errors.Is(err, refused) {
		t.Errorf("range exceeded: %v", err)
	}
}
