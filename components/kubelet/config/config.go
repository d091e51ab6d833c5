// Package config is the configuration of the kubelet: the command line flags, the KubeletConfiguration
// file and its drop-in files, the defaults, the validation, and the effective configuration.
//
// Only the package that composes the kubelet, and the components that configure one, import it. The
// kubelet's parts do not: each has its own configuration, so that it depends only on what it uses.
package config

import (
	"cmp"
	"time"

	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/internal/base/featuregates"
	"hyperkube/internal/host/layout"
)

// Config is the configuration of a kubelet, grouped by topic. Complete sets the defaults that the
// comments state; defaults.go defines their values.
type Config struct {
	// NodeName is the node's name in the API. Required.
	NodeName string
	// Layout defines the paths of all files. The zero value means layout.Default().
	Layout layout.Node

	Runtime    Runtime
	Node       Node
	Machine    Machine
	StaticPods StaticPods
	Containers Containers
	DNS        DNS
	Images     Images
	Logs       Logs
	Eviction   Eviction
	Reserved   Reserved
	Cgroups    Cgroups
	Resources  Resources
	Server     Server
	Access     Access
	Events     Events

	// Gates are the feature gates that were set explicitly.
	Gates featuregates.Set
	// Tracing configures the export of traces. Nil disables it.
	Tracing *tracingapi.TracingConfiguration
	// File is the configuration that /configz shows. If it is nil, it is derived from the other
	// fields.
	File *kubeletv1beta1.KubeletConfiguration
}

// Complete sets the defaults of unset fields and validates the configuration. It may be called again.
func (c *Config) Complete() error {
	c.setDefaults()
	return c.validate()
}

// setDefaults sets the defaults of unset fields of all topics.
func (c *Config) setDefaults() {
	if c.Layout == (layout.Node{}) {
		c.Layout = layout.Default()
	}
	c.Runtime.complete(c.Layout)
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
}

// Runtime configures the connection to the container runtime: the CRI socket and the timeout of calls.
type Runtime struct {
	// Endpoint is the socket path of the container runtime. The default is that of Layout.
	Endpoint string
	// Timeout is the timeout of a CRI call, except for image pulls. The default is 2 minutes.
	Timeout time.Duration
}

// complete sets the defaults of unset fields. l has the default socket.
func (c *Runtime) complete(l layout.Node) {
	c.Endpoint = cmp.Or(c.Endpoint, l.RuntimeSocket())
	c.Timeout = cmp.Or(c.Timeout, defaultRuntimeTimeout)
}
