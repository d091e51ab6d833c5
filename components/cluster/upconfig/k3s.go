package upconfig

import (
	"strings"

	"hyperkube/internal/base/strictyaml"
)

// k3sSettings maps keys of k3s' configuration file to a text about their counterparts in the files of `up`.
var k3sSettings = map[string]string{
	"write-kubeconfig-mode":             "`up` writes the kubeconfig of the administrator with mode 0600 and adds it to your kubeconfig; create one for another user with `hyperkube kubeconfig user`",
	"write-kubeconfig":                  "`up` adds a context to your kubeconfig unless noKubeconfig is true",
	"tls-san":                           "use apiServer.certSANs of ClusterConfiguration",
	"disable":                           "run `hyperkube addon list` and `hyperkube addon disable NAME`; most components that k3s includes are not installed by default",
	"node-label":                        "use node-labels in kubeletExtraArgs of UpConfiguration",
	"node-taint":                        "use registerWithTaints of KubeletConfiguration",
	"cluster-cidr":                      "use clusterCIDR of UpConfiguration",
	"service-cidr":                      "use serviceCIDR of UpConfiguration",
	"cluster-domain":                    "use clusterDomain of UpConfiguration",
	"cluster-dns":                       "the address of DNS is the tenth of serviceCIDR; clusterDNS of KubeletConfiguration changes the servers of pods",
	"flannel-backend":                   "use podNetwork of UpConfiguration: vxlan, or direct instead of host-gw",
	"kube-apiserver-arg":                "use apiServer.extraArgs of ClusterConfiguration",
	"kube-controller-manager-arg":       "use controllerManager.extraArgs of ClusterConfiguration",
	"kube-scheduler-arg":                "use a KubeSchedulerConfiguration, or scheduler.extraArgs of ClusterConfiguration",
	"etcd-arg":                          "use etcd.local.extraArgs of ClusterConfiguration",
	"kubelet-arg":                       "use a KubeletConfiguration, or kubeletExtraArgs of UpConfiguration",
	"kube-proxy-arg":                    "use a KubeProxyConfiguration, or kubeProxyExtraArgs of UpConfiguration",
	"node-name":                         "use nodeName of UpConfiguration",
	"node-ip":                           "use node-ip in kubeletExtraArgs of UpConfiguration",
	"bind-address":                      "use bind-address in apiServer.extraArgs of ClusterConfiguration",
	"https-listen-port":                 "use secure-port in apiServer.extraArgs of ClusterConfiguration",
	"advertise-address":                 "use advertise-address in apiServer.extraArgs of ClusterConfiguration",
	"service-node-port-range":           "use service-node-port-range in apiServer.extraArgs of ClusterConfiguration",
	"data-dir":                          "use the flag --root of all commands",
	"debug":                             "use verbose of UpConfiguration",
	"secrets-encryption":                "Secrets are always encrypted at rest",
	"disable-network-policy":            "network policies have no cost until one exists, and cannot be disabled",
	"private-registry":                  "registries are configured in /etc/hyperkube/registries.yaml",
	"token":                             "machines join clusters of `hyperkube init` with `hyperkube join`",
	"agent-token":                       "machines join clusters of `hyperkube init` with `hyperkube join`",
	"server":                            "machines join clusters of `hyperkube init` with `hyperkube join`",
	"cluster-init":                      "several control plane nodes need `hyperkube init` and `hyperkube join`",
	"datastore-endpoint":                "etcd is part of the process of `up`",
	"image-credential-provider-config":  "use imageCredentialProviderConfig of UpConfiguration",
	"image-credential-provider-bin-dir": "use imageCredentialProviderBinDir of UpConfiguration",
}

// k3sHint returns the counterpart of a key of k3s; "" if k3s has no such key, or none that is known here.
func k3sHint(key string) string { return k3sSettings[strings.TrimSuffix(key, "+")] }

// failK3s adds errors if doc, which has no kind, is a configuration file of k3s, and reports whether it is. A document
// with one known key of k3s is such a file.
func (r *reader) failK3s(doc *strictyaml.Node) bool {
	var found []strictyaml.Field
	for _, f := range doc.Fields {
		if k3sHint(f.Key) != "" {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return false
	}
	r.fail(doc.Position(), "the document has no kind and looks like a configuration file of k3s; write its settings as follows")
	for _, f := range found {
		r.fail(f.Position(), "%s: %s", f.Key, k3sHint(f.Key))
	}
	return true
}
