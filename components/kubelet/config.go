// Package kubelet runs the pods that are bound to this node, through any
// container runtime that serves CRI v1, and tells the API server of them and
// of the node.
//
// The parts, from the pure to the worldly: podstate decides what happens to a
// pod; env, dnsconf, volume, images, probe and podlogs each know one thing that
// a pod needs; pods does what podstate decided, one goroutine a pod; nodestatus
// keeps the Node and its lease; server answers logs, exec and stats. This
// package puts them together.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/podstate"
	"hyperkube/components/kubelet/topology"
	"hyperkube/internal/client"
	"hyperkube/internal/featuregates"
	"hyperkube/internal/hostchange"
	"hyperkube/internal/layout"
	"hyperkube/internal/zpages"
)

// Policies rules the network of pods. Its methods are called by several goroutines.
type Policies interface {
	// Expect returns once the rules of a pod hold for its addresses.
	Expect(ctx context.Context, pod *v1.Pod, ips []string) error
	// Forget says that nothing of a pod runs any more.
	Forget(pod types.UID)
}

// Config is all that a kubelet needs to know, what belongs together in a part of its
// own. New fills what is left empty as the comments say, and validates it.
type Config struct {
	// NodeName is the node's name in the API. Required.
	NodeName string
	// Layout says where everything is. The zero value is layout.Default().
	Layout layout.Node
	// Clients is the way to the API, as user system:node:NodeName. Nil for a
	// kubelet that runs static pods alone.
	Clients *client.Clients
	// Informers to use instead of the kubelet's own.
	Informers Informers
	// Endpoint of the container runtime, a socket's path; Layout's by default.
	Endpoint string
	// RuntimeTimeout is how long the runtime may take for one thing, but for pulls;
	// 2 minutes.
	RuntimeTimeout time.Duration
	// Policies rules the network of pods; nil: nobody does, or what does asks nobody to wait.
	Policies Policies
	// ServicesReady is closed once pods reach services; until then the node is
	// not ready, for the first packet of a connection that comes earlier keeps
	// the whole connection from its way. Nil: it is not waited for.
	ServicesReady <-chan struct{}

	Node       NodeConfig
	Machine    MachineConfig
	StaticPods StaticPods
	Containers ContainerConfig
	DNS        DNSConfig
	Images     ImageConfig
	Logs       LogConfig
	Eviction   EvictionConfig
	Reserved   ReservedConfig
	Cgroups    CgroupConfig
	CPUs       CPUConfig
	Memory     MemoryConfig
	Topology   TopologyPolicy
	Server     ServerConfig
	Access     AccessConfig
	Events     EventConfig

	// Gates are feature gates that were set.
	Gates featuregates.Set
	// Tracing is where it is told how long things take; nil: nowhere.
	Tracing *tracingapi.TracingConfiguration
	// Metrics are told with the kubelet's own; each has names of its own.
	Metrics []prometheus.Collector
	// Flags are those with which the kubelet was started; it may be nil.
	Flags zpages.Flags
	// Level is changed by /debug/flags/v; nil: it is as it is.
	Level *slog.LevelVar
	// File is what /configz shows; nil: what follows from the rest.
	File *kubeletv1beta1.KubeletConfiguration
	// Journal records changes to the host; nil records nothing.
	Journal *hostchange.Journal
	// Log is where the kubelet says what it does; slog.Default() by default.
	Log *slog.Logger
}

// complete fills what is empty and validates.
func (c *Config) complete() error {
	if c.Layout == (layout.Node{}) {
		c.Layout = layout.Default()
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	c.Endpoint = cmp.Or(c.Endpoint, c.Layout.RuntimeSocket())
	c.RuntimeTimeout = cmp.Or(c.RuntimeTimeout, 2*time.Minute)
	c.Node.complete()
	c.Machine.complete()
	c.StaticPods.complete()
	c.Containers.complete()
	c.DNS.complete()
	c.Images.complete()
	c.Logs.complete()
	c.Eviction.complete()
	c.Reserved.complete(!c.Cgroups.Off)
	c.Server.complete()
	c.Access.complete()
	c.Events.complete()
	return c.validate()
}

func (c *Config) validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("the node's name must be given"))
	} else if list := validation.IsDNS1123Subdomain(c.NodeName); len(list) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(list, "; ")))
	}
	if !filepath.IsAbs(strings.TrimPrefix(c.Endpoint, "unix://")) {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q: want unix:// and an absolute path", c.Endpoint))
	}
	if c.Node.MaxPods < 0 {
		errs = append(errs, errors.New("maxPods must not be negative"))
	}
	if c.Node.PodsPerCore < 0 {
		errs = append(errs, errors.New("podsPerCore must not be negative"))
	}
	if c.Containers.CrashMax < time.Second || c.Containers.CrashMax > podstate.CrashMax {
		errs = append(errs, fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and %v", podstate.CrashMax))
	}
	errs = append(errs, c.Reserved.validate(!c.Cgroups.Off), c.validateLimits())
	_, _, err := topology.Check(c.Topology.Policy, c.Topology.Scope, c.Topology.Options)
	errs = append(errs, err)
	for _, p := range []int{c.Server.Port, c.Server.HealthzPort} {
		if p > 65535 {
			errs = append(errs, fmt.Errorf("port %d is not one", p))
		}
	}
	if c.Logs.MaxFiles < 2 {
		errs = append(errs, errors.New("containerLogMaxFiles must be greater than 1"))
	}
	if c.Images.GCHigh < c.Images.GCLow || c.Images.GCHigh > 100 || c.Images.GCLow < 0 {
		errs = append(errs, errors.New("imageGCHighThresholdPercent must be at least imageGCLowThresholdPercent, both percentages"))
	}
	for _, ip := range c.DNS.Servers {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, fmt.Errorf("cluster DNS: %w", err))
		}
	}
	if c.Eviction.thresholds, err = c.Eviction.Settings.Thresholds(); err != nil {
		errs = append(errs, err)
	}
	for key, value := range c.Node.Labels {
		if list := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(list) > 0 {
			errs = append(errs, fmt.Errorf("node label %s=%s: %s", key, value, strings.Join(list, "; ")))
		}
	}
	return errors.Join(errs...)
}
