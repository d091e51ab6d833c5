// Package manifests contains the embedded manifests: add-ons, and the static pods of control plane
// nodes.
package manifests

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"hyperkube/manifests/definitions"
)

//go:embed addons/*.yaml controlplane/*.yaml
var files embed.FS

// Values are the template values of add-ons.
type Values struct {
	// Image is the reference of the built-in image.
	Image string
	// DNSAddress is the cluster IP of the DNS Service. Domain is the DNS domain of the cluster.
	DNSAddress, Domain string
	// NodeDNSDir is the directory of the nodes with a resolv.conf of the name servers that the node uses now. It may be
	// missing on a node.
	NodeDNSDir string
	// InProcess reports whether the process of the API server runs the servers that other clusters run as
	// pods. It is true for clusters of `up`.
	InProcess bool
}

// Addon is an add-on. Its manifest is addons/NAME.yaml.
type Addon struct {
	Name, Description string
	// Default reports whether the add-on is enabled unless the settings of the cluster disable it.
	Default bool
	// Required is the reason why the add-on cannot be disabled. It is empty if it can.
	Required string
	// APIService is the name of an APIService of the add-on. If another client has set spec.service of this
	// object, the add-on is replaced: it is not applied, and its other objects are pruned.
	APIService string
	// Definitions returns CustomResourceDefinitions of the add-on, in addition to its manifest. It may be nil.
	Definitions func() ([]*unstructured.Unstructured, error)
}

// Addons returns all add-ons, in the order in which `hyperkube addon list` prints them.
func Addons() []Addon {
	return []Addon{
		{Name: "cluster-network-policy", Description: "Network policies for the whole cluster", Definitions: definitions.ClusterNetworkPolicy},
		{Name: "dashboard", Description: "Dashboard for users who log in with a token"},
		{Name: "dns", Description: "Cluster DNS", Default: true},
		{Name: "gateway", Description: "Gateway API and Ingress", Definitions: definitions.Gateway},
		{Name: "local-path", Description: "Default StorageClass: volumes in directories of the nodes", Default: true},
		{Name: "logging", Description: "Collection, storage and search of logs"},
		{Name: "metrics", Description: "Resource metrics for kubectl top and autoscaling", Default: true, APIService: "v1beta1.metrics.k8s.io"},
		{Name: "network", Description: "Permissions of the pod network", Default: true, Required: "the pod network of every node needs its permissions to apply network policies"},
	}
}

// AddonNames returns the names of all add-ons.
func AddonNames() []string {
	var names []string
	for _, a := range Addons() {
		names = append(names, a.Name)
	}
	return names
}

// FindAddon returns the add-on with the name. The error of an unknown name lists all names.
func FindAddon(name string) (Addon, error) {
	for _, a := range Addons() {
		if a.Name == name {
			return a, nil
		}
	}
	return Addon{}, fmt.Errorf("unknown add-on %q, available add-ons are: %s", name, strings.Join(AddonNames(), ", "))
}

// Objects returns the objects of the add-on.
func (a Addon) Objects(v Values) ([]*unstructured.Unstructured, error) {
	objects, err := render("addons/"+a.Name+".yaml", v)
	if err != nil || a.Definitions == nil {
		return objects, err
	}
	list, err := a.Definitions()
	return append(list, objects...), err
}

// render returns the objects in the embedded manifest name, a template that is executed with
// values.
func render(name string, values any) ([]*unstructured.Unstructured, error) {
	tmpl, err := template.New("").Option("missingkey=error").ParseFS(files, name)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	var text bytes.Buffer
	if err := tmpl.ExecuteTemplate(&text, path.Base(name), values); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(&text, 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", name, err)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}
