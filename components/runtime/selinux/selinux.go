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

// Labels are the SELinux labels of a sandbox or container, as its record stores them. If a label is empty, the policy
// selects the label of processes, and files keep their labels.
type Labels struct {
	// Process is the label of processes. Mount is the label of files.
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
	// Unconfined is true if processes do not get the label Process. The label is kept because other
	// containers of the pod use its level.
	Unconfined bool `json:"unconfined,omitempty"`
}

// ForProcess returns the label to start processes with. It is empty if the policy decides. l may be nil.
func (l *Labels) ForProcess() string {
	if l == nil || l.Unconfined {
		return ""
	}
	return l.Process
}

// ForMount returns the label for mounts and files, or "" if they keep their labels. l may be nil.
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

// policyKernel checks labels with the loaded policy and sets them on files. Tests replace it.
type policyKernel interface {
	// check returns errUnknown if the policy does not contain the label.
	check(label string) error
	setFile(path, label string) error
	relabel(path, label string) error
}

// errUnknown means that the loaded SELinux policy does not contain a label, so that no process or file can have it.
var errUnknown = errors.New("label is not in the host's SELinux policy")

// Host determines and sets labels on a host with SELinux. A nil *Host stands for a host without SELinux: its methods do
// nothing. Its methods are safe for concurrent use.
type Host struct {
	kernel policyKernel
	// process and file are the policy's labels for containers. readOnly is the label for files that
	// all containers may read.
	process, file, readOnly parsedLabel
	levels                  *levels
}

// newHost returns a Host. process, file and readOnly are the labels that the policy defines for container processes,
// their files, and files that all containers may read. It returns an error if one is invalid.
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

// Pod returns the labels of a new sandbox, and nil without SELinux. It allocates the level that the pod requests, or an
// unused one; the caller must call Release when the sandbox is removed. It returns an error if the policy does not
// contain the requested labels.
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

// Container returns the labels of a new container. They are those of its pod unless the container requests others. The
// level is in use until the caller calls Release. It returns nil without SELinux, and an error if the policy does not
// contain the requested labels.
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

// sharesHostNamespace reports whether a pod shares the host's PID or IPC namespace. Such a pod is unconfined, because
// the processes and memory of the host have other labels than those of containers. The policy then derives the label of
// its processes from the label of the program file.
func sharesHostNamespace(o *runtimeapi.NamespaceOption) bool {
	return o.GetPid() == runtimeapi.NamespaceMode_NODE || o.GetIpc() == runtimeapi.NamespaceMode_NODE
}

// isSet reports whether a pod or container requests any part of an SELinux label.
func isSet(o *runtimeapi.SELinuxOption) bool {
	return o.GetUser() != "" || o.GetRole() != "" || o.GetType() != "" || o.GetLevel() != ""
}

// newLabels returns the policy's labels for containers, changed by the options o. It uses the level of o, or else the
// argument level, or else allocates an unused one. The level counts as used until Release. It returns an error if the
// policy does not contain the result.
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

// Adopt records that a sandbox or container of a previous runtime process uses the level of l, so that no new pod
// gets the same level. l may be nil.
func (h *Host) Adopt(l *Labels) {
	if level := h.levelOf(l); level != "" {
		h.levels.acquire(level)
	}
}

// Release records that a sandbox or container that was removed does not use the level of l any more. The last one
// frees the level for new pods. l may be nil.
func (h *Host) Release(l *Labels) {
	if level := h.levelOf(l); level != "" {
		h.levels.release(level)
	}
}

// levelOf returns the level in the labels l, which separates pods from each other, or "" if the labels have none.
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

// LabelForAll sets the label of a file that all containers may read and execute. It does nothing without SELinux.
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

// Relabel sets the label of path and of everything below it, for a volume with relabeling. It returns an error for
// system directories such as /etc or /home. It does nothing on file systems without label support, if path does not
// exist, or if l has no label for files.
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

// parsedLabel is an SELinux label split into its parts. kind is the type of the label. level is empty if the policy has
// no levels.
type parsedLabel struct{ user, role, kind, level string }

// parse splits a label of the form user:role:type[:level].
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
