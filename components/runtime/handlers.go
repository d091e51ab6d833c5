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
	"hyperkube/internal/process"
)

// engine runs containers: ours in this program, others by another one.
type engine interface {
	// Prepare makes what a container that is to be started here needs; Delete
	// removes it.
	Prepare(cgroupPath string) error
	Start(id string, spec *specs.Spec, io container.IO) (*container.Running, error)
	Exec(id string, o container.ExecOptions) (*container.Running, error)
	Resume(id string) (*process.Handle, container.Progress)
	Update(id string, resources *runtimeapi.LinuxContainerResources) error
	KillAll(cgroupPath string) error
	Delete(ctx context.Context, id, cgroupPath string) error
}

// Handler is a way to run containers that a RuntimeClass can name.
type Handler struct {
	// Binary is the absolute path of a program with runc's command line.
	Binary string `json:"binary"`
	// UserNamespaces and RecursiveReadOnlyMounts say what it can do.
	UserNamespaces          bool `json:"userNamespaces,omitempty"`
	RecursiveReadOnlyMounts bool `json:"recursiveReadOnlyMounts,omitempty"`
}

// LoadHandlers reads a file of handlers by name, YAML or JSON. No file gives
// none.
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
		return nil, fmt.Errorf("reading the runtime handlers: %w", err)
	}
	return in.Handlers, nil
}

func checkHandlers(handlers map[string]Handler) error {
	for name, h := range handlers {
		if name == "" || name == runtimeName || strings.ContainsAny(name, "/.") {
			return fmt.Errorf("bad name %q of a runtime handler", name)
		}
		if !filepath.IsAbs(h.Binary) {
			return fmt.Errorf("runtime handler %q: the binary must be an absolute path, not %q", name, h.Binary)
		}
	}
	return nil
}

// makeEngines makes what runs the containers of each handler.
func (r *Runtime) makeEngines() {
	r.runner = &container.Runner{State: r.state("libcontainer"), Cgroups: r.cgroups, Spaces: mountspace.New(r.state("root")), Log: r.log}
	r.engines = map[string]engine{"": r.runner, runtimeName: r.runner}
	for name, h := range r.cfg.Handlers {
		r.engines[name] = &container.OCI{Binary: h.Binary, State: r.handlerState(name), Cgroups: r.cgroups}
	}
}

func (r *Runtime) handlerState(name string) string { return r.state("handlers", name) }

// engineOf returns what runs a container. That of a handler that is no longer
// configured is stopped and removed as far as our own way goes.
func (r *Runtime) engineOf(rec containerRecord) engine {
	if e, ok := r.engines[rec.Handler]; ok {
		return e
	}
	return r.runner
}

// handlerFeatures tells the kubelet of each handler.
func (r *Runtime) handlerFeatures() []*runtimeapi.RuntimeHandler {
	own := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: userNamespaces()}
	list := []*runtimeapi.RuntimeHandler{{Name: "", Features: own}, {Name: runtimeName, Features: own}}
	for name, h := range r.cfg.Handlers {
		list = append(list, &runtimeapi.RuntimeHandler{Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: h.RecursiveReadOnlyMounts, UserNamespaces: h.UserNamespaces && userNamespaces()}})
	}
	return list
}
