//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/cni"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/pod/podnet"
)

// podNetwork connects the sandboxes of pods to the network. CNI plugins do it if the CNI configuration directory
// contains a configuration; otherwise the built-in network does. Its methods are safe for concurrent use.
type podNetwork struct {
	*host
	builtin   *podnet.Network
	plugins   *cni.Plugins
	inventory *inventory

	// setup serializes setups of the built-in network.
	setup sync.Mutex

	mu  sync.Mutex // guards the fields below
	err error      // why the built-in network is not ready, or nil
	// cniAttached contains the sandboxes that this process has connected with CNI plugins.
	cniAttached map[string]bool
}

// newPodNetwork creates the built-in network with the pod CIDRs that the kubelet has set most recently, or those of
// cfg, and the CNI plugins. It does not change the host. journal records later changes of the host and may be nil. The
// caller must close the built-in network.
func newPodNetwork(h *host, cfg *Config, inventory *inventory, journal *hostjournal.Journal) (*podNetwork, error) {
	cidrs := cfg.PodCIDRs
	if data, err := os.ReadFile(h.cidrFile()); err == nil {
		if saved, err := parseCIDRs(strings.TrimSpace(string(data))); err == nil {
			cidrs = saved
		}
	}
	builtin, err := podnet.New(podnet.Config{
		Bridge: cfg.LinkPrefix + "-br0", LinkPrefix: cfg.LinkPrefix, AddressDir: h.state("addresses"),
		CIDRs: cidrs, MTU: cfg.MTU, Tunnels: []string{cfg.LinkPrefix + "-vxlan", cfg.LinkPrefix + "-wg"}, OpenPorts: []int{layout.PortKubelet}, PacketFilter: cfg.PacketFilter, Journal: journal, Log: h.log,
	})
	if err != nil {
		return nil, err
	}
	return &podNetwork{
		host: h, builtin: builtin, inventory: inventory, cniAttached: map[string]bool{},
		plugins: cni.New(cfg.CNIConfDir, cfg.CNIBinDirs, h.path("cni"), otherCNICaches(h.root)...),
		err:     errors.New("the pod network is being set up"),
	}, nil
}

func (pn *podNetwork) setErr(err error) {
	pn.mu.Lock()
	defer pn.mu.Unlock()
	pn.err = err
}

func (pn *podNetwork) getErr() error {
	pn.mu.Lock()
	defer pn.mu.Unlock()
	return pn.err
}

// allocate reserves the addresses of a new sandbox in the built-in network, before the sandbox is connected. id is the
// sandbox ID.
func (pn *podNetwork) allocate(id string) error {
	_, err := pn.builtin.Allocate(id)
	return err
}

// addresses returns the addresses that allocate has reserved for a sandbox. It is empty for sandboxes on the host's
// network or that CNI plugins connect.
func (pn *podNetwork) addresses(id string) []string {
	var list []string
	for _, addr := range pn.builtin.Addresses(id) {
		list = append(list, addr.String())
	}
	return list
}

// free releases the addresses of a sandbox in the built-in network for other pods. It is idempotent.
func (pn *podNetwork) free(id string) error { return pn.builtin.Free(id) }

// disconnect removes a sandbox's network link or calls its CNI plugins to do so. It does nothing for a sandbox on the
// host's network, and is idempotent. Addresses in the built-in network stay reserved until free.
func (pn *podNetwork) disconnect(ctx context.Context, s *sandboxState) error {
	rec := s.get()
	switch {
	case hostNetwork(rec.config):
		return nil
	case len(rec.CNI) > 0:
		return pn.detachCNI(ctx, s)
	}
	return pn.builtin.Detach(ctx, rec.ID)
}

// setCIDRs sets the node's pod CIDRs when the kubelet has received them, and sets up the built-in network with them.
// While CNI plugins are configured, the CIDRs are only stored for later. text is the original form of cidrs, which is
// written to a file for the next runtime process.
func (pn *podNetwork) setCIDRs(ctx context.Context, cidrs []netip.Prefix, text string) error {
	external, err := pn.external()
	if err != nil {
		return err
	}
	pn.setup.Lock()
	defer pn.setup.Unlock()
	if external == nil {
		err = pn.builtin.SetCIDRs(ctx, cidrs)
	} else {
		err = pn.builtin.PlanCIDRs(cidrs) // used when no CNI plugins are configured any more
	}
	if err != nil {
		return err
	}
	if err := atomicfile.Write(atomicfile.File{Path: pn.cidrFile(), Data: []byte(text), Mode: 0o600}); err != nil {
		return fmt.Errorf("storing pod CIDR: %w", err)
	}
	if external == nil {
		pn.setErr(nil)
	}
	return nil
}

// choose sets up the built-in network when the runtime starts. If CNI plugins are configured, it reconciles their
// attachments instead. Run calls it in the background, so that it does not delay the first CRI calls.
func (pn *podNetwork) choose(ctx context.Context) {
	if n, _ := pn.external(); n == nil {
		pn.setUp(ctx)
		return
	}
	pn.setErr(errCNINetwork)
	pn.reconcileCNI(ctx)
}

// setUp sets up the built-in network and publishes the host ports of adopted pods again. The outcome is the
// NetworkReady condition. A missing pod CIDR is not logged, because the kubelet sets it later.
func (pn *podNetwork) setUp(ctx context.Context) {
	pn.setup.Lock()
	defer pn.setup.Unlock()
	err := pn.builtin.Setup(ctx)
	if err == nil {
		err = pn.publishAdoptedPorts(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, podnet.ErrNoCIDR) {
		pn.log.Error("setting up the node's built-in pod network failed; the node is NotReady and pods without host network cannot be created: resolve the error and restart the container runtime", "err", err)
	}
	pn.setErr(err)
}

// parseCIDRs parses the comma-separated pod CIDRs of a CRI request. It returns an error for an empty text.
func parseCIDRs(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("invalid pod CIDR: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

// connect sets the hostname and sysctls of a new sandbox and connects it to the network. external is the CNI network,
// or nil for the built-in network. A sandbox on the host's network is not connected.
func (pn *podNetwork) connect(ctx context.Context, s *sandboxState, hostname string, external *cni.Network) error {
	config := s.get().config
	shared := hostNetwork(config)
	user, err := userNS(config)
	if err != nil {
		return err
	}
	inside := func() error {
		return sandbox.Configure(s.handle, hostname, !shared, !hostIPC(config), user, config.GetLinux().GetSysctls())
	}
	netns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.handle.PID()))
	if err != nil {
		return fmt.Errorf("opening the sandbox's network namespace: %w", err)
	}
	defer netns.Close()
	if shared {
		if hostIPC(config) || len(config.GetLinux().GetSysctls()) == 0 {
			return nil
		}
		return podnet.Loopback(netns, inside)
	}
	if external != nil {
		if err := pn.attachCNI(ctx, s, external, netns, inside); err != nil {
			return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
		}
		return nil
	}
	ports, err := portMappings(config.GetPortMappings())
	if err != nil {
		return err
	}
	bandwidth, err := cni.BandwidthOf(config.GetAnnotations())
	if err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
	}
	pod := podnet.Pod{ID: s.id, Netns: netns, Ports: ports, Ingress: bandwidth.Ingress, Egress: bandwidth.Egress, Inside: inside}
	if err := pn.builtin.Attach(ctx, pod); err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.id, err)
	}
	return nil
}

// ensureBuiltin returns nil if the built-in network can connect pods, or else the reason why not. If CNI plugins
// connected pods until now and their configuration was removed, it sets up the built-in network first.
func (pn *podNetwork) ensureBuiltin(ctx context.Context) error {
	err := pn.getErr()
	if errors.Is(err, errCNINetwork) {
		pn.setUp(ctx)
		err = pn.getErr()
	}
	return err
}

// condition returns the CRI condition NetworkReady, from which the kubelet derives whether the node is ready. With CNI
// plugins it asks the plugins for their status. The messages are those of containerd, because users search for them.
func (pn *podNetwork) condition(ctx context.Context) *runtimeapi.RuntimeCondition {
	n, err := pn.external()
	switch {
	case n != nil:
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err = pn.plugins.Status(ask, n)
	case err != nil:
		err = fmt.Errorf("cni plugin not initialized: %w", err)
	default:
		err = pn.getErr()
		if errors.Is(err, errCNINetwork) {
			err = nil // it is set up when the first pod is created
		}
	}
	c := &runtimeapi.RuntimeCondition{Type: "NetworkReady", Status: err == nil}
	if err != nil {
		c.Reason, c.Message = "NetworkPluginNotReady", "Network plugin returns error: "+err.Error()
	}
	return c
}

// publishAdoptedPorts publishes the host ports of the pods that a previous runtime process has connected to the
// built-in network, because setting up the network replaces its packet filter rules.
func (pn *podNetwork) publishAdoptedPorts(ctx context.Context) error {
	for _, s := range pn.inventory.allSandboxes() {
		rec := s.get()
		if rec.Phase != phaseRunning || hostNetwork(rec.config) || len(rec.CNI) > 0 {
			continue
		}
		ports, err := portMappings(rec.config.GetPortMappings())
		if err != nil || len(ports) == 0 {
			continue
		}
		if err := pn.builtin.SetPorts(ctx, rec.ID, pn.builtin.Addresses(rec.ID), ports); err != nil {
			return err
		}
	}
	return nil
}
