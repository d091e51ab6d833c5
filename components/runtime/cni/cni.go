// Package cni connects pods with CNI plugins (Container Network Interface), if the CNI
// configuration directory contains a configuration. Otherwise pods use the built-in network.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/
// https://www.cni.dev/docs/spec/
package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// PodLink is the name of the network interface in a pod.
const PodLink = "eth0"

// Plugins runs the CNI plugins that are installed on this machine. Its methods are safe for concurrent use.
type Plugins struct {
	dir string
	cni *libcni.CNIConfig
	// cache is the directory of cached CNI results. others are glob patterns of the cache
	// directories of other runtimes.
	cache       string
	otherCaches []string
	// gcMu is locked by GC, and read-locked by Add, because GC would release an attachment that is
	// being added and not in the cache yet.
	gcMu sync.RWMutex
}

// New returns the Plugins for the configuration directory confDir. programs are the directories of
// plugin binaries and cache is the directory for cached results. Other runtimes may use the same
// configurations; otherCaches are glob patterns of their cache directories.
func New(confDir string, programs []string, cache string, otherCaches ...string) *Plugins {
	return &Plugins{dir: confDir, cni: libcni.NewCNIConfigWithCacheDir(programs, cache, nil), cache: filepath.Clean(cache), otherCaches: otherCaches}
}

// Network is a CNI network configuration: the list of plugins that are called one after the other for each pod.
type Network struct{ list *libcni.NetworkConfigList }

// Name returns the name of the network.
func (n *Network) Name() string { return n.list.Name }

// Bytes returns the configuration in JSON. The runtime stores it with the sandbox, so that Parse can restore the
// Network when the sandbox is disconnected, even if the configuration file has changed.
func (n *Network) Bytes() []byte { return n.list.Bytes }

// Parse returns the Network with a configuration that Bytes has returned. It returns an error if the configuration is
// invalid or has no plugins.
func Parse(data []byte) (*Network, error) {
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("parsing network configuration: %w", err)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("parsing network configuration: no plugins")
	}
	return &Network{list}, nil
}

// Configured returns the network of the first valid configuration, sorted by file name. It returns
// nil if there are no configuration files, and an error if all of them are invalid.
func (p *Plugins) Configured() (*Network, error) {
	files, err := libcni.ConfFiles(p.dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("listing network configurations: %w", err)
	}
	var errs []error
	for _, file := range files { // sorted by name
		n, err := load(file)
		if err == nil {
			return n, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", file, err))
	}
	return nil, errors.Join(errs...)
}

// load reads a configuration file with a list of plugins, or with a single plugin. It returns an error if it is
// neither.
func load(file string) (*Network, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	n, err := Parse(data)
	if err == nil {
		return n, nil
	}
	// The file may contain a single plugin instead of a list, as in older CNI versions.
	conf, confErr := libcni.NetworkPluginConfFromBytes(data)
	if confErr != nil || conf.Network.Type == "" {
		return nil, err
	}
	list, err := libcni.ConfListFromConf(conf)
	if err != nil {
		return nil, err
	}
	return &Network{list}, nil
}

// Pod has the parameters of a pod for calls of CNI plugins.
type Pod struct {
	// ID is the sandbox ID.
	ID string
	// Netns is the path of its network namespace. It is empty if the namespace no longer exists.
	Netns string
	// Namespace, Name and UID are those of the Kubernetes pod.
	Namespace, Name, UID string
	// Capabilities are the capability arguments for plugins, by name, such as portMappings.
	Capabilities map[string]any
}

// runtime returns the parameters of the pod in the form of libcni.
func (p Pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Netns, IfName: PodLink, CapabilityArgs: p.Capabilities,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID}, {"K8S_POD_UID", p.UID},
		},
	}
}

// Add runs the CNI ADD command of each plugin of n to connect a pod. It returns the addresses of the pod in the order
// of the plugins' result. It returns an error if the plugins assign no address. After an error, the caller must call
// Del.
func (p *Plugins) Add(ctx context.Context, n *Network, pod Pod) ([]netip.Addr, error) {
	p.gcMu.RLock()
	raw, err := p.cni.AddNetworkList(ctx, n.list, pod.runtime())
	p.gcMu.RUnlock()
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("parsing result of network %s: %w", n.Name(), err)
	}
	addrs := addressesOf(result)
	if len(addrs) == 0 {
		return nil, fmt.Errorf("network %s assigned no address", n.Name())
	}
	return addrs, nil
}

// addressesOf returns the addresses in the result of CNI plugins that belong to the pod's interface. Addresses that the
// result does not assign to an interface are included.
func addressesOf(result *types100.Result) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil {
			if *i < 0 || *i >= len(result.Interfaces) {
				continue
			}
			if link := result.Interfaces[*i]; link.Sandbox == "" || link.Name != PodLink {
				continue
			}
		}
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}

// Del runs the CNI DEL command, which releases everything that Add has allocated for a pod, also if Add has failed. It
// is idempotent.
func (p *Plugins) Del(ctx context.Context, n *Network, pod Pod) error {
	return p.cni.DelNetworkList(ctx, n.list, pod.runtime())
}

// Check runs the CNI CHECK command, which returns an error if a pod is no longer connected as Add has connected it. It
// does nothing if the CNI version of the configuration does not support CHECK.
func (p *Plugins) Check(ctx context.Context, n *Network, pod Pod) error {
	if ok, err := version.GreaterThanOrEqualTo(n.list.CNIVersion, "0.4.0"); err != nil || !ok {
		return err
	}
	return p.cni.CheckNetworkList(ctx, n.list, pod.runtime())
}

// Status runs the CNI STATUS command, which returns an error if the plugins are not ready to connect pods. It
// does nothing if the CNI version of the configuration is below 1.1.0.
func (p *Plugins) Status(ctx context.Context, n *Network) error {
	return p.cni.GetStatusNetworkList(ctx, n.list)
}

// GC runs the CNI GC command, which releases the network attachments of pods that do not exist any more. It
// does nothing if the configuration sets disableGC. alive returns the IDs of the sandboxes to keep; it is
// called while Add is blocked. Plugins track attachments per machine and release all that are not listed as
// valid, so GC also lists those in the caches of other runtimes. If other runtimes with unknown cache
// directories use the same network, its configuration must set disableGC.
//
// https://www.cni.dev/docs/spec/#gc-clean-up-any-stale-resources
func (p *Plugins) GC(ctx context.Context, n *Network, alive func() []string) error {
	p.gcMu.Lock()
	defer p.gcMu.Unlock()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range alive() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: PodLink})
	}
	otherAttachments, err := p.otherAttachments(n)
	if err != nil {
		return err
	}
	args.ValidAttachments = append(args.ValidAttachments, otherAttachments...)
	return p.cni.GCNetworkList(ctx, n.list, args)
}

// otherAttachments returns the attachments to the network n in the cache directories of other runtimes. One
// that cannot be read is an error.
func (p *Plugins) otherAttachments(n *Network) ([]types.GCAttachment, error) {
	var out []types.GCAttachment
	for _, pattern := range p.otherCaches {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("listing CNI caches of other runtimes: %w", err)
		}
		for _, dir := range dirs {
			if filepath.Clean(dir) == p.cache {
				continue
			}
			list, err := libcni.NewCNIConfigWithCacheDir(nil, dir, nil).GetCachedAttachments("")
			if err != nil {
				return nil, fmt.Errorf("reading attachments of other runtimes to network %s: %w", n.Name(), err)
			}
			for _, a := range list {
				if a.Network == n.Name() {
					out = append(out, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
				}
			}
		}
	}
	return out, nil
}
