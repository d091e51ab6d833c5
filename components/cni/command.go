// Package cni implements the pod network of this project as a CNI plugin, for nodes with another
// container runtime, such as containerd. It uses the same package as the built-in runtime (podnet)
// to assign addresses and links to pods.
//
// The container runtime runs it under the name hyperkube-cni, a symlink to this program in
// /opt/cni/bin, with a network configuration such as
//
//	{"cniVersion": "1.0.0", "name": "pods", "plugins": [
//	  {"type": "hyperkube-cni", "podCIDRs": ["10.244.1.0/24"]},
//	  {"type": "portmap", "capabilities": {"portMappings": true}}]}
//
// Later plugins in the chain implement host ports and bandwidth limits.
//
// https://www.cni.dev/docs/spec/
package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hyperkube/internal/base/version"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/pod/podnet"
)

// NewCommand returns the `hyperkube cni` command.
func NewCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cni",
		Short: "CNI plugin that connects pods of other container runtimes to the pod network",
		Long: "CNI plugin that connects pods of other container runtimes to the pod network. The runtime runs it through\n" +
			"the symlink hyperkube-cni and passes the parameters in the environment and on standard input.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
	}
}

// requestTimeout limits the duration of one CNI request, including the wait for other requests.
const requestTimeout = time.Minute

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	description := "CNI plugin hyperkube-cni " + version.Get().GitVersion
	with := func(do func(context.Context, *plugin, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			p, err := open(ctx, args.StdinData)
			if err != nil {
				return err
			}
			defer p.close()
			return do(ctx, p, args)
		}
	}
	failed := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: with(add), Del: with(del), Check: with(check),
		GC:     with(func(_ context.Context, p *plugin, _ *skel.CmdArgs) error { return p.gc() }),
		Status: with(func(context.Context, *plugin, *skel.CmdArgs) error { return nil }),
	}, cniversion.All, description)
	if failed == nil {
		return nil
	}
	return errors.Join(failed, failed.Print())
}

// config is the network configuration of this plugin that the container runtime passes on standard
// input.
type config struct {
	types.PluginConf
	// PodCIDRs are the pod CIDRs of the node, one of each IP family.
	PodCIDRs []string `json:"podCIDRs"`
	// MTU of the pods' links. Zero means the MTU of the link with the default route.
	MTU int `json:"mtu,omitempty"`
	// ProxyMode is how rules are written: auto, iptables or nftables. Empty means auto.
	ProxyMode packetfilter.Mode `json:"proxyMode,omitempty"`
	// Root is the root directory of all state, as in the cluster commands.
	Root string `json:"root,omitempty"`
}

// plugin is the state of one CNI request. A file lock serializes requests, because they share the
// addresses and the bridge.
type plugin struct {
	config  config
	network *podnet.Network
	journal *hostjournal.Journal
	lock    *os.File
}

func open(ctx context.Context, data []byte) (*plugin, error) {
	p := &plugin{}
	if err := json.Unmarshal(data, &p.config); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "reading the network configuration", err.Error())
	}
	if err := cniversion.ParsePrevResult(&p.config.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "reading the result of the plugin before", err.Error())
	}
	var cidrs []netip.Prefix
	for _, text := range p.config.PodCIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, "podCIDRs", err.Error())
		}
		cidrs = append(cidrs, cidr)
	}
	l := layout.Default()
	if p.config.Root != "" {
		l = layout.Under(p.config.Root)
	}
	dir := filepath.Join(l.Run, "cni")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of pod addresses: %w", err)
	}
	var err error
	if p.lock, err = lock(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	if p.journal, err = hostjournal.Open(l.Journal("cni")); err != nil {
		p.close()
		return nil, err
	}
	mode, err := p.config.ProxyMode.SelectFor(ctx, podnet.Chains(), p.journal)
	if err != nil {
		p.close()
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "proxyMode", err.Error())
	}
	p.network, err = podnet.New(podnet.Config{
		Bridge: l.Bridge(), LinkPrefix: l.LinkPrefix, AddressDir: filepath.Join(dir, "addresses"),
		CIDRs: cidrs, MTU: p.config.MTU, Tunnels: []string{l.Tunnel(), l.WireGuard()}, OpenPorts: []int{layout.PortKubelet}, PacketFilter: mode, Journal: p.journal,
	})
	if err != nil {
		p.close()
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "podCIDRs", err.Error())
	}
	return p, nil
}

func (p *plugin) close() {
	if p.network != nil {
		p.network.Close()
	}
	if p.journal != nil {
		_ = p.journal.Close() // every change was synced
	}
	p.lock.Close()
}

// lock acquires the lock file at path, and waits while another CNI request holds it. Closing the
// file releases the lock.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("acquiring lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("acquiring lock: %w", err)
		}
	}
}

// podID returns a short ID of the pod whose sandbox is the container, from which the name of its
// host link is derived. CNI container IDs can be longer than link names.
func podID(container string) string {
	sum := sha256.Sum256([]byte(container))
	return hex.EncodeToString(sum[:16])
}

func add(ctx context.Context, p *plugin, args *skel.CmdArgs) error {
	if args.IfName != podnet.PodLink {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_IFNAME", "pods have one link of this network, named "+podnet.PodLink)
	}
	netns, err := os.Open(args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS", err.Error())
	}
	defer netns.Close()
	if err := p.network.Ensure(ctx); err != nil {
		return err
	}
	id := podID(args.ContainerID)
	addrs, err := p.network.Allocate(id)
	if err != nil {
		return err
	}
	if err := p.network.Attach(ctx, podnet.Pod{ID: id, Netns: netns}); err != nil {
		return errors.Join(err, p.network.Free(id))
	}
	return types.PrintResult(p.result(addrs, args.Netns), p.config.CNIVersion)
}

// result returns the CNI result of ADD: the pod's link in the network namespace netns, and its addresses and
// default routes in the CIDRs of the network.
func (p *plugin) result(addrs []netip.Addr, netns string) *types100.Result {
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: podnet.PodLink, Sandbox: netns}},
	}
	for _, addr := range addrs {
		for _, cidr := range p.network.CIDRs() {
			if !cidr.Contains(addr) {
				continue
			}
			gateway := net.IP(podnet.Gateway(cidr).AsSlice())
			everything := net.IPNet{IP: make(net.IP, addr.BitLen()/8), Mask: net.CIDRMask(0, addr.BitLen())}
			result.IPs = append(result.IPs, &types100.IPConfig{
				Interface: new(0), Gateway: gateway,
				Address: net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(cidr.Bits(), addr.BitLen())},
			})
			result.Routes = append(result.Routes, &types.Route{Dst: everything, GW: gateway})
		}
	}
	return result
}

func del(ctx context.Context, p *plugin, args *skel.CmdArgs) error {
	id := podID(args.ContainerID)
	if err := p.network.Detach(ctx, id); err != nil {
		return err
	}
	return p.network.Free(id)
}

// check implements the CNI CHECK command: it returns an error if the pod has no address or no link.
func check(_ context.Context, p *plugin, args *skel.CmdArgs) error {
	id := podID(args.ContainerID)
	if len(p.network.Addresses(id)) == 0 {
		return types.NewError(types.ErrUnknownContainer, "the pod has no address", args.ContainerID)
	}
	if _, err := p.network.Traffic(id); err != nil {
		return types.NewError(types.ErrUnknownContainer, "the pod has no link", err.Error())
	}
	return nil
}

// gc implements the CNI GC command: it releases the addresses and removes the links of all pods
// that are not in the runtime's list of valid attachments.
func (p *plugin) gc() error {
	alive := map[string]bool{}
	for _, a := range p.config.ValidAttachments {
		alive[podID(a.ContainerID)] = true
	}
	return p.network.Reconcile(func(id string) bool { return alive[id] })
}
