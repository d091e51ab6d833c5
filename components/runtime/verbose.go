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

// Verbose status information, as shown by `crictl inspect`. CRI does not define its content.
// Scripts of operators expect the namespaces, the cgroup and the command under containerd's names.

// sandboxInfo is the verbose status of a sandbox, shown by `crictl inspectp`. Its JSON names are those of containerd.
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

// containerInfo is the verbose status of a container, shown by `crictl inspect`. Its JSON names are those of
// containerd.
type containerInfo struct {
	SandboxID string                      `json:"sandboxID"`
	PID       int                         `json:"pid"`
	Cgroup    string                      `json:"cgroup"`
	Handler   string                      `json:"runtimeHandler"`
	Config    *runtimeapi.ContainerConfig `json:"config"`
	Labels    *selinux.Labels             `json:"selinux,omitempty"`
	// Spec is only set for running and created containers.
	Spec *specs.Spec `json:"runtimeSpec,omitempty"`
}

// imageInfo is the verbose status of an image, shown by `crictl inspecti`. Its JSON names are those of containerd.
type imageInfo struct {
	// ChainID is the chain ID of all layers. It and RootFS are missing for images pulled by
	// versions that did not store diff IDs.
	ChainID string    `json:"chainID,omitempty"`
	Spec    imageSpec `json:"imageSpec"`
}

// imageSpec contains the stored part of an image configuration, in the same format.
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

// encodeVerbose encodes a sandboxInfo, containerInfo or imageInfo as the info map of a CRI status response.
func encodeVerbose(info any) (map[string]string, error) {
	data, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("encoding verbose status: %w", err)
	}
	return map[string]string{"info": string(data)}, nil
}

func (ss *sandboxService) info(rec sandboxRecord) sandboxInfo {
	info := sandboxInfo{PID: rec.Process.PID, ProcessStatus: "stopped", NetNSClosed: true, Cgroup: ss.sandboxCgroup(rec.config, rec.ID),
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

func (cs *containerService) info(c *containerState) containerInfo {
	rec := c.get()
	return containerInfo{SandboxID: rec.Sandbox, PID: rec.Process.PID, Cgroup: rec.Cgroup, Handler: rec.Handler, Config: rec.config, Labels: rec.Labels, Spec: cs.specOf(c)}
}

// specOf builds the OCI specification of a container for its verbose status. The specification is not stored, because
// it is larger than the other state of a container. specOf returns nil if the container has exited or the specification
// cannot be built, for example because the source of a volume does not exist any more.
func (cs *containerService) specOf(c *containerState) *specs.Spec {
	rec := c.get()
	if rec.Phase != phaseCreated && rec.Phase != phaseRunning {
		return nil
	}
	// Building the specification would create missing mount sources.
	for _, m := range rec.config.GetMounts() {
		if _, err := os.Stat(m.GetHostPath()); m.GetImage().GetImage() == "" && err != nil {
			return nil
		}
	}
	s, err := cs.inventory.findSandbox(rec.Sandbox)
	if err != nil {
		return nil
	}
	image, err := cs.images.Get(rec.ImageID)
	if err != nil {
		return nil
	}
	mounts, err := cs.specs.resolveMounts(c, s.get(), image.Config, true)
	if err != nil {
		return nil
	}
	spec, err := cs.specs.build(c, s.get(), image.Config, mounts)
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
