//go:build cgo

package runtime

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"
)

// TestLateCopies checks that output which is in the pipes when drain gives up waiting for their end reaches the client,
// although a background process keeps the pipes open and the copies begin only then.
func TestLateCopies(t *testing.T) {
	var stdout, stderr bytes.Buffer
	s, err := openExecStreams(execRequest{stdout: &stdout, stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, f := range []**os.File{&s.child.Stdout, &s.child.Stderr} {
		if _, err := io.WriteString(*f, "output"); err != nil {
			t.Fatal(err)
		}
		defer (*f).Close()
		*f = nil // start does not close the end of the background process
	}
	for _, f := range []*os.File{s.out, s.errs} {
		if err := f.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(nil)
	s.copies.Wait()
	if stdout.String() != "output" || stderr.String() != "output" {
		t.Errorf("got %q and %q", stdout.String(), stderr.String())
	}
}
