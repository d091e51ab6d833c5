// Package selinux says which SELinux labels a pod and its containers have, and
// gives them to processes, mounts and files. On a host without SELinux there is
// no Host: the methods of a nil one do nothing and give no labels.
//
// A pod is kept apart from others by its level, a pair of categories that no
// other pod on the node has. Its containers share the level.
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

// Labels are those of a sandbox or a container, as its record has them. Empty
// ones leave a process in the domain that the policy chooses for what the runtime
// starts, and files with the labels that they have.
type Labels struct {
	// Process is the label of processes, Mount that of files.
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
	// Unconfined tells that processes do not get their label: it is there for
	// its level, which other containers of the pod go by.
	Unconfined bool `json:"unconfined,omitempty"`
}

// ForProcess is the label that processes get; empty for none.
func (l *Labels) ForProcess() string {
	if l == nil || l.Unconfined {
		return ""
	}
	return l.Process
}

// ForMount is the label of mounts and files; empty for none.
func (l *Labels) ForMount() string {
	if l == nil {
		return ""
	}
	return l.Mount
}

// MountOption is the option, with a comma before it, that makes label the label of
// all files of a mount; empty for no label.
func MountOption(label string) string {
	if label == "" {
		return ""
	}
	return `,context="` + label + `"`
}

// kernel is what is asked of the loaded policy and of file systems.
type kernel interface {
	// check returns errUnknown for a label that the policy does not have.
	check(label string) error
	setFile(path, label string) error
	relabel(path, label string) error
}

// errUnknown tells of a label that the policy does not have.
var errUnknown = errors.New("the policy of this host has no such label")

// Host is a host with SELinux. Its methods are safe for several goroutines.
type Host struct {
	kernel kernel
	// process and file are the policy's labels for containers, readOnly for files
	// that all of them may read.
	process, file, readOnly context
	levels                  *levels
}

// newHost makes a Host of the policy's labels.
func newHost(k kernel, process, file, readOnly string) (*Host, error) {
	h := &Host{kernel: k, levels: newLevels(policyCategories)}
	for _, l := range []struct {
		to   *context
		text string
	}{{&h.process, process}, {&h.file, file}, {&h.readOnly, readOnly}} {
		c, err := parse(l.text)
		if err != nil {
			return nil, fmt.Errorf("the policy's labels for containers: %w", err)
		}
		*l.to = c
	}
	return h, nil
}

// Pod gives a sandbox its labels. Its level is the one asked for, or one that
// nobody has; it is taken until Release.
func (h *Host) Pod(sc *runtimeapi.LinuxSandboxSecurityContext) (*Labels, error) {
	if h == nil {
		return nil, nil
	}
	labels, err := h.make(sc.GetSelinuxOptions(), "")
	if err != nil {
		return nil, err
	}
	labels.Unconfined = sc.GetPrivileged() || shares(sc.GetNamespaceOptions()) && !given(sc.GetSelinuxOptions())
	return labels, nil
}

// Container gives a container of a pod its labels: the pod's, unless it asks for
// others. Its level is taken until Release.
func (h *Host) Container(pod *Labels, sc *runtimeapi.LinuxContainerSecurityContext) (*Labels, error) {
	if h == nil || pod == nil {
		return nil, nil // or the pod is older than that the runtime gives labels
	}
	options, labels := sc.GetSelinuxOptions(), *pod
	if given(options) {
		c, err := parse(pod.Process)
		if err != nil {
			return nil, err
		}
		own, err := h.make(options, c.level)
		if err != nil {
			return nil, err
		}
		labels = *own
	} else {
		h.Adopt(&labels)
	}
	labels.Unconfined = sc.GetPrivileged() || shares(sc.GetNamespaceOptions()) && !given(options)
	return &labels, nil
}

// shares tells whether a pod is not to be confined, for it shares the processes
// or the memory of the host, which have other labels than containers. What its
// programs are labelled lets the policy tell them from the runtime.
func shares(o *runtimeapi.NamespaceOption) bool {
	return o.GetPid() == runtimeapi.NamespaceMode_NODE || o.GetIpc() == runtimeapi.NamespaceMode_NODE
}

func given(o *runtimeapi.SELinuxOption) bool {
	return o.GetUser() != "" || o.GetRole() != "" || o.GetType() != "" || o.GetLevel() != ""
}

// make puts options over the policy's labels. The level is that of options, else
// level, else a new one.
func (h *Host) make(o *runtimeapi.SELinuxOption, level string) (*Labels, error) {
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
		h.levels.take(level)
	case h.process.level != "":
		var err error
		if level, err = h.levels.next(); err != nil {
			return nil, err
		}
		process.level, file.level = level, level
	}
	labels := &Labels{Process: process.String(), Mount: file.String()}
	for _, label := range []string{labels.Process, labels.Mount} {
		// Who may not ask the policy finds out when the label is used.
		if err := h.kernel.check(label); errors.Is(err, errUnknown) {
			h.Release(labels)
			return nil, fmt.Errorf("invalid SELinux options: label %q: %w", label, err)
		}
	}
	return labels, nil
}

// Adopt takes the level of labels that a predecessor has given; nil ones have
// none.
func (h *Host) Adopt(l *Labels) {
	if level := h.levelOf(l); level != "" {
		h.levels.take(level)
	}
}

// Release gives the level of labels back that are not used any more; nil ones
// have none.
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

// Label labels a file, or what path leads to, so that those with these labels can
// use it. A file system without labels is left as it is.
func (h *Host) Label(path string, l *Labels) error {
	if h == nil || l.ForMount() == "" {
		return nil
	}
	return h.setFile(path, l.Mount)
}

// LabelForAll labels a file that all containers may read and execute.
func (h *Host) LabelForAll(path string) error {
	if h == nil {
		return nil
	}
	return h.setFile(path, h.readOnly.String())
}

func (h *Host) setFile(path, label string) error {
	if err := h.kernel.setFile(path, label); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("labelling %s: %w", path, err)
	}
	return nil
}

// Relabel labels path and all below it. What the host lives by, such as /etc or
// /home, is refused; a file system without labels is left as it is.
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

// context is a label in its parts.
type context struct{ user, role, kind, level string }

func parse(label string) (context, error) {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 3 {
		return context{}, fmt.Errorf("%q is no SELinux label", label)
	}
	c := context{user: parts[0], role: parts[1], kind: parts[2]}
	if len(parts) == 4 {
		c.level = parts[3]
	}
	return c, nil
}

func (c context) String() string {
	text := c.user + ":" + c.role + ":" + c.kind
	if c.level != "" {
		text += ":" + c.level
	}
	return text
}
