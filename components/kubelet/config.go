// Package kubelet runs the pods that are bound to this node, through any container runtime that
// serves CRI v1, and reports their status and the node's to the API server.
//
// The parts, from pure functions to those that change the host: podstate computes what happens to a
// pod; env, dnsconf, volume, images, probe and podlogs each provide one thing that a pod needs;
// pods carries out what podstate computed, with one goroutine per pod; nodestatus updates the Node
// and its lease; server serves logs, exec and stats. This package composes them.
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

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/resources/topology"
	"hyperkube/internal/base/featuregates"
	"hyperkube/internal/client"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/zpages"
)

// Policies enforces network policies for pods. Its methods must be safe for concurrent use.
type Policies interface {
	// Expect returns when the policies of a pod are in force for its addresses.
	Expect(ctx context.Context, pod *v1.Pod, ips []string) error
	// Forget is called when nothing of the pod runs any more.
	Forget(pod types.UID)
}

// Config is the configuration of a kubelet, grouped by topic. New sets the defaults that the
// comments state, and validates it.
type Config struct {
	// NodeName is the node's name in the API. Required.
	NodeName string
	// Layout defines the paths of all files. The zero value means layout.Default().
	Layout layout.Node
	// Clients are the API clients, authenticated as system:node:NodeName. Nil for a kubelet that
	// runs only static pods.
	Clients *client.Clients
	// Informers are used instead of informers of the kubelet.
	Informers Informers
	// Endpoint is the socket path of the container runtime. The default is that of Layout.
	Endpoint string
	// RuntimeTimeout is the timeout of a CRI call, except for image pulls. The default is 2
	// minutes.
	RuntimeTimeout time.Duration
	// Policies enforces network policies. If it is nil, pods do not wait for network policies.
	Policies Policies
	// ServicesReady is closed when pods can reach services. Until then the node is not ready,
	// because a connection whose first packet precedes the service rules stays broken. If it is
	// nil, the kubelet does not wait.
	ServicesReady <-chan struct{}

	Node       NodeConfig
	Machine    MachineConfig
	StaticPods StaticPodConfig
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

	// Gates are the feature gates that were set explicitly.
	Gates featuregates.Set
	// Tracing configures the export of traces. Nil disables it.
	Tracing *tracingapi.TracingConfiguration
	// Metrics are exported together with the kubelet's own. Metric names must be unique.
	Metrics []prometheus.Collector
	// Flags are the kubelet's command line flags, shown by /flagz. It may be nil.
	Flags zpages.Flags
	// Level is the log level that /debug/flags/v changes. If it is nil, the level cannot be
	// changed.
	Level *slog.LevelVar
	// File is the configuration that /configz shows. If it is nil, it is derived from the other
	// fields.
	File *kubeletv1beta1.KubeletConfiguration
	// Journal records changes to the host. If it is nil, they are not recorded.
	Journal *hostjournal.Journal
	// Log is the kubelet's logger. The default is slog.Default().
	Log *slog.Logger
}

// complete sets defaults and validates the configuration.
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
		errs = append(errs, errors.New("a node name is required"))
	} else if list := validation.IsDNS1123Subdomain(c.NodeName); len(list) > 0 {
		errs = append(errs, fmt.Errorf("node name %q: %s", c.NodeName, strings.Join(list, "; ")))
	}
	if !filepath.IsAbs(strings.TrimPrefix(c.Endpoint, "unix://")) {
		errs = append(errs, fmt.Errorf("container runtime endpoint %q: must be unix:// and an absolute path", c.Endpoint))
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
			errs = append(errs, fmt.Errorf("port %d is out of range", p))
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
