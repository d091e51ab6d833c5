//go:build cgo

package runtime

import (
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/selinux"
)

// What callers get beyond CRI's own fields when they ask for it, as `crictl
// inspect` does. CRI leaves it to the runtime; scripts of operators look for the
// namespaces, the cgroup and the command under the names that containerd has for
// them.

type sandboxInfo struct {
	PID           int                          `json:"pid"`
	ProcessStatus string                       `json:"processStatus"`
	NetNSClosed   bool                         `json:"netNamespaceClosed"`
	Cgroup        string                       `json:"cgroup"`
	Handler       string                       `json:"runtimeHandler"`
	Config        *runtimeapi.PodSandboxConfig `json:"config"`
	Labels        *selinux.Labels              `json:"selinux,omitempty"`
	Spec          *specs.Spec                  `json:"runtimeSpec,omitempty"`
}

type containerInfo struct {
	SandboxID string                      `json:"sandboxID"`
	PID       int                         `json:"pid"`
	Cgroup    string                      `json:"cgroup"`
	Handler   string                      `json:"runtimeHandler"`
	Config    *runtimeapi.ContainerConfig `json:"config"`
	Labels    *selinux.Labels             `json:"selinux,omitempty"`
	// Spec is missing of containers that do not run.
	Spec *specs.Spec `json:"runtimeSpec,omitempty"`
}

type imageInfo struct {
	// ChainID names the root that the layers make up together; it and RootFS are
	// missing of images that were pulled before their layers' digests were kept.
	ChainID string    `json:"chainID,omitempty"`
	Spec    imageSpec `json:"imageSpec"`
}

// imageSpec is what is kept of an image's configuration, in its form.
type imageSpec struct {
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Config       images.Config `json:"config"`
	RootFS       *rootFS       `json:"rootfs,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// verbose is the form in which CRI wants more information.
func verbose(info any) (map[string]string, error) {
	data, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("telling more: %w", err)
	}
	return map[string]string{"info": string(data)}, nil
}

func (r *Runtime) sandboxInfo(rec sandboxRecord) sandboxInfo {
	info := sandboxInfo{PID: rec.Process.PID, ProcessStatus: "stopped", NetNSClosed: true, Cgroup: r.sandboxCgroup(rec.config, rec.ID),
		Handler: rec.Handler, Config: rec.config, Labels: rec.Labels}
	if rec.Phase != phaseRunning {
		return info
	}
	info.ProcessStatus, info.NetNSClosed = "running", false
	spec := &specs.Spec{Version: specs.Version, Hostname: rec.config.GetHostname(), Annotations: rec.config.GetAnnotations(),
		Linux: &specs.Linux{CgroupsPath: info.Cgroup, Sysctl: rec.config.GetLinux().GetSysctls()}}
	add := func(kind specs.LinuxNamespaceType, name string) {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces,
			specs.LinuxNamespace{Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", rec.Process.PID, name)})
	}
	if !hostNetwork(rec.config) {
		add(specs.NetworkNamespace, "net")
		add(specs.UTSNamespace, "uts")
	}
	if !hostIPC(rec.config) {
		add(specs.IPCNamespace, "ipc")
	}
	if namespaceOptions(rec.config).GetPid() != runtimeapi.NamespaceMode_NODE {
		add(specs.PIDNamespace, "pid")
	}
	if user, err := userNS(rec.config); err == nil && user != nil {
		add(specs.UserNamespace, "user")
	}
	info.Spec = spec
	return info
}

func (r *Runtime) containerInfo(c *containerState) containerInfo {
	rec := c.get()
	return containerInfo{SandboxID: rec.Sandbox, PID: rec.Process.PID, Cgroup: rec.Cgroup, Handler: rec.Handler, Config: rec.config, Labels: rec.Labels, Spec: r.specOf(c)}
}

// specOf is what a container was made from. It is not kept, for it is larger than
// all else that is known of a container, but found out anew; nil where that cannot
// be done any more, for the container's root is gone or a volume's source.
func (r *Runtime) specOf(c *containerState) *specs.Spec {
	rec := c.get()
	if rec.Phase != phaseCreated && rec.Phase != phaseRunning {
		return nil
	}
	// Building it makes the sources of mounts that are missing, which nobody
	// asks for here.
	for _, m := range rec.config.GetMounts() {
		if _, err := os.Stat(m.GetHostPath()); m.GetImage().GetImage() == "" && err != nil {
			return nil
		}
	}
	s, err := r.findSandbox(rec.Sandbox)
	if err != nil {
		return nil
	}
	image, err := r.images.Get(rec.ImageID)
	if err != nil {
		return nil
	}
	mounts, err := r.resolveMounts(c, s.get(), image.Config, true)
	if err != nil {
		return nil
	}
	spec, err := r.buildSpec(c, s.get(), image.Config, mounts)
	if err != nil {
		return nil
	}
	return spec
}

func imageInfoOf(i *images.Image) imageInfo {
	info := imageInfo{ChainID: i.ChainID(), Spec: imageSpec{Architecture: goruntime.GOARCH, OS: "linux", Config: i.Config}}
	if len(i.DiffIDs) > 0 {
		info.Spec.RootFS = &rootFS{Type: "layers", DiffIDs: i.DiffIDs}
	}
	return info
}
