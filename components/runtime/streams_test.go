//go:build cgo

package runtime

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// endless is a reader without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestFeedEnds checks that a client can detach from a container that does not read its stdin.
func TestFeedEnds(t *testing.T) {
	for _, once := range []bool{false, true} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		live := &liveContainer{stdin: write}
		own, err := live.attachStdin()
		if err != nil {
			t.Fatal(err)
		}
		s := &streamRunner{background: newBackground()}
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.copyStdin(live, own, endless{}, &runtimeapi.ContainerConfig{Stdin: true, StdinOnce: once})
		}()
		// Data arrived, so the write is in progress.
		if _, err := read.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		live.detachStdin(own)
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Fatal("the input of a detached client is still copied")
		}
		if len(live.inputs) > 0 || (live.stdin == nil) != once {
			t.Errorf("once %v: %d inputs, stdin open %v", once, len(live.inputs), live.stdin != nil)
		}
		if !once {
			live.closeStdin()
		}
		if _, err := io.Copy(io.Discard, read); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseStdin checks that closing stdin affects all attached clients.
func TestCloseStdin(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	live := &liveContainer{stdin: write}
	own, err := live.attachStdin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.WriteString("last"); err != nil {
		t.Fatal(err)
	}
	live.closeStdin()
	live.detachStdin(own)
	if got, err := io.ReadAll(read); err != nil || !bytes.Equal(got, []byte("last")) {
		t.Errorf("%q, %v", got, err)
	}
	if again, err := live.attachStdin(); again != nil || err != nil {
		t.Errorf("%v, %v: an input that has ended is opened again", again, err)
	}
}

// TestNoStartInWhatIsStopped checks that no container can be started while its sandbox is being
// stopped.
func TestNoStartInWhatIsStopped(t *testing.T) {
	s := &sandboxState{id: "s", record: sandboxRecord{Phase: phaseRunning}}
	if !s.acceptsContainers() {
		t.Error("a sandbox that runs takes no containers")
	}
	c := &containerState{id: "c", sandbox: "s", record: containerRecord{Phase: phaseCreated}}
	inventory := newInventory()
	inventory.sandboxes["s"], inventory.containers["c"] = s, c
	r := &containerService{inventory: inventory}
	s.setStopping(true)
	if _, err := r.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: "c"}); err == nil || c.get().Phase != phaseCreated {
		t.Errorf("%v, phase %v", err, c.get().Phase)
	}
	s.setStopping(false)
	if !s.acceptsContainers() {
		t.Error("a sandbox that could not be stopped takes no containers")
	}
}

// TestDuplicate checks that duplicates can be closed independently.
func TestDuplicate(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	own, err := duplicate(write)
	if err != nil {
		t.Fatal(err)
	}
	own.Close()
	if _, err := write.WriteString("x"); err != nil {
		t.Errorf("the file went with its duplicate: %v", err)
	}
	write.Close()
	if _, err := duplicate(write); err == nil {
		t.Error("a closed file was duplicated")
	}
}
