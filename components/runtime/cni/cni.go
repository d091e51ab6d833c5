// Package cni connects pods by plugins of others (Container Network Interface):
// those that a configuration in a folder names. Without a configuration pods
// have the network of this project.
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

// PodLink is the name of a pod's own link.
const PodLink = "eth0"

// Plugins are the plugins of a machine. Its methods are safe for several
// goroutines.
type Plugins struct {
	dir string
	cni *libcni.CNIConfig
	// cache is where is kept what was given to pods, others match the folders in which
	// others keep that.
	cache  string
	others []string
	// collecting is held by Collect, and for reading by Add: what is being given is
	// not known to be anybody's yet.
	collecting sync.RWMutex
}

// New says where configurations are, where programs are looked for, and where
// is kept what was given to pods. Others that connect pods by the same
// configurations keep the like in the folders that the patterns of others match.
func New(confDir string, programs []string, cache string, others ...string) *Plugins {
	return &Plugins{dir: confDir, cni: libcni.NewCNIConfigWithCacheDir(programs, cache, nil), cache: filepath.Clean(cache), others: others}
}

// Network is one configuration: a list of plugins.
type Network struct{ list *libcni.NetworkConfigList }

// Name is the network's.
func (n *Network) Name() string { return n.list.Name }

// Bytes is its configuration, for Parse.
func (n *Network) Bytes() []byte { return n.list.Bytes }

// Parse reads what Bytes has told.
func Parse(data []byte) (*Network, error) {
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("reading a network configuration: %w", err)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("reading a network configuration: it has no plugins")
	}
	return &Network{list}, nil
}

// Configured returns the network of the first configuration by name that can be
// read, nil when there is no file at all. With none that can be read it is an
// error.
func (p *Plugins) Configured() (*Network, error) {
	files, err := libcni.ConfFiles(p.dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("looking for network configurations: %w", err)
	}
	var errs []error
	for _, file := range files { // in order
		n, err := load(file)
		if err == nil {
			return n, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", file, err))
	}
	return nil, errors.Join(errs...)
}

func load(file string) (*Network, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	n, err := Parse(data)
	if err == nil {
		return n, nil
	}
	// Else it is a plugin of its own, as there were before there were lists.
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

// Pod is a pod to connect.
type Pod struct {
	// ID is its sandbox's.
	ID string
	// Netns is the path of its network namespace, empty when that is gone.
	Netns string
	// Namespace, Name and UID are the pod's in Kubernetes.
	Namespace, Name, UID string
	// Capabilities are what plugins may ask for by name, such as portMappings.
	Capabilities map[string]any
}

func (p Pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Netns, IfName: PodLink, CapabilityArgs: p.Capabilities,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID}, {"K8S_POD_UID", p.UID},
		},
	}
}

// Add connects a pod and returns its addresses, in the order of the plugins.
func (p *Plugins) Add(ctx context.Context, n *Network, pod Pod) ([]netip.Addr, error) {
	p.collecting.RLock()
	raw, err := p.cni.AddNetworkList(ctx, n.list, pod.runtime())
	p.collecting.RUnlock()
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name(), err)
	}
	addrs := addressesOf(result)
	if len(addrs) == 0 {
		return nil, fmt.Errorf("network %s gave no address", n.Name())
	}
	return addrs, nil
}

// addressesOf are those of the pod's own link; where a plugin does not say of
// which link they are, all of them.
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

// Del takes back what Add gave. It may be repeated.
func (p *Plugins) Del(ctx context.Context, n *Network, pod Pod) error {
	return p.cni.DelNetworkList(ctx, n.list, pod.runtime())
}

// Check tells whether a pod is still connected as Add has connected it. Plugins
// that are too old for the question are not asked.
func (p *Plugins) Check(ctx context.Context, n *Network, pod Pod) error {
	if ok, err := version.GreaterThanOrEqualTo(n.list.CNIVersion, "0.4.0"); err != nil || !ok {
		return err
	}
	return p.cni.CheckNetworkList(ctx, n.list, pod.runtime())
}

// Status tells what keeps the plugins from connecting pods.
func (p *Plugins) Status(ctx context.Context, n *Network) error {
	return p.cni.GetStatusNetworkList(ctx, n.list)
}

// Collect takes back what was given to pods that are no more: all but those whose
// IDs alive returns, and those of others. Nobody is connected meanwhile. Plugins
// keep what they gave for a whole machine and free what is not named to them:
// where others connect pods of the same network whose folders are not known, its
// configuration has to say disableGC.
//
// https://www.cni.dev/docs/spec/#gc-clean-up-any-stale-resources
func (p *Plugins) Collect(ctx context.Context, n *Network, alive func() []string) error {
	p.collecting.Lock()
	defer p.collecting.Unlock()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range alive() {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: PodLink})
	}
	others, err := p.ofOthers(n)
	if err != nil {
		return err
	}
	args.ValidAttachments = append(args.ValidAttachments, others...)
	return p.cni.GCNetworkList(ctx, n.list, args)
}

// ofOthers is what others have of the network.
func (p *Plugins) ofOthers(n *Network) ([]types.GCAttachment, error) {
	var out []types.GCAttachment
	for _, pattern := range p.others {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("looking for others that connect pods: %w", err)
		}
		for _, dir := range dirs {
			if filepath.Clean(dir) == p.cache {
				continue
			}
			list, err := libcni.NewCNIConfigWithCacheDir(nil, dir, nil).GetCachedAttachments("")
			if err != nil {
				return nil, fmt.Errorf("reading what others have of network %s: %w", n.Name(), err)
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
