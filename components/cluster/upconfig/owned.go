package upconfig

import (
	"slices"
	"strings"
)

// owned are flags of a component that extra arguments cannot set, because `up` determines them.
type owned struct {
	// flags are names, or prefixes of names that end in "*".
	flags  []string
	reason string
}

// reasonClient and the other constants are reasons that several components share.
const (
	reasonClient      = "the component reaches the API server in its process"
	reasonLog         = "all components of `up` have one log; set verbose of UpConfiguration for debug messages"
	reasonElection    = "the component has no other instances, so it elects no leader"
	reasonServingCert = "`up` issues and renews the serving certificate"
	reasonCIDR        = "set clusterCIDR or serviceCIDR of UpConfiguration, or networking of ClusterConfiguration"
	reasonNodeName    = "set nodeName of UpConfiguration"
)

// ownedFlags lists the owned flags of each component.
var ownedFlags = map[string][]owned{
	"etcd": {
		{[]string{"data-dir", "config-file"}, "etcd stores its data below the data directory of `up`"},
		{[]string{"name", "initial-*", "force-new-cluster"}, "the member is the only one of its cluster; restore a snapshot with `hyperkube snapshot restore`"},
		{[]string{"listen-client-urls", "listen-client-http-urls", "listen-peer-urls", "advertise-client-urls"}, "etcd is only reached from this machine, at 127.0.0.1:2379; listen-metrics-urls adds an address for metrics"},
		{[]string{"cert-file", "key-file", "trusted-ca-file", "client-cert-auth", "peer-*"}, "`up` issues and renews the certificates of etcd"},
		{[]string{"logger"}, reasonLog},
	},
	"kube-apiserver": {
		{[]string{"etcd-servers", "etcd-servers-overrides", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-prefix"}, "the API server uses etcd in its process"},
		{[]string{"tls-cert-file", "tls-private-key-file", "cert-dir"}, reasonServingCert + "; add names with apiServer.certSANs, or certificates with tls-sni-cert-key"},
		{[]string{"client-ca-file", "requestheader-client-ca-file", "proxy-client-cert-file", "proxy-client-key-file"}, "`up` issues the certificates of clients with its own CAs"},
		{[]string{"kubelet-client-certificate", "kubelet-client-key", "kubelet-certificate-authority"}, "`up` issues the certificates of kubelets and of their clients"},
		{[]string{"service-account-signing-key-file", "service-account-key-file"}, "`up` creates the keys of service account tokens"},
		{[]string{"service-cluster-ip-range"}, reasonCIDR},
		{[]string{"v", "logging-format"}, reasonLog},
	},
	"kube-controller-manager": {
		{[]string{"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig", "use-service-account-credentials"}, reasonClient},
		{[]string{"allocate-node-cidrs"}, "the pod network needs the CIDRs of nodes"},
		{[]string{"cluster-cidr", "service-cluster-ip-range"}, reasonCIDR},
		{[]string{"load-balancer-pool"}, "set loadBalancerPool of UpConfiguration"},
		{[]string{"root-ca-file", "service-account-private-key-file"}, "`up` creates the CA and the keys of service account tokens"},
		{[]string{"leader-elect*"}, reasonElection},
		{[]string{"tls-cert-file", "tls-private-key-file", "client-ca-file"}, reasonServingCert},
		{[]string{"v", "logging-format"}, reasonLog},
	},
	"kube-scheduler": {
		{[]string{"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"}, reasonClient},
		{[]string{"config"}, "add the KubeSchedulerConfiguration as a document to this file"},
		{[]string{"leader-elect*"}, reasonElection},
		{[]string{"tls-cert-file", "tls-private-key-file", "client-ca-file"}, reasonServingCert},
		{[]string{"v", "logging-format"}, reasonLog},
	},
	"kubelet": {
		{[]string{"kubeconfig", "bootstrap-kubeconfig"}, reasonClient},
		{[]string{"hostname-override"}, reasonNodeName},
		{[]string{"config", "config-dir"}, "add the KubeletConfiguration as a document to this file, or set kubeletConfig and kubeletConfigDir of UpConfiguration"},
		{[]string{"image-credential-provider-config", "image-credential-provider-bin-dir"}, "set imageCredentialProviderConfig and imageCredentialProviderBinDir of UpConfiguration"},
		{[]string{"root", "root-dir", "cgroup-root"}, "the paths of the node are those of `up --root`"},
		{[]string{"container-runtime-endpoint", "image-service-endpoint"}, "`up` starts the container runtime of the node"},
		{[]string{"cluster-domain"}, "set clusterDomain of UpConfiguration"},
		{[]string{"cert-dir", "tls-cert-file", "tls-private-key-file", "client-ca-file", "rotate-certificates", "rotate-server-certificates"}, reasonServingCert},
		{[]string{"v", "logging-format"}, reasonLog},
	},
	"kube-proxy": {
		{[]string{"kubeconfig", "master"}, reasonClient},
		{[]string{"hostname-override"}, reasonNodeName},
		{[]string{"config", "write-config-to"}, "add the KubeProxyConfiguration as a document to this file"},
		{[]string{"cleanup", "init-only"}, "it is a command; run `hyperkube proxy`"},
		{[]string{"root"}, "the paths of the node are those of `up --root`"},
		{[]string{"cluster-cidr"}, reasonCIDR},
		{[]string{"v", "logging-format"}, reasonLog},
	},
}

// ownedReason returns the reason why a flag of a component cannot be set; "" if it can.
func ownedReason(component, flag string) string {
	for _, o := range ownedFlags[component] {
		if slices.ContainsFunc(o.flags, func(name string) bool {
			prefix, isPrefix := strings.CutSuffix(name, "*")
			return name == flag || isPrefix && strings.HasPrefix(flag, prefix)
		}) {
			return o.reason
		}
	}
	return ""
}
