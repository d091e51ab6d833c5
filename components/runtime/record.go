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

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/host/atomicfile"
)

// Records contain the persistent state of sandboxes and containers. Each is a file with lines of
// JSON, of which the last complete one is valid. They are not synced, because a power failure
// terminates the processes that they describe, and a pod with a lost record is created again.
//
// A record changes five times while a container is created and started. Replacing the file each
// time would need a new inode and a rename; appending a line costs a tenth of that.

// phase is the recorded progress of a sandbox or container through its life.
type phase string

const (
	phaseCreating phase = "creating" // incomplete: removed after a restart
	phaseCreated  phase = "created"  // containers only
	phaseStarting phase = "starting" // containers only: resumed or terminated after a restart
	phaseRunning  phase = "running"
	phaseExited   phase = "exited"
)

// processID identifies a process uniquely within a boot: Start is the start time of the process, which distinguishes it
// from a later process with the same PID. The zero value means no process.
type processID struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
}

// sandboxRecord is the persistent state of a sandbox. The next runtime process reads it to take over the sandbox.
type sandboxRecord struct {
	ID string `json:"id"`
	// Boot is the boot ID at the start of its process.
	Boot    string    `json:"boot"`
	Phase   phase     `json:"phase"`
	Created int64     `json:"created"` // nanoseconds
	Handler string    `json:"handler,omitempty"`
	Process processID `json:"process"`
	IPs     []string  `json:"ips,omitempty"`
	Config  message   `json:"config"`
	// CNI is the configuration of the CNI plugins that have connected it. Empty means the built-in
	// network.
	CNI []byte `json:"cni,omitempty"`
	// Labels are nil without SELinux.
	Labels *selinux.Labels `json:"selinux,omitempty"`

	config *runtimeapi.PodSandboxConfig
}

// containerRecord is the persistent state of a container. The next runtime process reads it to take over the container.
//
// Size: one field for each property in a file format.
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
	// Holder is the process that keeps the terminal or stdin open across restarts of the runtime.
	Holder processID `json:"holder"`
	// ImageID is the ID of the image, ImageRef the reference to report. Layers protect the image's
	// layers from garbage collection.
	ImageID    string   `json:"imageID"`
	ImageRef   string   `json:"imageRef"`
	Layers     []string `json:"layers"`
	Cgroup     string   `json:"cgroup"`
	Handler    string   `json:"handler,omitempty"`
	LogPath    string   `json:"logPath,omitempty"`
	StopSignal string   `json:"stopSignal,omitempty"`
	User       *user    `json:"user,omitempty"`
	// Volumes are the mount points of image volumes, below the container's state directory.
	Volumes []string `json:"volumes,omitempty"`
	// Labels are nil without SELinux.
	Labels *selinux.Labels `json:"selinux,omitempty"`
	Config message         `json:"config"`

	config *runtimeapi.ContainerConfig
}

// user contains the user ID, the primary group and all groups of a container's first process, for the container status.
type user struct {
	UID, GID int64
	Groups   []int64
}

// message is a protobuf message in its encoded form, as the state of sandboxes and containers on disk contains it.
type message []byte

// marshal encodes m, a message of a CRI request, for the state of a sandbox or container on disk. It returns nil if
// m cannot be encoded.
func marshal(m proto.Message) message {
	data, err := proto.Marshal(m)
	if err != nil {
		return nil
	}
	return data
}

// recordFile is the name of the file with the persistent state of a sandbox or container, in its directory.
const recordFile = "record.json"

// maxRecordFileSize is the size in bytes above which the file of a record is replaced by one with the latest line only.
// A file of up to three times the size of its latest line is not replaced.
const maxRecordFileSize = 16 << 10

// save writes record, the persistent state of a sandbox or container, to the file record.json in its directory dir,
// as a new last line.
func save(dir string, record any) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = appendRecord(filepath.Join(dir, recordFile), data)
	}
	if err != nil {
		return fmt.Errorf("writing record: %w", err)
	}
	return nil
}

// appendRecord appends data, a record in JSON, as the last line of file, which it creates if necessary. If the file is
// too large, it replaces the file by this line.
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
	if size := info.Size(); size > maxRecordFileSize && size > 3*int64(len(data)) {
		return atomicfile.Write(atomicfile.File{Path: file, Data: append(data, '\n'), Mode: 0o600, SkipSync: true})
	}
	// The previous line may be truncated by a full disk or a crash.
	_, err = f.Write(slices.Concat([]byte{'\n'}, data, []byte{'\n'}))
	return err
}

// errDamaged means that the file with the persistent state of a sandbox or container is missing or invalid. The
// runtime then removes the sandbox or container.
var errDamaged = errors.New("damaged record")

// loadRecord reads the persistent state of the sandbox or container with the directory dir into record. It returns
// errDamaged if the file is missing or contains no valid state.
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

// lastLine returns the last line of data that is valid JSON. A line that was truncated by a crash or a full disk is not
// valid, because its closing brace is missing.
func lastLine(data []byte) ([]byte, error) {
	for len(data) > 0 {
		at := bytes.LastIndexByte(data, '\n') + 1
		if line := data[at:]; len(line) > 0 && json.Valid(line) {
			return line, nil
		}
		data = data[:max(at-1, 0)]
	}
	return nil, errors.New("no complete line")
}

// loadSandbox reads the record of the sandbox with the directory dir. It returns an error that wraps errDamaged if the
// record is incomplete or belongs to another sandbox.
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

// loadContainer reads the record of the container with the directory dir. It returns an error that wraps errDamaged if
// the record is incomplete or belongs to another container.
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

// newID returns a random ID for a sandbox or container: 64 hexadecimal digits, as in other container runtimes.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
