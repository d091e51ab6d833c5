// Package local is a cloud provider for machines without a cloud: servers in a rack, or the nodes that `hyperkube up
// --nodes` creates. A configuration file may list the machines; without one, the machine of each Node exists. Load
// balancers have the addresses of the nodes, at which the service proxies accept connections. Routes are those that the
// pod network of each node creates.
package local

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	cloudprovider "k8s.io/cloud-provider"

	"hyperkube/internal/base/strictyaml"
)

// Name is the name of the provider. Provider IDs are Name, "://" and the name of the node.
const Name = "local"

// Configuration is the content of the configuration file, in YAML.
type Configuration struct {
	// Region, Zone and InstanceType are those of machines that specify no others. They become labels of the Nodes.
	Region       string `json:"region,omitempty"`
	Zone         string `json:"zone,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	// Machines are all machines of the cluster. If it is empty, the machine of each Node exists.
	Machines []Machine `json:"machines,omitempty"`
}

// Machine is a machine of the cluster.
type Machine struct {
	// Name is the name of the Node of the machine.
	Name         string `json:"name"`
	Region       string `json:"region,omitempty"`
	Zone         string `json:"zone,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	// Addresses are addresses of the Node in addition to the internal addresses with which its kubelet was started.
	Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
	// Stopped is true for a machine that is turned off. If its Node is not ready, it gets a taint, so that pods and
	// volumes move to other nodes.
	Stopped bool `json:"stopped,omitempty"`
}

// Provider implements the interface of cloud providers. It is safe for concurrent use after SetInformers.
type Provider struct {
	path     string // of the configuration file; empty means none
	balancer *balancer
	routes   *routes
}

var (
	_ cloudprovider.Interface    = (*Provider)(nil)
	_ cloudprovider.InformerUser = (*Provider)(nil)
	_ cloudprovider.InstancesV2  = (*Provider)(nil)
)

// New returns a provider with the configuration file path, or without one if path is empty. The file is read again at
// each use, so changes take effect without a restart. It returns an error if the file is not valid.
func New(path string) (*Provider, error) {
	p := &Provider{path: path, balancer: &balancer{}, routes: &routes{}}
	_, err := p.load()
	return p, err
}

// load reads the configuration file.
func (p *Provider) load() (Configuration, error) {
	if p.path == "" {
		return Configuration{}, nil
	}
	data, err := os.ReadFile(p.path)
	if err != nil {
		return Configuration{}, fmt.Errorf("reading configuration of the cloud provider: %w", err)
	}
	docs, err := strictyaml.Parse(p.path, data)
	if err != nil {
		return Configuration{}, err
	}
	if len(docs) != 1 {
		return Configuration{}, fmt.Errorf("%s has %d YAML documents, expected one", p.path, len(docs))
	}
	cfg, errs := strictyaml.Decode[Configuration](docs[0])
	if len(errs) > 0 {
		return Configuration{}, errs[0]
	}
	seen := map[string]bool{}
	for i, m := range cfg.Machines {
		if m.Name == "" {
			return *cfg, fmt.Errorf("%s: machines[%d].name is required", p.path, i)
		}
		if seen[m.Name] {
			return *cfg, fmt.Errorf("%s: machines[%d].name: %q is listed twice", p.path, i, m.Name)
		}
		seen[m.Name] = true
	}
	return *cfg, nil
}

// find returns the machine of a Node with the defaults of the configuration, or false if it does not exist.
func (c *Configuration) find(node string) (Machine, bool) {
	found, ok := Machine{Name: node}, len(c.Machines) == 0
	for _, m := range c.Machines {
		if m.Name == node {
			found, ok = m, true
		}
	}
	for to, value := range map[*string]string{&found.Region: c.Region, &found.Zone: c.Zone, &found.InstanceType: c.InstanceType} {
		if *to == "" {
			*to = value
		}
	}
	return found, ok
}

// SetInformers implements cloudprovider.InformerUser. It must be called before the provider is used.
func (p *Provider) SetInformers(factory informers.SharedInformerFactory) {
	core := factory.Core().V1()
	p.balancer.services, p.routes.nodes = core.Services().Lister(), core.Nodes().Lister()
}

// Initialize implements cloudprovider.Interface. It must be called before load balancers are updated. The provider runs
// nothing in the background.
func (p *Provider) Initialize(clients cloudprovider.ControllerClientBuilder, _ <-chan struct{}) {
	p.balancer.kube = clients.ClientOrDie(Name)
}

// LoadBalancer implements cloudprovider.Interface.
func (p *Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return p.balancer, true }

// Instances implements cloudprovider.Interface. InstancesV2 replaces it.
func (p *Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// InstancesV2 implements cloudprovider.Interface.
func (p *Provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return p, true }

// Zones implements cloudprovider.Interface. InstanceMetadata contains the zone.
func (p *Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface.
func (p *Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes implements cloudprovider.Interface.
func (p *Provider) Routes() (cloudprovider.Routes, bool) { return p.routes, true }

// ProviderName implements cloudprovider.Interface.
func (p *Provider) ProviderName() string { return Name }

// HasClusterID implements cloudprovider.Interface.
func (p *Provider) HasClusterID() bool { return true }

// InstanceExists reports whether the configuration lists the machine of a Node. Without a list all machines exist.
func (p *Provider) InstanceExists(_ context.Context, node *corev1.Node) (bool, error) {
	cfg, err := p.load()
	if err != nil {
		return false, err
	}
	_, ok := cfg.find(node.Name)
	return ok, nil
}

// InstanceShutdown reports whether the machine of a Node is turned off according to the configuration.
func (p *Provider) InstanceShutdown(_ context.Context, node *corev1.Node) (bool, error) {
	cfg, err := p.load()
	if err != nil {
		return false, err
	}
	m, _ := cfg.find(node.Name)
	return m.Stopped, nil
}

// InstanceMetadata returns the provider ID, the addresses and the labels of a Node. It returns
// cloudprovider.InstanceNotFound if the configuration does not list its machine, and an error if the Node has no address.
func (p *Provider) InstanceMetadata(_ context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	cfg, err := p.load()
	if err != nil {
		return nil, err
	}
	m, ok := cfg.find(node.Name)
	if !ok {
		return nil, fmt.Errorf("%s does not list the machine of node %s: %w", p.path, node.Name, cloudprovider.InstanceNotFound)
	}
	addresses, err := m.addresses(node)
	if err != nil {
		return nil, err
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID: Name + "://" + node.Name, InstanceType: m.InstanceType, NodeAddresses: addresses, Zone: m.Zone, Region: m.Region,
	}, nil
}
