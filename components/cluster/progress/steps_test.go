package progress

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"hyperkube/components/cluster/command"
)

func TestSendAndReceiveSteps(t *testing.T) {
	var out bytes.Buffer
	r, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, `{"text":"etcd is ready","took":1000000}`+"\n"+`{"error":"no luck","code":2}`+"\n")
		w.Close()
	}()
	err := receiveSteps(r, Print(&out))
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != command.ExitPreflight || err.Error() != "no luck" {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "etcd is ready") {
		t.Errorf("printed %q", out.String())
	}
	if err := receiveSteps(strings.NewReader(""), Print(&out)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("no steps: %v", err)
	}
}
