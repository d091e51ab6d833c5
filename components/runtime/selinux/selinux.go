// Package selinux determines the SELinux labels of pods and containers and sets them on processes,
// mounts and files. Without SELinux there is no Host: the methods of a nil *Host do nothing and
// return no labels.
//
// Pods are isolated from each other by their level, a pair of categories that is unique on the
// node. The containers of a pod share its level.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#assign-selinux-labels-to-a-container
package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels are the SELinux labels of a sandbox or container, as stored in its record. With empty
// labels, the policy selects the domain of processes, and files keep their labels.
type Labels struct {
	// Process is the label of processes. Mount is the label of files.
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
	// Unconfined is true if processes do not get the label Process. The label is kept because other
	// containers of the pod use its level.
	Unconfined bool `json:"unconfined,omitempty"`
}

// ForProcess returns the label for processes, or "".
func (l *Labels) ForProcess() string {
	if l == nil || l.Unconfined {
		return ""
	}
	return l.Process
}

// ForMount returns the label for mounts and files, or "".
func (l *Labels) ForMount() string {
	if l == nil {
		return ""
	}
	return l.Mount
}

// MountOption returns the mount option, with a leading comma, that sets the label of all files of a
// mount. It returns "" for an empty label.
func MountOption(label string) string {
	if label == "" {
		return ""
	}
	return `,context="` + label + `"`
}

// policyKernel is the interface to the loaded policy and to file systems.
type policyKernel interface {
	// check returns errUnknown if the policy does not contain the label.
	check(label string) error
	setFile(path, label string) error
	relabel(path, label string) error
}

// errUnknown reports a label that the policy does not contain.
var errUnknown = errors.New("label is not in the host's SELinux policy")

// Host is a host with SELinux. Its methods are safe for concurrent use.
type Host struct {
	kernel policyKernel
	// process and file are the policy's labels for containers. readOnly is the label for files that
	// all containers may read.
	process, file, readOnly parsedLabel
	levels                  *levels
}

// newHost returns a Host with the policy's labels.
func newHost(k policyKernel, process, file, readOnly string) (*Host, error) {
	h := &Host{kernel: k, levels: newLevels(policyCategories)}
	for _, l := range []struct {
		to   *parsedLabel
		text string
	}{{&h.process, process}, {&h.file, file}, {&h.readOnly, readOnly}} {
		c, err := parse(l.text)
		if err != nil {
			return nil, fmt.Errorf("parsing the policy's labels for containers: %w", err)
		}
		*l.to = c
	}
	return h, nil
}

// Pod returns the labels of a new sandbox. It allocates the requested level, or an unused one,
// until Release.
func (h *Host) Pod(sc *runtimeapi.LinuxSandboxSecurityContext) (*Labels, error) {
	if h == nil {
		return nil, nil
	}
	labels, err := h.newLabels(sc.GetSelinuxOptions(), "")
	if err != nil {
		return nil, err
	}
	labels.Unconfined = sc.GetPrivileged() || sharesHostNamespace(sc.GetNamespaceOptions()) && !isSet(sc.GetSelinuxOptions())
	return labels, nil
}

// Container returns the labels of a container: those of its pod, unless the container requests
// others. Its level is allocated until Release.
func (h *Host) Container(pod *Labels, sc *runtimeapi.LinuxContainerSecurityContext) (*Labels, error) {
	if h == nil || pod == nil {
		return nil, nil // or the pod was created before SELinux was supported
	}
	options, labels := sc.GetSelinuxOptions(), *pod
	if isSet(options) {
		c, err := parse(pod.Process)
		if err != nil {
			return nil, err
		}
		requested, err := h.newLabels(options, c.level)
		if err != nil {
			return nil, err
		}
		labels = *requested
	} else {
		h.Adopt(&labels)
	}
	labels.Unconfined = sc.GetPrivileged() || sharesHostNamespace(sc.GetNamespaceOptions()) && !isSet(options)
	return &labels, nil
}

// sharesHostNamespace reports whether a pod must be unconfined because it shares the host's PID or IPC
// namespace, whose processes and memory have other labels than containers. The policy derives the
// domain from the label of the program file.
func sharesHostNamespace(o *runtimeapi.NamespaceOption) bool {
	return o.GetPid() == runtimeapi.NamespaceMode_NODE || o.GetIpc() == runtimeapi.NamespaceMode_NODE
}

func isSet(o *runtimeapi.SELinuxOption) bool {
	return o.GetUser() != "" || o.GetRole() != "" || o.GetType() != "" || o.GetLevel() != ""
}

// newLabels applies options to the policy's labels. The level is that of options, else level, else an
// unused one.
func (h *Host) newLabels(o *runtimeapi.SELinuxOption, level string) (*Labels, error) {
	process, file := h.process, h.file
	set := func(to *string, value string) {
		if value != "" {
			*to = value
		}
	}
	set(&process.user, o.GetUser())
	set(&file.user, o.GetUser())
	set(&process.role, o.GetRole())
	set(&process.kind, o.GetType())
	set(&level, o.GetLevel())
	switch {
	case level != "":
		process.level, file.level = level, level
		h.levels.acquire(level)
	case h.process.level != "":
		var err error
		if level, err = h.levels.allocate(); err != nil {
			return nil, err
		}
		process.level, file.level = level, level
	}
	labels := &Labels{Process: process.String(), Mount: file.String()}
	for _, label := range []string{labels.Process, labels.Mount} {
		// Without permission to check it, an invalid label fails when it is used.
		if err := h.kernel.check(label); errors.Is(err, errUnknown) {
			h.Release(labels)
			return nil, fmt.Errorf("invalid SELinux options: label %q: %w", label, err)
		}
	}
	return labels, nil
}

// Adopt marks the level of existing labels as used, after a restart of the runtime. l may be nil.
func (h *Host) Adopt(l *Labels) {
	if level := h.levelOf(l); level != "" {
		h.levels.acquire(level)
	}
}

// Release releases the level of labels. l may be nil.
func (h *Host) Release(l *Labels) {
	if level := h.levelOf(l); level != "" {
		h.levels.release(level)
	}
}

func (h *Host) levelOf(l *Labels) string {
	if h == nil || l == nil || l.Process == "" {
		return ""
	}
	c, err := parse(l.Process)
	if err != nil {
		return ""
	}
	return c.level
}

// Label sets the label of a file, or of the target of a symlink, so that processes with the labels
// l can use it. File systems without label support are ignored.
func (h *Host) Label(path string, l *Labels) error {
	if h == nil || l.ForMount() == "" {
		return nil
	}
	return h.setFile(path, l.Mount)
}

// LabelForAll sets the label of a file that all containers may read and execute.
func (h *Host) LabelForAll(path string) error {
	if h == nil {
		return nil
	}
	return h.setFile(path, h.readOnly.String())
}

func (h *Host) setFile(path, label string) error {
	if err := h.kernel.setFile(path, label); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("labeling %s: %w", path, err)
	}
	return nil
}

// Relabel sets the label of path and everything below it. System directories such as /etc or /home
// are rejected. File systems without label support are ignored.
func (h *Host) Relabel(path string, l *Labels) error {
	if h == nil || l.ForMount() == "" {
		return nil
	}
	err := h.kernel.relabel(path, l.Mount)
	if err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("relabel %q with %q failed: %w", path, l.Mount, err)
}

// parsedLabel is a parsed label.
type parsedLabel struct{ user, role, kind, level string }

func parse(label string) (parsedLabel, error) {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 3 {
		return parsedLabel{}, fmt.Errorf("%q is not an SELinux label", label)
	}
	c := parsedLabel{user: parts[0], role: parts[1], kind: parts[2]}
	if len(parts) == 4 {
		c.level = parts[3]
	}
	return c, nil
}

func (c parsedLabel) String() string {
	text := c.user + ":" + c.role + ":" + c.kind
	if c.level != "" {
		text += ":" + c.level
	}
	return text
}
