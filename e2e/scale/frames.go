package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// frames reads the events of a protobuf watch.
type frames struct {
	r   *bufio.Reader
	buf []byte
}

// newFrames returns a reader of the events in the body of a watch response.
func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next event, without its length. It is valid until the next call. The error is io.EOF at the end of
// the watch.
func (f *frames) next() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > cap(f.buf) {
		f.buf = make([]byte, n)
	}
	f.buf = f.buf[:n]
	_, err := io.ReadFull(f.r, f.buf)
	return f.buf, err
}

// field returns the first field of a protobuf message with a number that is a string or a message. It returns nil if
// there is none.
func field(data []byte, number protowire.Number) ([]byte, error) {
	for len(data) > 0 {
		n, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		data = data[size:]
		if n == number && typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(data)
			return value, protowire.ParseError(min(size, 0))
		}
		if size = protowire.ConsumeFieldValue(n, typ, data); size < 0 {
			return nil, protowire.ParseError(size)
		}
		data = data[size:]
	}
	return nil, nil
}

// eventType returns the type of an event, for example ADDED, or "" if it is not valid.
func eventType(frame []byte) string {
	// An event has no envelope in upstream's framing.
	t, err := field(frame, 1)
	if err != nil {
		return ""
	}
	return string(t)
}

// continueOf returns the continue token of a protobuf list, "" for the last page.
func continueOf(data []byte) (string, error) {
	if len(data) < 4 || string(data[:4]) != "k8s\x00" {
		return "", errors.New("the list is not in protobuf format")
	}
	raw, err := field(data[4:], 2)
	if err != nil {
		return "", err
	}
	meta, err := field(raw, 1)
	if err != nil {
		return "", err
	}
	var list metav1.ListMeta
	if err := list.Unmarshal(meta); err != nil {
		return "", fmt.Errorf("decoding list metadata: %w", err)
	}
	return list.Continue, nil
}
