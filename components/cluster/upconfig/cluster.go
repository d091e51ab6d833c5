package upconfig

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/strictyaml"
)

// buildCluster sets the fields of c that a ClusterConfiguration determines, except for the extra arguments of
// components. It adds errors for fields that have no effect in a cluster of `up`.
func (r *reader) buildCluster(c *Config) {
	doc := r.merged[clusterKind]
	if doc == nil {
		return
	}
	cluster, errs := strictyaml.Decode[kubeadmapi.ClusterConfiguration](doc)
	if len(errs) > 0 {
		r.failDecoding(doc, errs)
		return
	}
	refuse := func(reason string, path ...string) {
		if field, ok := lookup(doc, path...); ok {
			r.fail(field.Position(), "%s: %s: not supported: %s", clusterKind, strings.Join(path, "."), reason)
		}
	}
	if cluster.ClusterName != "" && cluster.ClusterName != "kubernetes" {
		refuse("the context in kubeconfigs is always hyperkube", "clusterName")
	}
	refuse("`up` has one control plane node; add the names and addresses of a proxy to apiServer.certSANs", "controlPlaneEndpoint")
	if err := kubeadmapi.CheckVersion(cluster.KubernetesVersion); err != nil {
		field, _ := lookup(doc, "kubernetesVersion")
		r.fail(field.Position(), "%s: kubernetesVersion: %v", clusterKind, err)
	}
	for _, component := range []string{"apiServer", "controllerManager", "scheduler"} {
		refuse("all components are in one process; set its environment", component, "extraEnvs")
	}
	refuse("all components are in one process; set its environment", "etcd", "local", "extraEnvs")
	for component, volumes := range map[string]kubeadmapi.MountingComponent{
		"apiServer": cluster.APIServer.MountingComponent, "controllerManager": cluster.ControllerManager, "scheduler": cluster.Scheduler,
	} {
		field, _ := lookup(doc, component, "extraVolumes")
		for i, v := range volumes.ExtraVolumes {
			position := field.Value.Items[i].Position()
			if err := v.Validate(); err != nil {
				r.fail(position, "%s: %s.extraVolumes: %v", clusterKind, component, err)
			} else if v.HostPath != v.MountPath {
				r.fail(position, "%s: %s.extraVolumes: %s: the components of `up` read files at their paths on the host: use %s instead of %s in extraArgs", clusterKind, component, v.Name, v.HostPath, v.MountPath)
			}
		}
	}
	c.CertSANs = cluster.APIServer.CertSANs
	if field, ok := lookup(doc, "apiServer", "certSANs"); ok {
		for i, name := range c.CertSANs {
			if _, err := netip.ParseAddr(name); err == nil {
				continue
			}
			if problems := validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*.")); len(problems) > 0 {
				r.fail(field.Value.Items[i].Position(), "%s: apiServer.certSANs: %q is neither an IP address nor a DNS name: %s", clusterKind, name, strings.Join(problems, ", "))
			}
		}
	}
	for _, n := range []struct{ key, flag, value string }{
		{"podSubnet", "cluster-cidr", cluster.Networking.PodSubnet},
		{"serviceSubnet", "service-cidr", cluster.Networking.ServiceSubnet},
		{"dnsDomain", "cluster-domain", cluster.Networking.DNSDomain},
	} {
		if n.value != "" {
			r.buildNetworking(c, doc, n.key, n.flag)
		}
	}
}

// buildNetworking sets a flag of `up` to the value of networking.KEY of ClusterConfiguration. It adds an error if the
// value is invalid, or if UpConfiguration sets the flag too.
func (r *reader) buildNetworking(c *Config, doc *strictyaml.Node, key, name string) {
	field, _ := lookup(doc, "networking", key)
	flag := r.flags.Lookup(name)
	values, problem := valuesOf(field.Value, flag)
	if problem == "" {
		if err := setValue(flag, values); err != nil {
			problem = err.Error()
		}
	}
	if problem != "" {
		r.fail(field.Position(), "%s: networking.%s: %s", clusterKind, key, problem)
		return
	}
	if _, twice := c.settings[flag.Name]; twice {
		r.fail(field.Position(), "%s: networking.%s is also set as %s of %s in %s: remove one of them", clusterKind, key, keyOf(flag.Name), Kind, c.settings[flag.Name].position)
		return
	}
	c.settings[flag.Name] = setting{values: values, position: field.Position()}
}

// lookup returns the field at a path of keys. It returns false if n is nil or the field does not exist.
func lookup(n *strictyaml.Node, path ...string) (strictyaml.Field, bool) {
	var found strictyaml.Field
	for _, key := range path {
		ok := false
		if n != nil {
			for _, f := range n.Fields {
				if f.Key == key {
					found, n, ok = f, f.Value, true
					break
				}
			}
		}
		if !ok {
			return strictyaml.Field{}, false
		}
	}
	return found, true
}
