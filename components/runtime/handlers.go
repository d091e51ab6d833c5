//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/container/mountspace"
	"hyperkube/internal/host/process"
)

// engine creates and controls the processes of containers. container.Runner implements it with libcontainer in this
// program, and container.OCI with an external OCI runtime. The handler of a pod's RuntimeClass selects the engine.
type engine interface {
	// Prepare creates what a container needs before it is started. Delete removes it.
	Prepare(cgroupPath string) error
	Start(id string, spec *specs.Spec, io container.IO) (*container.Running, error)
	Exec(id string, o container.ExecOptions) (*container.Running, error)
	Resume(id string) (*process.Handle, container.StartState)
	Update(id string, resources *runtimeapi.LinuxContainerResources) error
	KillAll(cgroupPath string) error
	Delete(ctx context.Context, id, cgroupPath string) error
}

// Handler configures an external OCI runtime that RuntimeClasses can select by the name of the handler.
type Handler struct {
	// Binary is the absolute path of an OCI runtime with runc's command line.
	Binary string `json:"binary"`
	// UserNamespaces and RecursiveReadOnlyMounts report the features that the runtime supports.
	UserNamespaces          bool `json:"userNamespaces,omitempty"`
	RecursiveReadOnlyMounts bool `json:"recursiveReadOnlyMounts,omitempty"`
}

// LoadHandlers reads the additional runtime handlers, by name, from a YAML or JSON file. If file is empty or does not
// exist, it returns nil. Unknown fields are an error.
func LoadHandlers(file string) (map[string]Handler, error) {
	data, err := os.ReadFile(file)
	if file == "" || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var in struct {
		Handlers map[string]Handler `json:"handlers"`
	}
	if err == nil {
		err = yaml.UnmarshalStrict(data, &in)
	}
	if err != nil {
		return nil, fmt.Errorf("reading runtime handlers: %w", err)
	}
	return in.Handlers, nil
}

// checkHandlers returns an error if a handler has an invalid or reserved name, or its binary is not an absolute path.
func checkHandlers(handlers map[string]Handler) error {
	for name, h := range handlers {
		if name == "" || name == runtimeName || strings.ContainsAny(name, "/.") {
			return fmt.Errorf("invalid runtime handler name %q", name)
		}
		if !filepath.IsAbs(h.Binary) {
			return fmt.Errorf("runtime handler %q: binary must be an absolute path, not %q", name, h.Binary)
		}
	}
	return nil
}

// engines contains the engine of each runtime handler. It does not change after newEngines, so it is safe for
// concurrent use.
type engines struct {
	builtin   *container.Runner
	byHandler map[string]engine
	handlers  map[string]Handler // the additional handlers
}

// newEngines creates the built-in engine, for the handler names "" and "hyperkube", and an engine for each of the
// configured handlers. It starts no processes.
func newEngines(h *host, handlers map[string]Handler) *engines {
	e := &engines{
		builtin:  &container.Runner{State: h.state("libcontainer"), Cgroups: h.cgroups, Spaces: mountspace.New(h.state("root")), Log: h.log},
		handlers: handlers,
	}
	e.byHandler = map[string]engine{"": e.builtin, runtimeName: e.builtin}
	for name, handler := range handlers {
		e.byHandler[name] = &container.OCI{Binary: handler.Binary, State: h.handlerState(name), Cgroups: h.cgroups}
	}
	return e
}

// has reports whether a handler with this name is configured. RunPodSandbox rejects pods with other handlers.
func (e *engines) has(handler string) bool { return e.byHandler[handler] != nil }

// of returns the engine that controls the container with the record rec: that of its runtime handler. If the
// handler is no longer configured, it is the built-in engine, which can kill the container's processes and remove
// its cgroup.
func (e *engines) of(rec containerRecord) engine {
	if e, ok := e.byHandler[rec.Handler]; ok {
		return e
	}
	return e.builtin
}

// features returns the features of each runtime handler, which the kubelet publishes in the node's status.
func (e *engines) features() []*runtimeapi.RuntimeHandler {
	userNamespaces := checkUserNamespaces() == nil
	builtin := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: userNamespaces}
	list := []*runtimeapi.RuntimeHandler{{Name: "", Features: builtin}, {Name: runtimeName, Features: builtin}}
	for name, h := range e.handlers {
		list = append(list, &runtimeapi.RuntimeHandler{Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: h.RecursiveReadOnlyMounts, UserNamespaces: h.UserNamespaces && userNamespaces}})
	}
	return list
}
