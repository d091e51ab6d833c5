//go:build cgo

package runtime

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/atomicfile"
)

// Records are what of sandboxes and containers survives this process: one file
// each, of lines of JSON of which the last whole one counts. They are not
// synced: a power failure ends the processes they tell of, and a lost record is
// a pod made anew.
//
// A record changes five times while a container is made and started. Each new
// file would cost the file system an inode, a name and the freeing of the old
// one; a line more costs a tenth of that.

// phase is how far a sandbox or container has come.
type phase string

const (
	phaseCreating phase = "creating" // half made: a successor removes it
	phaseCreated  phase = "created"  // containers only
	phaseStarting phase = "starting" // containers only: a successor ends it
	phaseRunning  phase = "running"
	phaseExited   phase = "exited"
)

// processID names a process for good.
type processID struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
}

type sandboxRecord struct {
	ID string `json:"id"`
	// Boot is the boot that its process was started in.
	Boot    string    `json:"boot"`
	Phase   phase     `json:"phase"`
	Created int64     `json:"created"` // nanoseconds
	Handler string    `json:"handler,omitempty"`
	Process processID `json:"process"`
	IPs     []string  `json:"ips,omitempty"`
	Config  message   `json:"config"`
	// CNI is the configuration of the plugins that have connected it; empty: it
	// has a link of podnet's.
	CNI []byte `json:"cni,omitempty"`
	// Labels are nil where there is no SELinux.
	Labels *selinux.Labels `json:"selinux,omitempty"`

	config *runtimeapi.PodSandboxConfig
}

type containerRecord struct {
	ID       string    `json:"id"`
	Sandbox  string    `json:"sandbox"`
	Boot     string    `json:"boot"`
	Phase    phase     `json:"phase"`
	Created  int64     `json:"created"`
	Started  int64     `json:"started,omitempty"`
	Finished int64     `json:"finished,omitempty"`
	ExitCode int32     `json:"exitCode"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	Process  processID `json:"process"`
	// Holder keeps terminal or stdin open for our successor.
	Holder processID `json:"holder"`
	// ImageID is the image's, ImageRef how it is shown; Layers keep the
	// image's folders from being collected.
	ImageID    string   `json:"imageID"`
	ImageRef   string   `json:"imageRef"`
	Layers     []string `json:"layers"`
	Cgroup     string   `json:"cgroup"`
	Handler    string   `json:"handler,omitempty"`
	LogPath    string   `json:"logPath,omitempty"`
	StopSignal string   `json:"stopSignal,omitempty"`
	User       *user    `json:"user,omitempty"`
	// Volumes are images mounted into it: folders below its state.
	Volumes []string `json:"volumes,omitempty"`
	// Labels are nil where there is no SELinux.
	Labels *selinux.Labels `json:"selinux,omitempty"`
	Config message         `json:"config"`

	config *runtimeapi.ContainerConfig
}

type user struct {
	UID, GID int64
	Groups   []int64
}

// message is a protobuf message in a record.
type message []byte

func marshal(m proto.Message) message {
	data, err := proto.Marshal(m)
	if err != nil {
		return nil
	}
	return data
}

const recordFile = "record.json"

// recordSpace is what a record's file may take before its outdated lines are
// left out, unless the record itself is so long.
const recordSpace = 16 << 10

// save writes a record into its folder.
func save(dir string, record any) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = appendRecord(filepath.Join(dir, recordFile), data)
	}
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	return nil
}

// appendRecord makes data the last line of file.
func appendRecord(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size := info.Size(); size > recordSpace && size > 3*int64(len(data)) {
		return atomicfile.Write(atomicfile.File{Path: file, Data: append(data, '\n'), Mode: 0o600, Remakeable: true})
	}
	// The line before may have been cut short by a full disk or a crash.
	_, err = f.Write(slices.Concat([]byte{'\n'}, data, []byte{'\n'}))
	return err
}

// errDamaged tells of a record that cannot be read.
var errDamaged = errors.New("damaged record")

func loadRecord(dir string, record any) error {
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	line, err := lastLine(data)
	if err == nil {
		err = json.Unmarshal(line, record)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// lastLine returns the last line that is JSON. One that was cut short never is,
// for it lacks its closing brace.
func lastLine(data []byte) ([]byte, error) {
	for len(data) > 0 {
		at := bytes.LastIndexByte(data, '\n') + 1
		if line := data[at:]; len(line) > 0 && json.Valid(line) {
			return line, nil
		}
		data = data[:max(at-1, 0)]
	}
	return nil, errors.New("no line is whole")
}

func loadSandbox(dir string) (*sandboxRecord, error) {
	r := &sandboxRecord{config: &runtimeapi.PodSandboxConfig{}}
	if err := loadRecord(dir, r); err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(r.Config, r.config); err != nil || r.ID != filepath.Base(dir) || r.config.GetMetadata() == nil {
		return nil, fmt.Errorf("%w of a sandbox", errDamaged)
	}
	return r, nil
}

func loadContainer(dir string) (*containerRecord, error) {
	r := &containerRecord{config: &runtimeapi.ContainerConfig{}}
	if err := loadRecord(dir, r); err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(r.Config, r.config); err != nil || r.ID != filepath.Base(dir) || r.config.GetMetadata() == nil {
		return nil, fmt.Errorf("%w of a container", errDamaged)
	}
	return r, nil
}

// newID returns a random id as container engines have them.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// bootID tells this boot of the machine from others.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// find finds one of all by its id or an unambiguous beginning of it; what says
// what it is. The caller holds the lock of all.
func find[S any](what string, all map[string]*S, id string) (*S, error) {
	if s := all[id]; s != nil {
		return s, nil
	}
	var found *S
	for full, s := range all {
		if id != "" && strings.HasPrefix(full, id) {
			if found != nil {
				return nil, fmt.Errorf("%s id %q is ambiguous", what, id)
			}
			found = s
		}
	}
	if found == nil {
		return nil, fmt.Errorf("an error occurred when try to find %s %q: %w", what, id, errNotFound)
	}
	return found, nil
}
